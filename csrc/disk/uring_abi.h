#pragma once
// The kernel's io_uring interface, as much of it as we use: so that building needs no kernel header of some
// age.
#include <cstdint>

namespace kvarter::disk::uring {

inline constexpr long kSetup = 425, kEnter = 426;  // the same number on every architecture

inline constexpr std::uint8_t kReadv = 1, kWritev = 2, kFsync = 3, kRead = 22;
inline constexpr std::uint32_t kFsyncData = 1;
inline constexpr unsigned kGetEvents = 1, kExtArg = 8;
inline constexpr std::uint32_t kFeatSingleMap = 1, kFeatNoDrop = 2, kFeatExtArg = 1u << 8;
inline constexpr std::int64_t kSqRing = 0, kSqes = 0x10000000;

struct Sqe {
  std::uint8_t opcode, flags;
  std::uint16_t priority;
  std::int32_t fd;
  std::uint64_t offset, address;
  std::uint32_t length, op_flags;
  std::uint64_t user_data;
  std::uint64_t rest[3];
};
static_assert(sizeof(Sqe) == 64);
struct Cqe {
  std::uint64_t user_data;
  std::int32_t result;
  std::uint32_t flags;
};
struct SqOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, reserved;
  std::uint64_t user_address;
};
struct CqOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved;
  std::uint64_t user_address;
};
struct Params {
  std::uint32_t sq_entries, cq_entries, flags, sq_cpu, sq_idle, features, wq_fd, reserved[3];
  SqOffsets sq;
  CqOffsets cq;
};
static_assert(sizeof(Params) == 120);
struct Timespec {
  std::int64_t seconds, nanoseconds;
};
struct GetEventsArg {
  std::uint64_t sigmask;
  std::uint32_t sigmask_size, pad;
  std::uint64_t timespec;
};

}  // namespace kvarter::disk::uring
