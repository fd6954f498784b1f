#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarter {

// What one memory file of the pool holds. Only the node writes records and index; mappers read them.
// kExchange is a session's own and no part of the pool.
enum class ArenaKind : std::uint32_t { kPayload = 0, kRecords = 1, kIndex = 2, kExchange = 3 };

// One memory file of the pool, by descriptor. `bytes` is what may be mapped: at most the file's size.
// `arena` names a payload arena and is below kMaxArenas; it means nothing for the other kinds.
struct Exported {
  int fd;
  std::uint64_t bytes;
  ArenaKind kind;
  std::uint32_t arena;
};

inline constexpr std::uint32_t kMaxArenas = 512;

// The pool as one process sees it: payload arenas read-write at 2 MiB-aligned addresses (so that huge pages
// of the file are mapped as such), records and index read-only. Not inherited by fork, so that a helper
// process never becomes a writer nobody watches, and left out of core dumps, which would hold prompts.
//
// Threads: immutable after construction, safe from any. Addresses live as long as the Mapping, however the
// node fares: the kernel keeps the pages. A forked child must not use it, and its destructor does nothing
// there.
class Mapping {
 public:
  // Maps every file; the descriptors are only borrowed and may be closed afterwards.
  // REQUIRES: no fork runs at the same time (a child forked between mapping and MADV_DONTFORK keeps it).
  // Throws std::invalid_argument for a file shorter than `bytes`, bytes = 0, a kind or arena out of range or
  // given twice; std::system_error where the kernel refuses.
  explicit Mapping(std::span<const Exported> exported);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Where [offset, offset + length) of a payload arena lies here; nullptr unless all of it is inside.
  std::byte* address(std::uint32_t arena, std::uint64_t offset, std::uint64_t length) const noexcept;

  // A whole payload arena; empty if there is none of that id.
  std::span<std::byte> payload(std::uint32_t arena) const noexcept;
  // Empty if the pool came without.
  std::span<const std::byte> records() const noexcept { return records_; }
  std::span<const std::byte> index() const noexcept { return index_; }

 private:
  void unmap() noexcept;

  std::vector<std::span<std::byte>> payload_;  // by arena id; holes are empty
  std::span<std::byte> records_, index_;
  pid_t process_;
};

}  // namespace kvarter
