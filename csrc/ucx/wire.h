#pragma once
// What travels between two engines; PROTOCOL.md says when. Everything is little-endian.
#include <array>
#include <cstddef>
#include <cstdint>

#include "kvarter/ucx/events.h"

namespace kvarter::ucx {

inline constexpr std::array<char, 8> kInviteMagic{'K', 'V', 'R', 'T', 'U', 'C', 'X', '1'};
inline constexpr std::uint32_t kHeaderMagic = 0x3158564b;  // "KVX1"
inline constexpr unsigned kMessageId = 1;                  // of our active messages; a worker has no others

inline constexpr std::size_t kCut =
    64;  // bytes: a block goes on in another message only at multiples of these

enum class Kind : std::uint8_t {
  kMessage = 1,  // payload: what the other side's caller is told
  kBegin = 2,    // payload: a Verdict for each block; offset: bytes of the blocks that are Ok
  kData = 3,     // payload: bytes `offset` and on of those blocks, one after the other
  kEnd = 4,      // no payload: blocks not complete by now end as `status`
};

struct Header {
  std::uint32_t magic = kHeaderMagic;
  Kind kind = Kind::kMessage;
  Status status = Status::kOk;
  std::uint16_t zero = 0;
  std::uint64_t token = 0;
  std::uint64_t request = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(Header) == 40);

struct Verdict {
  std::uint64_t checksum = 0;
  std::uint64_t status = 0;
};
static_assert(sizeof(Verdict) == 16);

}  // namespace kvarter::ucx
