// Start: whose directory this is, what is in it, and what of that may be served.
#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "disk/impl.h"
#include "disk/scan.h"

namespace kvarter {

using namespace disk;

namespace {

std::string number(std::uint64_t n) { return std::to_string(n); }

// Throws for a directory that is not a log's, or is a newer one's.
ManifestRead check_directory(Device& device, const std::vector<std::string>& files) {
  const auto foreign = std::find_if_not(files.begin(), files.end(), our_file);
  const bool has = std::find(files.begin(), files.end(), "MANIFEST") != files.end();
  const std::string where = "the directory " + device.path() + " ";
  if (!has) {
    for (const std::string& file : files)
      if (!our_file(file) || segment_number(file))
        throw std::runtime_error(where + "holds " + file +
                                 " and no manifest of a disk tier: found files of "
                                 "something else, expected an empty directory; choose another path");
    return {};
  }
  const int file = device.open("MANIFEST");
  if (file < 0)
    throw std::runtime_error(where + "has a manifest that cannot be read: " + std::strerror(-file));
  const ManifestRead read = read_manifest(read_file(device, file, kManifestBytes));
  device.close(file);
  if (read.newer)
    throw std::runtime_error(where + "has format version " + number(read.newer) + ", this build knows " +
                             number(kVersion) + "; use a newer kvarter, or another path");
  if (!read.ours)
    throw std::runtime_error(where + "has a MANIFEST that is not a disk tier's" +
                             (foreign == files.end() ? "" : " (and holds " + *foreign + ")") +
                             "; choose another path, or remove it");
  return read;
}

}  // namespace

DiskLog::Impl::Impl(const Options& options_, std::unique_ptr<Device> device_, const Clock& clock_)
    : options(options_), device(std::move(device_)), clock(clock_) {
  if (options.segment_bytes % kPage != 0 || options.segment_bytes < 16 * kPage ||
      options.segment_bytes > std::uint64_t{1} << 43)
    throw std::invalid_argument("segment_bytes is " + number(options.segment_bytes) +
                                ", expected a multiple of 4096 from 65536 on");
  if (options.queue_depth == 0 || options.block_bytes == 0 || !(options.clean_share >= 0) ||
      !(options.clean_share < 1) || !(options.live_share > 0) || !(options.live_share <= 1))
    throw std::invalid_argument(
        "queue_depth and block_bytes are above 0, clean_share in [0, 1), live_share in (0, 1]");
  recover();
  const std::string why = device->reason();
  device_text = device->name() + (why.empty() ? "" : " (" + why + ")");
}

void DiskLog::Impl::start_manifest(const std::vector<std::string>& files) {
  const ManifestRead read = check_directory(*device, files);
  const bool old = std::find(files.begin(), files.end(), "MANIFEST") != files.end();
  if (read.manifest) {
    manifest = *read.manifest;
  } else {  // new, or both slots are damaged: then nobody knows what was invalidated, and nothing is taken
            // over
    std::random_device entropy;
    for (std::uint8_t& byte : manifest.log_id) byte = static_cast<std::uint8_t>(entropy());
    manifest.segment_bytes = options.segment_bytes;
  }
  segment_bytes = manifest.segment_bytes;
  group_bytes = std::min(kGroupBytes, segment_bytes / 8);
  const std::uint64_t least = 2 * segment_bytes + kFixedBytes;
  if (options.capacity < least)
    throw std::invalid_argument("the disk tier's capacity is " + number(options.capacity) +
                                " bytes, expected at least 2 segments of " + number(segment_bytes) + " and " +
                                number(kFixedBytes) + ": " + number(least));
  const std::uint64_t blocks = options.capacity / options.block_bytes;
  const std::uint64_t memory = blocks * kIndexBytesPerBlock;
  if (options.max_index_bytes && memory > options.max_index_bytes)
    throw std::invalid_argument("the index of the disk tier would take capacity / block_bytes * " +
                                number(kIndexBytesPerBlock) + " = " + number(options.capacity) + " / " +
                                number(options.block_bytes) + " * " + number(kIndexBytesPerBlock) + " = " +
                                number(memory) + " bytes of memory, and " + number(options.max_index_bytes) +
                                " are allowed; lower the capacity, or allow more");
  max_segments = static_cast<std::uint32_t>((options.capacity - kFixedBytes) / segment_bytes);
  max_rows = options.max_index_bytes ? options.max_index_bytes / kIndexBytesPerBlock : kNone - 1;

  device->lock();
  ++manifest.change;
  const Aligned both = aligned(kManifestBytes);
  write_slot(manifest, both.get());
  write_slot(manifest, both.get() + kSlotBytes);
  Blocking blocking(*device);
  const std::string name = old ? "MANIFEST" : "MANIFEST.new";
  manifest_file = old ? device->open(name) : device->create(name, kManifestBytes, false);
  bool good = manifest_file >= 0;
  // An old one slot by slot, the older one first: the newer may be the only one that is whole.
  for (std::uint64_t i = 0; good && i < 2; ++i) {
    const std::uint64_t slot = (manifest.change + i) % 2 * kSlotBytes;
    good = blocking.write(manifest_file, slot, both.get() + slot, kSlotBytes) && blocking.sync(manifest_file);
  }
  if (good && !old) good = device->rename(name, "MANIFEST") == 0 && device->sync_directory() == 0;
  if (!good) throw std::runtime_error("the manifest in " + device->path() + " cannot be written");
}

void DiskLog::Impl::restore(std::uint32_t which, std::vector<Found>& blocks, bool sealed, std::uint64_t end,
                            std::vector<std::pair<std::uint32_t, Key>>& parents) {
  Segment& segment = segments[which];
  segment.state = SegmentState::kSealed;
  segment.write_at = end;
  segment.overhead = segment_bytes;
  if (!sealed) segment.index.clear();
  for (Found& block : blocks) {
    const BlockRecord& r = block.record;
    next_sequence = std::max(next_sequence, block.sequence + 1);
    segment.first_sequence = std::min(segment.first_sequence, block.sequence);
    segment.last_sequence = std::max(segment.last_sequence, block.sequence);
    segment.overhead -= block.bytes;
    segment.dead += block.bytes;
    if (!sealed) {  // to be sealed now
      const auto append = [&segment](const void* data, std::size_t bytes) {
        const auto* at = static_cast<const std::byte*>(data);
        segment.index.insert(segment.index.end(), at, at + bytes);
      };
      const IndexEntry entry{block.offset, block.sequence};
      append(&entry, sizeof entry);
      append(&r, sizeof r);
      append(block.shards.data(), block.shards.size() * sizeof(Shard));
      ++segment.blocks;
    }
    const auto tombstone = manifest.tombstones.find(r.ns);
    if (block.sequence <= manifest.floor ||
        (tombstone != manifest.tombstones.end() && block.sequence <= tombstone->second))
      continue;
    const Key key{number_of(r.ns), r.group, r.sub, r.digest};
    std::uint32_t at = find(key);
    if (at != kNone && rows[at].sequence >= block.sequence) continue;
    if (at != kNone) {
      lessen(rows[at].segment, bytes_of(rows[at]));
      live_bytes -= bytes_of(rows[at]);
    } else {
      at = make_row(key, kNone);
      if (at == kNone) continue;  // more than memory is allowed for
      ++counts.recovered;
      ++counts.resident_blocks;
    }
    Row& row = rows[at];
    std::vector<std::uint64_t> lengths;
    for (const Shard& shard : block.shards) lengths.push_back(shard.length);
    row.layout = layout_of(std::move(lengths));
    row.state = RowState::kResident;
    row.checksum = combine(block.shards);
    row.sequence = row.last_use = block.sequence;
    row.segment = which;
    row.page = static_cast<std::uint32_t>(block.offset / kPage);
    row.chained = r.chained;
    row.depth = r.depth;
    segment.rows.push_back(at);
    segment.live += block.bytes;
    segment.dead -= block.bytes;
    live_bytes += block.bytes;
    if (row.chained && row.depth > 0) parents.push_back({at, {key.ns, key.group, r.parent_sub, r.parent}});
  }
}

void DiskLog::Impl::recover() {
  const std::vector<std::string> files = device->list();
  start_manifest(files);
  next_sequence = manifest.floor + 1;
  for (const auto& [ns, sequence] : manifest.tombstones)
    next_sequence = std::max(next_sequence, sequence + 1);

  std::vector<std::pair<std::uint32_t, Key>> parents;
  std::vector<std::uint32_t> unsealed, empty;
  for (const std::string& name : files) {
    if (name.ends_with(".new")) device->remove(name);
    const auto which = segment_number(name);
    if (!which) continue;
    const int file = *which < (1u << 22) ? device->open(name) : -1;
    if (file < 0 || device->size(file) != static_cast<std::int64_t>(segment_bytes)) {
      // Cut short, grown, or unreadable: there is no telling what else is wrong with it.
      if (file >= 0) device->close(file);
      device->remove(name);
      continue;
    }
    if (*which >= segments.size()) segments.resize(*which + 1);
    segments[*which].file = file;
    segments[*which].overhead = segment_bytes;
    ++present;
    Scanned scanned = scan_segment(*device, file, *which, segment_bytes, manifest.log_id, false);
    restore(*which, scanned.blocks, scanned.sealed, scanned.end, parents);
    if (scanned.blocks.empty())
      empty.push_back(*which);
    else if (!scanned.sealed && scanned.end + padded(segments[*which].index.size()) + kPage <= segment_bytes)
      unsealed.push_back(*which);
  }
  // Whose parent is not there goes, and what leans on it. Depth must fit, so that no chain bites its tail.
  std::vector<std::uint32_t> orphans;
  for (const auto& [row, key] : parents) {
    if (rows[row].parent != kNone) continue;  // told twice, by two copies of the block
    const std::uint32_t parent = find(key);
    if (parent != kNone && rows[parent].chained && rows[parent].depth + 1 == rows[row].depth)
      link(row, parent);
    else
      orphans.push_back(row);
  }
  tick = next_sequence + 1;
  emptied.clear();
  for (const std::uint32_t row : orphans)
    if (rows[row].state == RowState::kResident && rows[row].parent == kNone && rows[row].depth > 0)
      drop(row, DiskReason::kOrphaned);
  for (std::uint32_t row = 0; row < rows.size(); ++row)
    if (rows[row].state == RowState::kResident) candidate(row);

  published = durable = next_sequence - 1;
  for (const std::uint32_t which : unsealed) {
    segments[which].state = SegmentState::kSealing;
    segments[which].synced = segments[which].last_sequence;
    sealing.push_back(which);
  }
  if (present > max_segments) shrink();
  emptied.clear();
  for (std::uint32_t which = 0; which < segments.size(); ++which) maybe_emptied(which);
  clean_budget = static_cast<std::uint64_t>(static_cast<double>(segment_bytes) * options.clean_share);
}

// The capacity is smaller than it was: files go, those with the fewest live bytes first.
void DiskLog::Impl::shrink() {
  while (present > max_segments) {
    std::uint32_t least = kNone;
    for (std::uint32_t i = 0; i < segments.size(); ++i)
      if (segments[i].state != SegmentState::kAbsent &&
          (least == kNone || segments[i].live < segments[least].live))
        least = i;
    const std::vector<std::uint32_t> there = segments[least].rows;
    for (const std::uint32_t row : there)
      if (rows[row].state == RowState::kResident && rows[row].segment == least)
        drop(row, DiskReason::kEvicted, DiskReason::kEvicted);
    device->close(segments[least].file);
    device->remove(segment_name(least));
    std::erase(sealing, least);
    segments[least] = Segment{};
    --present;
  }
  device->sync_directory();
}

}  // namespace kvarter
