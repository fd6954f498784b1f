#pragma once
#include <bit>
#include <cstdint>

// The messages of PROTOCOL.md: one SOCK_SEQPACKET packet each, fixed size, little-endian, unused bytes zero.
namespace kvarter::wire {

static_assert(std::endian::native == std::endian::little, "the structs below are the wire format");

inline constexpr std::uint32_t kMagic = 0x5452564b;  // "KVRT"
inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::uint32_t kNameBytes = 108;
inline constexpr std::uint32_t kTextBytes = 488;
inline constexpr std::uint32_t kDescriptorsPerGrant = 32;

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

enum Type : std::uint32_t { kMapped = 1, kFence = 2, kFenced = 3 };

struct Notice {  // kMapped and kFenced to the node, kFence to the client; epoch is 0 in kMapped
  std::uint32_t type, zero;
  std::uint64_t epoch;
};

static_assert(sizeof(Hello) == 128 && sizeof(Answer) == 512 && sizeof(Grant) == 520 && sizeof(Notice) == 16);

}  // namespace kvarter::wire
