#include "kvarter/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace kvarter {
namespace {

constexpr std::uint64_t kHuge = 2u << 20;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

[[noreturn]] void fail(const char* call, std::uint64_t bytes) {
  throw std::system_error(errno, std::generic_category(),
                          std::string(call) + " of " + std::to_string(bytes) + " bytes of the pool");
}

// mmap only promises page alignment: reserve 2 MiB more, map at the first aligned address, give back the
// rest.
std::span<std::byte> map_aligned(const Exported& file) {
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) fail("fstat", file.bytes);
  if (file.bytes == 0 || static_cast<std::uint64_t>(status.st_size) < file.bytes)
    refuse("a pool file of kind " + std::to_string(static_cast<std::uint32_t>(file.kind)) + " is " +
           std::to_string(status.st_size) + " bytes long, expected at least " + std::to_string(file.bytes) +
           " and more than 0");
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t length = (file.bytes + page - 1) / page * page;
  void* const reserved =
      ::mmap(nullptr, length + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail("mmap", length);
  auto* const start = static_cast<std::byte*>(reserved);
  const std::uint64_t skip = (kHuge - reinterpret_cast<std::uintptr_t>(start) % kHuge) % kHuge;
  std::byte* const base = start + skip;
  if (skip != 0) ::munmap(start, skip);
  ::munmap(base + length, kHuge - skip);
  const int rights = file.kind == ArenaKind::kPayload ? PROT_READ | PROT_WRITE : PROT_READ;
  if (::mmap(base, length, rights, MAP_SHARED | MAP_FIXED, file.fd, 0) == MAP_FAILED ||
      ::madvise(base, length, MADV_DONTFORK) != 0 || ::madvise(base, length, MADV_DONTDUMP) != 0) {
    const int error = errno;
    ::munmap(base, length);
    errno = error;
    fail("mmap", length);
  }
  return {base, file.bytes};
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
      }
      if (place == nullptr)
        refuse("a pool file of kind " + std::to_string(static_cast<std::uint32_t>(file.kind)) +
               ", expected 0 (payload), 1 (records) or 2 (index)");
      if (!place->empty())
        refuse("two pool files of kind " + std::to_string(static_cast<std::uint32_t>(file.kind)) +
               ", arena " + std::to_string(file.arena));
      *place = map_aligned(file);
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
