#pragma once
// Format of the records memfd, layout version 2: little-endian, position-independent, the truth about every
// slot.
//
//   [RecordsHeader, 4096 B] [NamespaceRecord x 1024] [SlotRecord x max_slots]
//
// Only the node writes it; workers and clients map it read-only. A slot counts when its word says kCommitted;
// a block counts when all `shards` slots of one `entry` count. Fields are written before the word, the word
// with release order; so whoever reads a committed word (acquire) sees the fields that belong to it, and a
// crash at any instruction leaves either a whole block or none. Everything in the index can be rebuilt from
// here. A block that moves keeps its record: generation + 1 and kMoving, the new address, kCommitted again.

#include <array>
#include <atomic>
#include <cstdint>

namespace kvarter {

using Digest = std::array<std::uint8_t, 32>;

inline constexpr std::uint32_t kLayoutVersion = 2;
inline constexpr std::uint64_t kRecordsMagic = 0x3152'5241'564b'0001;  // "..KVAR1" and a byte-order mark
inline constexpr std::uint32_t kMaxNamespaces = 1024;
inline constexpr std::uint32_t kMaxGroups = 64;

struct RecordsHeader {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t max_slots;
  std::uint32_t arenas;
  std::uint32_t reserved;
  std::uint8_t pool_id[16];  // random; tells one pool from another
};

// Turns a namespace's small integer into its digest and what the index must know of its groups.
struct NamespaceRecord {
  Digest digest;
  std::uint32_t state;  // 0 free, 1 open, 2 closed: its blocks are no longer served and are being removed
  std::uint32_t groups;
  std::uint64_t chained;  // bit g: group g's blocks need their ancestors (R7)
  std::uint8_t reserved[80];
};
static_assert(sizeof(NamespaceRecord) == 128);

enum class SlotState : std::uint8_t {
  kFree = 0,
  kReserved = 1,  // its writer may be writing
  kWritten = 2,   // its writer has reported; other shards or the parent have not
  kCommitted = 3,
  kQuarantined = 4,  // its writer missed the deadline and may still be writing
  kMoving = 5,       // committed, but its address is changing: a look-up counts it, nobody copies from it
};

struct SlotRecord {
  Digest digest;
  Digest parent;           // of the block before it in its chain; zeros when it has none
  std::uint64_t offset;    // in its arena, bytes
  std::uint64_t length;    // of the payload, bytes; the extent is this rounded up to a granule
  std::uint64_t checksum;  // XXH3-64 of the payload
  std::uint64_t entry;     // which reservation made it: equal in all shards of one block, never used twice
  std::atomic<std::uint64_t> word;  // generation << 8 | SlotState
  std::uint32_t ns;
  std::uint32_t depth;  // the block's number in its chain
  std::uint16_t group;
  std::uint16_t sub;
  std::uint16_t shard;
  std::uint16_t shards;
  std::uint16_t arena;
  std::uint16_t parent_sub;
  std::uint32_t owner;

  static constexpr std::uint64_t make_word(std::uint64_t generation, SlotState state) {
    return generation << 8 | static_cast<std::uint64_t>(state);
  }
  SlotState state() const { return static_cast<SlotState>(word.load(std::memory_order_acquire) & 0xff); }
  std::uint64_t generation() const { return word.load(std::memory_order_acquire) >> 8; }
};
static_assert(sizeof(SlotRecord) == 128);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::uint64_t records_bytes(std::uint64_t max_slots) {
  return 4096 + sizeof(NamespaceRecord) * kMaxNamespaces + sizeof(SlotRecord) * max_slots;
}

}  // namespace kvarter
