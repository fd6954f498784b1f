#pragma once
#include <bit>
#include <cstdint>

// The messages of PROTOCOL.md: one SOCK_SEQPACKET packet each, fixed size, little-endian, unused bytes zero.
namespace kvarter::wire {

static_assert(std::endian::native == std::endian::little, "the structs below are the wire format");

inline constexpr std::uint32_t kMagic = 0x5452564b;  // "KVRT"
inline constexpr std::uint32_t kProtocol = 2;
inline constexpr std::uint32_t kFirstWithSessions = 2;
inline constexpr std::uint32_t kNameBytes = 108;
inline constexpr std::uint32_t kTextBytes = 488;
inline constexpr std::uint32_t kDescriptorsPerGrant = 32;

// In Hello's rank: this connection is a session, and the low bits are the engine's ranks.
inline constexpr std::uint32_t kSession = 0x8000'0000;
// The memory that a session and the node share: what is asked in its first half, the answer in its second.
inline constexpr std::uint64_t kInbox = 8u << 20, kOutbox = 8u << 20;

struct Hello {  // client to node. magic and protocol stay where they are in every version
  std::uint32_t magic, protocol, layout, rank, name_bytes;
  char name[kNameBytes];
};

struct Answer {  // node to client; the same in every version
  std::uint32_t magic, protocol, refusal, text_bytes, owner, descriptors;
  char text[kTextBytes];
};

struct Grant {  // node to client, with `count` descriptors; as many grants as `descriptors` needs
  std::uint32_t count, zero;
  struct {
    std::uint64_t bytes;
    std::uint32_t kind, arena;
  } items[kDescriptorsPerGrant];
};

enum Type : std::uint32_t { kMapped = 1, kFence = 2, kFenced = 3, kMoved = 4 };

struct Notice {  // kMapped and kFenced to the node, kFence and kMoved to the client; epoch: of fences
  std::uint32_t type, zero;
  std::uint64_t epoch;
};

enum Verb : std::uint32_t {  // numbers keep their meaning for ever
  kLook = 1,
  kLeading = 2,
  kLastRun = 3,
  kContains = 4,
  kLease = 5,
  kSlots = 6,
  kRelease = 7,
  kDropCorrupt = 8,
  kReserve = 9,
  kComplete = 10,
  kAbort = 11,
  kBelowLeading = 12,
  kBelowLastRun = 13,
  kBelowContains = 14,
  kWatch = 15,
  kChanges = 16,
  kResident = 17,
  kHandles = 18,
};
inline constexpr std::uint32_t kVerbs = 19;  // numbers below

struct Call {  // client to node, on a session; PROTOCOL.md says which verb reads which fields
  std::uint32_t verb = 0, number = 0, ns = 0, group = 0;
  std::uint64_t first_unit = 0,
                units = 0;  // of the chain: its parent's digest at 0 of the inbox, then its own
  std::uint64_t first = 0, count = 0;
  std::uint64_t id = 0, deadline = 0, bytes = 0;  // deadline: nanoseconds from now
  std::uint64_t at = 0;                           // of arrays, in the inbox
  std::uint32_t kind = 0, first_shard = 0, shards = 0, zero = 0;
};

struct Reply {  // node to client, one for each call
  std::uint32_t number, status;
  std::uint64_t id, count, slots;
  std::uint64_t epoch, version, below;  // as they are now; below: the disk's version
  std::uint32_t attached, zero;
};

struct Wanted {  // a range, in the inbox
  std::uint64_t group, first, count;
};
struct Made {  // what became of a block, in the outbox
  std::uint64_t handle;
  std::uint32_t status, reason;
};
struct Place {  // a slot, in the outbox
  std::uint32_t record, arena;
  std::uint64_t offset, length, checksum, generation;
};
static_assert(sizeof(Call) == 96 && sizeof(Reply) == 64 && sizeof(Wanted) == 24 && sizeof(Made) == 16 &&
              sizeof(Place) == 40);

static_assert(sizeof(Hello) == 128 && sizeof(Answer) == 512 && sizeof(Grant) == 520 && sizeof(Notice) == 16);

}  // namespace kvarter::wire
