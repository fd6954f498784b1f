#include "disk/manifest.h"

#include <cstring>

namespace kvarter::disk {
namespace {

struct Slot {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t tombstones;
  std::uint64_t change;
  std::uint64_t segment_bytes;
  std::uint8_t log_id[16];
  std::uint64_t floor;
  std::uint64_t checksum;  // of the slot, this field 0
};
struct Tombstone {
  Digest ns;
  std::uint64_t sequence;
};
static_assert(sizeof(Slot) + kMaxTombstones * sizeof(Tombstone) <= kSlotBytes);

std::uint64_t slot_checksum(std::span<const std::byte> slot) {
  std::vector<std::byte> copy(slot.begin(), slot.end());
  std::memset(copy.data() + offsetof(Slot, checksum), 0, sizeof(std::uint64_t));
  return checksum(copy.data(), copy.size());
}

}  // namespace

void write_slot(const Manifest& m, std::byte* out) {
  Slot slot{kManifestMagic,
            kVersion,
            static_cast<std::uint32_t>(m.tombstones.size()),
            m.change,
            m.segment_bytes,
            {},
            m.floor,
            0};
  std::memcpy(slot.log_id, m.log_id, sizeof slot.log_id);
  std::memset(out, 0, kSlotBytes);
  std::byte* at = out + sizeof slot;
  for (const auto& [ns, sequence] : m.tombstones) {
    const Tombstone tombstone{ns, sequence};
    std::memcpy(at, &tombstone, sizeof tombstone);
    at += sizeof tombstone;
  }
  std::memcpy(out, &slot, sizeof slot);
  slot.checksum = slot_checksum({out, kSlotBytes});
  std::memcpy(out, &slot, sizeof slot);
}

ManifestRead read_manifest(std::span<const std::byte> file) {
  ManifestRead read;
  for (std::size_t at = 0; at < kManifestBytes; at += kSlotBytes) {
    Slot slot;
    if (file.size() < at + sizeof slot) break;
    std::memcpy(&slot, file.data() + at, sizeof slot);
    if (slot.magic != kManifestMagic) continue;
    read.ours = true;
    if (slot.version > kVersion) read.newer = slot.version;
    if (slot.version != kVersion || slot.tombstones > kMaxTombstones || file.size() < at + kSlotBytes)
      continue;
    if (slot.checksum != slot_checksum(file.subspan(at, kSlotBytes))) continue;
    if (read.manifest && read.manifest->change >= slot.change) continue;
    Manifest m{slot.change, slot.segment_bytes, {}, slot.floor, {}};
    std::memcpy(m.log_id, slot.log_id, sizeof m.log_id);
    for (std::uint32_t i = 0; i < slot.tombstones; ++i) {
      Tombstone tombstone;
      std::memcpy(&tombstone, file.data() + at + sizeof slot + i * sizeof tombstone, sizeof tombstone);
      m.tombstones[tombstone.ns] = tombstone.sequence;
    }
    read.manifest = std::move(m);
  }
  return read;
}

}  // namespace kvarter::disk
