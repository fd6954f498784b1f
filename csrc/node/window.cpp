#include "kvarter/window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "kvarter/pool.h"

namespace kvarter {
namespace {

[[noreturn]] void fail(const char* what, std::uint64_t bytes) {
  throw std::system_error(errno, std::generic_category(),
                          std::string(what) + " of " + std::to_string(bytes) + " bytes of a pool");
}

}  // namespace

Window::Window(std::span<const Exported> arenas) : process_(::getpid()) {
  std::uint64_t total = 0;
  for (const Exported& arena : arenas) {
    if (arena.bytes == 0 || arena.bytes % kHugePage)
      throw std::invalid_argument("arena " + std::to_string(arena.arena) + " has " +
                                  std::to_string(arena.bytes) + " bytes, expected a multiple of " +
                                  std::to_string(kHugePage));
    total += arena.bytes;
  }
  if (total == 0) throw std::invalid_argument("0 arenas, expected at least 1");
  void* hole =
      ::mmap(nullptr, total + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hole == MAP_FAILED) fail("reserving addresses", total);
  reserved_ = {static_cast<std::byte*>(hole), total + kHugePage};
  const auto start = reinterpret_cast<std::uintptr_t>(hole);
  bytes_ = reserved_.subspan(round_up(start, kHugePage) - start, total);
  std::byte* at = bytes_.data();
  try {
    for (const Exported& arena : arenas) {
      // Mapped as every pool is, and then moved: the kernel keeps what was said of it.
      std::byte* mapped = map_shared(arena.fd, arena.bytes, true);
      if (::mremap(mapped, arena.bytes, arena.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
        const int error = errno;
        ::munmap(mapped, arena.bytes);
        errno = error;
        fail("moving the mapping", arena.bytes);
      }
      at += arena.bytes;
    }
  } catch (...) {
    unmap();
    throw;
  }
}

Window::~Window() { unmap(); }

void Window::unmap() noexcept {
  // A forked child has other things at these addresses.
  if (::getpid() == process_) ::munmap(reserved_.data(), reserved_.size());
}

}  // namespace kvarter
