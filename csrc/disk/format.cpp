#include "disk/format.h"

#include <cstdio>
#include <cstring>
#include <new>

#include "kvarter/hash.h"

namespace kvarter::disk {
namespace {

// The next record of `bytes`, and how long it is; 0 when it is cut off or makes no sense.
std::size_t parse_record(std::span<const std::byte> bytes, Found& found) {
  if (bytes.size() < sizeof(BlockRecord)) return 0;
  std::memcpy(&found.record, bytes.data(), sizeof(BlockRecord));
  const BlockRecord& r = found.record;
  if (r.shards == 0 || r.shards > kMaxShards || r.group >= kMaxGroups || r.chained > 1) return 0;
  const std::size_t size = record_bytes(r.shards);
  if (bytes.size() < size) return 0;
  found.shards.resize(r.shards);
  std::memcpy(found.shards.data(), bytes.data() + sizeof(BlockRecord), r.shards * sizeof(Shard));
  found.bytes = 0;
  for (const Shard& shard : found.shards) {
    if (shard.length == 0 || shard.length > std::uint64_t{1} << 40) return 0;
    found.bytes += padded(shard.length);
  }
  return size;
}

template <class T>
std::uint64_t before_checksum(const T& t) {
  return checksum(&t, offsetof(T, checksum));
}

}  // namespace

Aligned aligned(std::uint64_t bytes) {
  void* p = std::aligned_alloc(kPage, padded(std::max<std::uint64_t>(bytes, 1)));
  if (!p) throw std::bad_alloc();
  std::memset(p, 0, padded(bytes));
  return Aligned(static_cast<std::byte*>(p));
}

std::uint64_t checksum(const void* data, std::size_t bytes) {
  return xxh3_64({static_cast<const std::uint8_t*>(data), bytes});
}

std::uint64_t combine(std::span<const Shard> shards) {
  Xxh3 hash;
  for (const Shard& s : shards)
    hash.update({reinterpret_cast<const std::uint8_t*>(&s.checksum), sizeof s.checksum});
  return hash.digest();
}

void seal(SegmentHeader& header) { header.checksum = before_checksum(header); }
void seal(Footer& footer) { footer.checksum = before_checksum(footer); }

void seal_group(std::byte* at, GroupHeader header, std::span<const std::byte> records) {
  const std::uint64_t bytes = group_header_bytes(records.size());
  header.magic = kGroupMagic;
  header.pages = static_cast<std::uint32_t>(bytes / kPage);
  header.checksum = 0;
  std::memcpy(at, &header, sizeof header);
  std::memcpy(at + sizeof header, records.data(), records.size());
  std::memset(at + sizeof header + records.size(), 0, bytes - sizeof header - records.size());
  header.checksum = checksum(at, bytes);
  std::memcpy(at, &header, sizeof header);
}

std::optional<SegmentHeader> parse_segment(const std::byte* page, std::uint32_t number, std::uint64_t bytes,
                                           const std::uint8_t* log_id) {
  SegmentHeader header;
  std::memcpy(&header, page, sizeof header);
  if (header.magic != kSegmentMagic || header.version != kVersion || header.number != number ||
      header.bytes != bytes || std::memcmp(header.log_id, log_id, sizeof header.log_id) != 0 ||
      header.checksum != before_checksum(header))
    return std::nullopt;
  return header;
}

std::optional<Footer> parse_footer(const std::byte* page, const SegmentHeader& header) {
  Footer footer;
  std::memcpy(&footer, page, sizeof footer);
  const std::uint64_t room = header.bytes - kPage;  // what the index must end before
  if (footer.magic != kFooterMagic || footer.epoch != header.epoch || footer.number != header.number ||
      footer.checksum != before_checksum(footer) || footer.index_offset % kPage != 0 || footer.end < kPage ||
      footer.end > footer.index_offset || footer.index_offset > room ||
      footer.index_bytes > room - footer.index_offset)
    return std::nullopt;
  return footer;
}

std::uint32_t group_pages(const std::byte* page, const SegmentHeader& header, std::uint64_t offset) {
  GroupHeader group;
  std::memcpy(&group, page, sizeof group);
  if (group.magic != kGroupMagic || group.epoch != header.epoch || group.offset != offset) return 0;
  return group.pages <= pages(header.bytes - offset) ? group.pages : 0;
}

std::optional<std::vector<Found>> parse_group(const std::byte* at, std::uint32_t page_count,
                                              const SegmentHeader& header, std::uint64_t offset) {
  const std::size_t bytes = page_count * kPage;
  std::vector<std::byte> copy(at, at + bytes);
  GroupHeader group;
  std::memcpy(&group, at, sizeof group);
  std::memset(copy.data() + offsetof(GroupHeader, checksum), 0, sizeof group.checksum);
  if (group.pages != page_count || group.checksum != checksum(copy.data(), bytes)) return std::nullopt;
  if (group.blocks == 0 || group.blocks > bytes / sizeof(BlockRecord)) return std::nullopt;
  std::vector<Found> blocks(group.blocks);
  std::span<const std::byte> rest{at + sizeof group, bytes - sizeof group};
  std::uint64_t where = offset + bytes;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t size = parse_record(rest, blocks[i]);
    if (size == 0 || blocks[i].bytes > header.bytes - where) return std::nullopt;
    rest = rest.subspan(size);
    blocks[i].offset = where;
    blocks[i].sequence = group.sequence + i;
    where += blocks[i].bytes;
  }
  if (where - offset - bytes != group.payload) return std::nullopt;
  return blocks;
}

std::optional<std::vector<Found>> parse_index(std::span<const std::byte> index, const Footer& footer) {
  if (index.size() != footer.index_bytes || checksum(index.data(), index.size()) != footer.index_checksum ||
      footer.blocks > index.size() / sizeof(BlockRecord))
    return std::nullopt;
  std::vector<Found> blocks(footer.blocks);
  std::uint64_t end = kPage;  // blocks lie one after the other, and none reaches into another
  for (Found& block : blocks) {
    IndexEntry entry;
    if (index.size() < sizeof entry) return std::nullopt;
    std::memcpy(&entry, index.data(), sizeof entry);
    const std::size_t size = parse_record(index.subspan(sizeof entry), block);
    if (size == 0) return std::nullopt;
    index = index.subspan(sizeof entry + size);
    block.offset = entry.offset;
    block.sequence = entry.sequence;
    if (block.offset % kPage != 0 || block.offset < end || block.offset > footer.end ||
        block.bytes > footer.end - block.offset)
      return std::nullopt;
    end = block.offset + block.bytes;
  }
  return index.empty() ? std::optional(std::move(blocks)) : std::nullopt;
}

std::string segment_name(std::uint32_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "segment-%08x", number);
  return name;
}

std::optional<std::uint32_t> segment_number(const std::string& file) {
  unsigned number = 0;
  if (file.size() != 16 || std::sscanf(file.c_str(), "segment-%8x", &number) != 1 ||
      segment_name(number) != file)
    return std::nullopt;
  return number;
}

bool our_file(const std::string& file) {
  if (file == "LOCK" || file == "MANIFEST" || file == "MANIFEST.new" || segment_number(file)) return true;
  return file.size() == 20 && file.ends_with(".new") && segment_number(file.substr(0, 16)).has_value();
}

}  // namespace kvarter::disk
