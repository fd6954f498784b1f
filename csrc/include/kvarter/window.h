#pragma once
#include <sys/types.h>

#include <cstddef>
#include <span>

#include "kvarter/mapping.h"

namespace kvarter {

// Payload arenas side by side, as one piece of memory: for who takes only one, like UCX's engine, where a
// pool has an arena on each NUMA node. Read-write, and like a Mapping left out of forks and core dumps.
//
// Threads: immutable after construction, safe from any. Addresses live as long as the Window. A forked child
// must not use it, and its destructor does nothing there.
class Window {
 public:
  // Maps every file whole, in this order; the descriptors are only borrowed.
  // REQUIRES: payload arenas, no longer than their files; no fork runs at the same time.
  // Throws std::invalid_argument for none, and for an arena that is empty or no multiple of 2 MiB, after
  // which there would be a gap; std::system_error where the kernel refuses.
  explicit Window(std::span<const Exported> arenas);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  void unmap() noexcept;

  std::span<std::byte> bytes_;
  pid_t process_;
};

}  // namespace kvarter
