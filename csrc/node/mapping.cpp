#include "kvarter/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "kvarter/pool.h"

namespace kvarter {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

std::span<std::byte> map_file(const Exported& file) {
  struct stat status{};
  if (::fstat(file.fd, &status) != 0)
    throw std::system_error(errno, std::generic_category(),
                            "fstat of a pool file of " + std::to_string(file.bytes) + " bytes");
  if (file.bytes == 0 || static_cast<std::uint64_t>(status.st_size) < file.bytes)
    refuse("a pool file of kind " + std::to_string(static_cast<std::uint32_t>(file.kind)) + " is " +
           std::to_string(status.st_size) + " bytes long, expected at least " + std::to_string(file.bytes) +
           " and more than 0");
  return {map_shared(file.fd, file.bytes, file.kind == ArenaKind::kPayload), file.bytes};
}

}  // namespace

Mapping::Mapping(std::span<const Exported> exported) : process_(::getpid()) {
  try {
    for (const Exported& file : exported) {
      std::span<std::byte>* place = nullptr;
      switch (file.kind) {
        case ArenaKind::kPayload:
          if (file.arena >= kMaxArenas)
            refuse("payload arena " + std::to_string(file.arena) + ", expected below " +
                   std::to_string(kMaxArenas));
          if (payload_.size() <= file.arena) payload_.resize(file.arena + 1);
          place = &payload_[file.arena];
          break;
        case ArenaKind::kRecords:
          place = &records_;
          break;
        case ArenaKind::kIndex:
          place = &index_;
          break;
        case ArenaKind::kExchange:  // no part of a pool
          break;
      }
      if (place == nullptr)
        refuse("a pool file of kind " + std::to_string(static_cast<std::uint32_t>(file.kind)) +
               ", expected 0 (payload), 1 (records) or 2 (index)");
      if (!place->empty())
        refuse("two pool files of kind " + std::to_string(static_cast<std::uint32_t>(file.kind)) +
               ", arena " + std::to_string(file.arena));
      *place = map_file(file);
    }
  } catch (...) {
    unmap();
    throw;
  }
}

Mapping::~Mapping() { unmap(); }

void Mapping::unmap() noexcept {
  // A forked child has other things at these addresses.
  if (::getpid() != process_) return;
  for (const auto& arena : payload_)
    if (!arena.empty()) ::munmap(arena.data(), arena.size());
  if (!records_.empty()) ::munmap(records_.data(), records_.size());
  if (!index_.empty()) ::munmap(index_.data(), index_.size());
}

std::span<std::byte> Mapping::payload(std::uint32_t arena) const noexcept {
  return arena < payload_.size() ? payload_[arena] : std::span<std::byte>();
}

std::byte* Mapping::address(std::uint32_t arena, std::uint64_t offset, std::uint64_t length) const noexcept {
  const auto bytes = payload(arena);
  if (bytes.empty() || offset > bytes.size() || length > bytes.size() - offset) return nullptr;
  return bytes.data() + offset;
}

}  // namespace kvarter
