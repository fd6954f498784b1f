// Two steps. Evict: the block used least recently of those that nothing leans on leaves the index, and its bytes
// are dead. Clean: the sealed segment with the fewest live bytes is read, and its live blocks are written again.
#include <algorithm>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

constexpr std::uint64_t kSpare = 2;        // segments ready or growable, below which room is made
constexpr int kEvictions = 256;            // in one step
constexpr unsigned kCleanReads = 2;        // in flight
constexpr double kWorthCleaning = 0.95;    // more live than this, and cleaning gains nothing

}  // namespace

bool DiskLog::Impl::Victim::operator<(const Victim& other) const {
  if (last_use != other.last_use) return last_use > other.last_use;
  if (above != other.above) return other.above;
  return depth < other.depth;
}

bool DiskLog::Impl::evictable(const Row& row) const {
  return row.state == RowState::kResident && row.child == kNone && row.leases == 0;
}

void DiskLog::Impl::candidate(std::uint32_t number) {
  Row& row = rows[number];
  if (row.candidate || !evictable(row)) return;
  row.candidate = true;
  victims.push_back({row.last_use, number, row.generation, row.depth, row.above});
  std::push_heap(victims.begin(), victims.end());
}

bool DiskLog::Impl::evict_one() {
  while (!victims.empty()) {
    std::pop_heap(victims.begin(), victims.end());
    const Victim victim = victims.back();
    victims.pop_back();
    Row& row = rows[victim.row];
    if (row.generation != victim.generation) continue;
    row.candidate = false;
    if (!evictable(row)) continue;  // it is offered again when that ends
    if (row.last_use != victim.last_use || row.above != victim.above) {
      candidate(victim.row);
      continue;
    }
    drop_alone(victim.row, DiskReason::kEvicted);
    return true;
  }
  return false;
}

std::uint32_t DiskLog::Impl::emptiest() const {
  std::uint32_t best = kNone;
  for (std::uint32_t number = 0; number < segments.size(); ++number) {
    const Segment& segment = segments[number];
    if (segment.state != SegmentState::kSealed || segment.hopeless) continue;
    if (best == kNone || segment.live < segments[best].live) best = number;
  }
  return best;
}

// Makes room when there is little. False when there is nothing to do, or nothing but waiting for the device.
bool DiskLog::Impl::reclaim() {
  bool moved = recycle();
  if (available() >= kSpare) return moved;
  if (growth_stopped && clock.now() >= next_space_check) {
    growth_stopped = false;  // asked again
    return true;
  }
  if (cleaning != kNone) return read_to_clean() || moved;
  const bool emptying =
      std::any_of(emptied.begin(), emptied.end(), [this](std::uint32_t n) { return !segments[n].bad; });
  if (opening > 0 || emptying || !sealing.empty()) {
    sync_demanded = true;
    return moved;
  }
  if (clock.now() < failing_until) return moved;
  const std::uint64_t room = (present - std::min(present, 1u)) * segment_bytes;  // one is the cleaner's
  const auto limit = static_cast<std::uint64_t>(static_cast<double>(room) * options.live_share);
  for (int i = 0; i < kEvictions && live_bytes > limit && evict_one(); ++i) moved = true;
  if (live_bytes > limit && moved) return true;
  if (!emptied.empty() && moved) return true;
  const std::uint32_t victim = emptiest();
  if (victim == kNone) {  // or all have been tried, and could not be written elsewhere
    for (Segment& segment : segments) segment.hopeless = false;
    return moved;
  }
  const auto most = static_cast<std::uint64_t>(static_cast<double>(segment_bytes) * kWorthCleaning);
  if (segments[victim].live > std::min(clean_budget, most)) {
    int evictions = 0;
    while (evictions < kEvictions && segments[victim].live > std::min(clean_budget, most) && evict_one())
      ++evictions;
    if (evictions > 0) return true;
    if (segments[victim].live > most) return moved;
  }
  const std::uint64_t left = active == kNone ? 0 : segment_bytes - segments[active].write_at;
  if (ready.empty() && segments[victim].live > left / 2) {  // nowhere to write to: no more files, or all were full
    const std::vector<std::uint32_t> there = segments[victim].rows;
    for (const std::uint32_t number : there)
      if (rows[number].state == RowState::kResident && rows[number].segment == victim)
        drop(number, DiskReason::kEvicted, DiskReason::kEvicted);
    return true;
  }
  clean_budget -= std::min(clean_budget, segments[victim].live);
  cleaning = victim;
  clean_at = 0;
  return true;
}

bool DiskLog::Impl::read_to_clean() {
  bool moved = place_cleaned();
  Segment& segment = segments[cleaning];
  while (clean_reads < kCleanReads && in_flight < options.queue_depth && clean_at < segment.rows.size()) {
    std::uint64_t begin = 0, end = 0;
    Op* op = nullptr;
    for (; clean_at < segment.rows.size(); ++clean_at) {
      const std::uint32_t number = segment.rows[clean_at];
      Row& row = rows[number];
      if (row.state != RowState::kResident || row.segment != cleaning || row.moving) continue;
      const std::uint64_t offset = row.page * kPage, bytes = bytes_of(row);
      if (op && (offset != end || end + bytes - begin > kGroupBytes)) break;
      if (!op) {
        op = &make_op(Op::Kind::kCleanRead, cleaning);
        begin = end = offset;
      }
      row.moving = true;
      op->reads.push_back({number, row.generation, cleaning, offset, &layout(row), row.checksum, 0, 0, 0, nullptr});
      end += bytes;
    }
    if (!op) break;
    op->buffer = aligned(end - begin);
    std::uint64_t at = 0;
    std::size_t shards = 0;
    for (const ReadItem& item : op->reads) shards += item.layout->lengths.size();
    op->own.reserve(shards);
    for (ReadItem& item : op->reads) {
      item.spans = op->own.data() + op->own.size();
      for (const std::uint64_t length : item.layout->lengths) {
        op->own.push_back({op->buffer.get() + at, length, 0});
        at += padded(length);
      }
    }
    op->vectors.push_back({op->buffer.get(), end - begin});
    ++clean_reads;
    ++segment.readers;
    submit(*op, IoOp::kRead, segment.file, begin);
    moved = true;
  }
  if (clean_reads == 0 && clean_writes == 0 && clean_at >= segment.rows.size()) end_cleaning();
  return moved || cleaning == kNone;
}

void DiskLog::Impl::finish_clean_read(Op& op) {
  --segments[op.segment].readers;
  if (op.error) ++counts.io_errors;
  cleaned.push_back(&op);
  std::size_t span = 0;
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const ReadItem& item = op.reads[i];
    Row& row = rows[item.row];
    const bool there = row.generation == item.generation;
    for (std::size_t s = 0; s < item.layout->lengths.size(); ++s, ++span)
      op.own[span].checksum = op.checksums[span];
    if (!there) continue;
    if (op.verdicts[i] == Status::kOk) {
      op.pending.push_back({item.row, item.generation, 0, 0, item.spans, 0});
      continue;
    }
    row.moving = false;
    drop(item.row, op.error ? DiskReason::kReadFailed : DiskReason::kCorrupt);
  }
  place_cleaned();
}

// Writes what was read, in as many groups as it takes.
bool DiskLog::Impl::place_cleaned() {
  bool moved = false;
  while (!cleaned.empty()) {
    Op& source = *cleaned.front();
    while (!source.pending.empty()) {
      const WriteItem& item = source.pending.front();
      Row& row = rows[item.row];
      const bool there = row.generation == item.generation;
      if (there && spaces[row.ns].closed) row.moving = false;
      if (!there || !row.moving) {
        source.pending.pop_front();
        continue;
      }
      Op* const group = make_group(source.pending, true);
      if (!group) return moved;
      group->buffer = source.buffer;
      group->cleaning = true;
      ++clean_writes;
      moved = true;
    }
    cleaned.pop_front();
    --clean_reads;
    release(source);
    moved = true;
  }
  return moved;
}

void DiskLog::Impl::end_cleaning() {
  const std::uint32_t number = std::exchange(cleaning, kNone);
  Segment& segment = segments[number];
  ++counts.cleaned_segments;
  segment.hopeless = segment.live > 0;
  maybe_emptied(number);
}

}  // namespace kvarter
