#pragma once
// Finding blocks in a mapped index: the two memfds are all it takes, so whoever maps them, read-only and in
// any process, finds what the node's own index finds, without a message and without waiting for anybody.
//
// Threads: every method from any thread, at any time, while the index changes. An answer was true at some
// moment of the call; a hit may be gone when the call returns, which Index::lease finds out.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvarter/index.h"
#include "kvarter/record.h"

namespace kvarter {

struct ColumnsHeader;
struct Gate;

class Finder {
 public:
  // The memory of records and columns, which must outlive this. Throws std::runtime_error, with both
  // versions, when it is of another layout version, std::invalid_argument when it is too short for what it
  // says.
  Finder(std::span<const std::byte> records, std::span<const std::byte> columns);

  // As Index's methods of the same names. Throw std::invalid_argument for a namespace that was never open or
  // a group that it has not.
  std::uint64_t leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const;
  std::uint64_t last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                         std::uint64_t step) const;
  bool contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const;
  void contains(std::span<const Key> keys, std::span<std::uint8_t> there) const;
  std::uint64_t version() const;
  // Changes when the namespace of this number is closed, and when another one is opened under it.
  std::uint64_t gate(std::uint32_t ns) const;
  // Random; tells one pool from another.
  std::span<const std::uint8_t, 16> pool_id() const;

 private:
  friend class Probe;
  bool committed(const Key& key) const;

  // Only ever read, as the operators that read atomically want them.
  const RecordsHeader* of_records_;
  SlotRecord* records_;
  std::uint32_t* slots_;  // by row
  std::uint64_t* cells_;
  std::uint64_t mask_;
  Gate* gates_;
  ColumnsHeader* header_;
};

}  // namespace kvarter
