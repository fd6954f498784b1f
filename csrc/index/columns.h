#pragma once
// The columns memfd: hash table and per-entry columns as arrays at fixed offsets, reserved at maximum size,
// read-only for everyone but the node. Rebuildable from the records, so nothing here has to survive a crash.

#include <cstdint>

#include "kvarter/pool.h"

namespace kvarter {

inline constexpr std::uint32_t kNoRow = 0xffffffff;

enum class RowState : std::uint8_t {
  kFree = 0,
  kInFlight = 1,  // reserved; in the table, so that a second reserve sees it
  kResident = 2,
  kDead = 3,         // out of the table; freed when its last lease ends
  kQuarantined = 4,  // out of the table; freed when its writers have reported, are fenced or dead
};

struct Columns {
  // Each an array of max_rows. Links are rows, or kNoRow.
  std::uint32_t* slot;        // record of shard 0
  std::uint32_t* generation;  // of the row; counts its reuses
  std::uint32_t* parent;
  std::uint32_t* first_child;
  std::uint32_t* next_sibling;
  std::uint32_t* previous_sibling;
  std::uint32_t* children;
  std::uint32_t* leases;  // read leases and holds
  std::uint32_t* pins;
  std::uint32_t* hits;
  std::uint32_t* depth;
  std::uint32_t* ns;
  std::uint64_t* last_use;  // clock, ns; at least that of every child that was dropped
  std::uint64_t* bytes;     // payload of all shards
  std::uint16_t* group;
  std::uint16_t* shards;
  std::uint16_t* klass;  // what the placement policy called it
  std::uint8_t* state;   // RowState
  std::uint8_t* queued;  // which victim heap has its one entry, counted from 1; 0: none
  std::uint32_t*
      next_shard;  // by record, not by row: the record of the same entry's next shard, or next free
  // Hash table: `buckets` cells, a power of two; cell = hash << 32 | row + 1; 0 is empty.
  std::uint64_t* cells;
  std::uint64_t buckets;
};

// Bytes of the memfd for this many rows, and the pointers into it once it is mapped at `base`.
std::uint64_t columns_bytes(std::uint32_t max_rows);
Columns columns_at(std::byte* base, std::uint32_t max_rows);

}  // namespace kvarter
