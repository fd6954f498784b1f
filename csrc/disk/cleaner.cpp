// The second step of making room: the sealed segment with the fewest live bytes is read, and its live blocks
// are written again.
#include <algorithm>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

constexpr std::uint64_t kSpare = 2;      // segments ready or growable, below which room is made
constexpr int kEvictions = 256;          // in one step
constexpr unsigned kCleanReads = 2;      // in flight
constexpr double kWorthCleaning = 0.95;  // more live than this, and cleaning gains nothing

}  // namespace

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
  if (cleaning != kNone) return read_to_clean() || moved;
  if (available() >= kSpare) return moved;
  if (growth_stopped && clock.now() >= next_space_check) {
    growth_stopped = false;  // asked again
    return true;
  }
  const bool emptying =
      std::any_of(emptied.begin(), emptied.end(), [this](std::uint32_t n) { return !segments[n].bad; });
  if (opening > 0 || emptying || !sealing.empty()) {
    sync_demanded = true;
    return moved;
  }
  if (clock.now() < failing_until) return moved;
  const std::uint64_t room = (present - std::min(present, 1u)) * segment_bytes;  // one is the cleaner's
  const auto limit = static_cast<std::uint64_t>(static_cast<double>(room) * options.live_share);
  for (int i = 0; i < kEvictions && live_bytes > limit && evict_one() != kNone; ++i) moved = true;
  if (live_bytes > limit && moved) return true;
  if (!emptied.empty() && moved) return true;
  std::uint32_t victim = emptiest();
  if (victim == kNone) {  // or all have been tried, and could not be written elsewhere
    for (Segment& segment : segments) segment.hopeless = false;
    return moved;
  }
  const std::uint64_t most =
      std::min(clean_budget, static_cast<std::uint64_t>(static_cast<double>(segment_bytes) * kWorthCleaning));
  const auto cheap = [&](std::uint32_t n) {
    return segments[n].state == SegmentState::kSealed && !segments[n].hopeless && segments[n].live <= most;
  };
  // Past the cleaner's share, evicting goes on until some segment has become cheap enough.
  for (int i = 0; i < kEvictions && !cheap(victim); ++i) {
    const std::uint32_t from = evict_one();
    if (from == kNone) {  // only what is leased, or leaned on by what is queued, is left
      if (segments[victim].live >
          static_cast<std::uint64_t>(static_cast<double>(segment_bytes) * kWorthCleaning))
        return moved;
      break;
    }
    moved = true;
    if (cheap(from)) victim = from;
  }
  if (moved && !cheap(victim)) return true;
  // What would be written again only to be the next to go, goes now.
  for (std::uint32_t next = next_victim(); next != kNone && rows[next].segment == victim;
       next = next_victim())
    evict_one();
  if (segments[victim].live == 0) return true;  // recycled as it is
  const std::uint64_t left = active == kNone ? 0 : segment_bytes - segments[active].write_at;
  if (ready.empty() &&
      segments[victim].live > left / 2) {  // nowhere to write to: no more files, or all were full
    const std::vector<std::uint32_t> there = segments[victim].rows;
    for (const std::uint32_t number : there)
      if (rows[number].state == RowState::kResident && rows[number].segment == victim)
        moved |= drop_unleased(number);
    return moved;
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
      if (op && (offset != end || end + bytes - begin > group_bytes)) break;
      if (!op) {
        op = &make_op(Op::Kind::kCleanRead, cleaning);
        begin = end = offset;
      }
      row.moving = true;
      op->reads.push_back(
          {number, row.generation, cleaning, offset, &layout(row), row.checksum, 0, 0, 0, nullptr});
      end += bytes;
    }
    if (!op) break;
    op->clean = std::make_shared<CleanBuffer>();
    op->clean->memory = aligned(end - begin);
    std::byte* at = op->clean->memory.get();
    for (const ReadItem& item : op->reads)
      for (const std::uint64_t length : item.layout->lengths) {
        op->clean->spans.push_back({at, length, 0});
        at += padded(length);
      }
    const Span* spans = op->clean->spans.data();
    for (ReadItem& item : op->reads) item.spans = std::exchange(spans, spans + item.layout->lengths.size());
    op->vectors.push_back({op->clean->memory.get(), end - begin});
    ++clean_reads;
    ++segment.readers;
    submit(*op, IoOp::kRead, segment.file, begin);
    moved = true;
  }
  if (clean_reads == 0 && clean_writes == 0 && cleaned.empty() && clean_at >= segment.rows.size())
    end_cleaning();
  return moved || cleaning == kNone;
}

void DiskLog::Impl::finish_clean_read(Op& op) {
  --segments[op.segment].readers;
  --clean_reads;
  if (op.error) ++counts.io_errors;
  for (std::size_t i = 0; i < op.checksums.size(); ++i) op.clean->spans[i].checksum = op.checksums[i];
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const ReadItem& item = op.reads[i];
    Row& row = rows[item.row];
    if (row.generation != item.generation) continue;
    if (op.verdicts[i] == Status::kOk) {
      cleaned.push_back({item.row, item.generation, 0, 0, item.spans, 0, op.clean});
      cleaned_bytes += item.layout->bytes;
    } else {
      row.moving = false;
      drop(item.row, op.error ? DiskReason::kReadFailed : DiskReason::kCorrupt);
    }
  }
}

// Writes what was read, in groups as large as they may be: many small ones could need more than a segment.
bool DiskLog::Impl::place_cleaned() {
  const bool all_read = clean_reads == 0 && clean_at >= segments[cleaning].rows.size();
  bool moved = false;
  while (!cleaned.empty() && in_flight < options.queue_depth && (all_read || cleaned_bytes >= group_bytes)) {
    const WriteItem item = cleaned.front();
    Row& row = rows[item.row];
    const bool there = row.generation == item.generation;
    if (there && spaces[row.ns].closed) row.moving = false;
    Op* group = nullptr;
    if (there && row.moving) {
      group = make_group(cleaned, true);
      if (!group && (opening > 0 || !ready.empty())) return moved;
    }
    moved = true;
    if (group) {
      group->cleaning = true;
      ++clean_writes;
      for (const std::uint64_t bytes : group->sizes) cleaned_bytes -= std::min(cleaned_bytes, bytes);
      continue;
    }
    // It is gone; or it found no room, since what is packed anew can need more headers than before.
    cleaned.pop_front();
    if (there && row.moving && !drop_unleased(item.row)) row.moving = false;
  }
  if (cleaned.empty()) cleaned_bytes = 0;
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
