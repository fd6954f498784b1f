#pragma once
// The manifest: which directory this is, and what must never come back. Two slots of one file, each whole in
// itself; a change is written to the one, synced, then written to the other, so that either alone tells it.
#include <map>
#include <optional>

#include "disk/format.h"

namespace kvarter::disk {

inline constexpr std::uint64_t kManifestMagic = 0x3146'4e4d'5456'4b01;
inline constexpr std::uint64_t kSlotBytes = 64u << 10;
inline constexpr std::uint64_t kManifestBytes = 2 * kSlotBytes;

struct Manifest {
  std::uint64_t change = 0;  // the slot with the higher one counts
  std::uint64_t segment_bytes = 0;
  std::uint8_t log_id[16] = {};
  std::uint64_t floor = 0;                     // no block with at most this sequence number is there
  std::map<Digest, std::uint64_t> tombstones;  // nor one of this namespace with at most that one
};
inline constexpr std::size_t kMaxTombstones = 1024;

// REQUIRES: at most kMaxTombstones; `slot` has kSlotBytes.
void write_slot(const Manifest& manifest, std::byte* slot);

struct ManifestRead {
  std::optional<Manifest> manifest;  // the newest that verifies
  bool ours = false;                 // a slot has our mark, damaged or not
  std::uint32_t newer = 0;           // the version of a format that we do not know
};
// `file` is what the file has, whatever its length.
ManifestRead read_manifest(std::span<const std::byte> file);

}  // namespace kvarter::disk
