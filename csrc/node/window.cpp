#include "kvarter/window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "kvarter/pool.h"

namespace kvarter {

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
  bytes_ = {reserve_addresses(total), total};
  std::byte* at = bytes_.data();
  try {
    for (const Exported& arena : arenas) {
      map_shared_at(at, arena.fd, arena.bytes, true);
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
  if (::getpid() == process_) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace kvarter
