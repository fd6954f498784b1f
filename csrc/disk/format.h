#pragma once
// The bytes of a segment: FORMAT.md says what they mean. Little-endian, every structure checksummed; whoever
// reads them believes nothing that its checksum and its bounds do not say.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvarter/record.h"

namespace kvarter::disk {

inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kMaxShards = 4096;
inline constexpr std::uint64_t kSegmentMagic = 0x3147'4553'5456'4b01;  // "KVTSEG1"
inline constexpr std::uint64_t kGroupMagic = 0x3150'5247'5456'4b01;
inline constexpr std::uint64_t kFooterMagic = 0x3158'4449'5456'4b01;

constexpr std::uint64_t pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage; }
constexpr std::uint64_t padded(std::uint64_t bytes) { return pages(bytes) * kPage; }

struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t number;
  std::uint64_t epoch;  // random; a group or index of another epoch is not there
  std::uint64_t bytes;
  std::uint8_t log_id[16];  // the manifest's
  std::uint64_t opened;     // the next sequence number when the epoch began
  std::uint64_t checksum;   // of the fields before it
};
static_assert(sizeof(SegmentHeader) == 64);

struct GroupHeader {
  std::uint64_t magic;
  std::uint64_t epoch;
  std::uint64_t offset;    // of itself, in its segment
  std::uint64_t sequence;  // of its first block; the others follow
  std::uint64_t payload;   // bytes, in whole pages
  std::uint32_t blocks;
  std::uint32_t pages;  // of the header
  std::uint64_t reserved;
  std::uint64_t checksum;  // of all header pages, this field 0
};
static_assert(sizeof(GroupHeader) == 64);

// One block, followed by a Shard for each shard.
struct BlockRecord {
  Digest ns;
  Digest digest;
  Digest parent;  // zeros when `depth` is 0 or the group is not chained
  std::uint32_t depth;
  std::uint16_t group;
  std::uint16_t sub;
  std::uint16_t parent_sub;
  std::uint16_t shards;
  std::uint32_t chained;
};
static_assert(sizeof(BlockRecord) == 112);
struct Shard {
  std::uint64_t length;
  std::uint64_t checksum;
};
constexpr std::uint64_t record_bytes(std::uint64_t shards) {
  return sizeof(BlockRecord) + shards * sizeof(Shard);
}

// In a sealed segment's index a block is: where it lies, its sequence number, its record, its shards.
struct IndexEntry {
  std::uint64_t offset;
  std::uint64_t sequence;
};

struct Footer {  // the segment's last page
  std::uint64_t magic;
  std::uint64_t epoch;
  std::uint32_t number;
  std::uint32_t blocks;
  std::uint64_t index_offset;
  std::uint64_t index_bytes;
  std::uint64_t index_checksum;
  std::uint64_t end;       // where the groups end
  std::uint64_t checksum;  // of the fields before it
};
static_assert(sizeof(Footer) == 64);

// A block as read from disk.
struct Found {
  BlockRecord record;
  std::vector<Shard> shards;
  std::uint64_t offset = 0;  // in its segment
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;  // in whole pages
};

// Memory for O_DIRECT.
struct FreeAligned {
  void operator()(std::byte* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<std::byte[], FreeAligned>;
Aligned aligned(std::uint64_t bytes);  // zeroed, in whole pages

std::uint64_t checksum(const void* data, std::size_t bytes);
// Of several shards: the checksum over their checksums. The one number that memory keeps for a block.
std::uint64_t combine(std::span<const Shard> shards);

void seal(SegmentHeader& header);
void seal(Footer& footer);
// Writes the records' pages: the header's fields are given, all but pages, and checksum.
void seal_group(std::byte* at, GroupHeader header, std::span<const std::byte> records);
constexpr std::uint64_t group_header_bytes(std::uint64_t record_total) {
  return padded(sizeof(GroupHeader) + record_total);
}

// Nothing when it is not there, is damaged, or is another segment's. `page` has kPage bytes.
std::optional<SegmentHeader> parse_segment(const std::byte* page, std::uint32_t number, std::uint64_t bytes,
                                           const std::uint8_t* log_id);
std::optional<Footer> parse_footer(const std::byte* page, const SegmentHeader& header);
// The pages that a group header at `page` claims to have; 0 when it is none of this epoch at this offset.
std::uint32_t group_pages(const std::byte* page, const SegmentHeader& header, std::uint64_t offset);
// The blocks of a group, whose header is whole at `at`. Nothing when any of it does not verify.
std::optional<std::vector<Found>> parse_group(const std::byte* at, std::uint32_t pages,
                                              const SegmentHeader& header, std::uint64_t offset);
std::optional<std::vector<Found>> parse_index(std::span<const std::byte> index, const Footer& footer);

std::string segment_name(std::uint32_t number);
// The number in a segment's name; nothing for another file.
std::optional<std::uint32_t> segment_number(const std::string& name);
bool our_file(const std::string& name);

}  // namespace kvarter::disk
