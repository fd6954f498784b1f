#pragma once
// The columns memfd: what look-ups know of namespaces, hash table and per-entry columns as arrays at fixed
// offsets, reserved at maximum size, read-only for everyone but the node. Rebuildable from the records, so
// nothing here has to survive a crash.

#include <atomic>
#include <cstdint>
#include <span>

#include "kvarter/index.h"
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

inline constexpr std::uint64_t kColumnsMagic = 0x3152'4343'564b'0001;

struct ColumnsHeader {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t max_rows;
  std::atomic<std::uint64_t> version;  // changes whenever a look-up may answer differently
  // Of cells of the table: odd while one is under way; and of slots, 2 at a time.
  std::atomic<std::uint64_t> moves;
};

// What a look-up knows of a namespace without the mutex. A number that was open once and is not now answers
// as a closed one does; numbers go round, so that whoever still uses one finds nothing of the next namespace
// there.
struct Gate {
  static constexpr std::uint64_t kOpen = 1, kState = 3;
  std::atomic<std::uint64_t> word;                 // times opened << 16 | groups << 2 | open; 0: never was
  std::atomic<std::uint64_t> strides[kMaxGroups];  // by group: unit_stride << 32 | subs

  void open(std::span<const GroupShape> shapes);
  void close() { word.store(word.load(std::memory_order_relaxed) & ~kState, std::memory_order_release); }
};

struct Columns {
  ColumnsHeader* header;
  Gate* gates;  // kMaxNamespaces of them
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
