// The life of a segment: opening -> ready -> active -> sealing -> sealed -> (emptied) -> opening. Its epoch
// is durable before its first record; it is recycled when nothing in it lives, nobody reads it, and what was
// moved out of it is durable.
#include <algorithm>
#include <cstring>
#include <random>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

std::uint64_t DiskLog::Impl::growable() const {
  return growth_stopped || present >= max_segments ? 0 : max_segments - present;
}

void DiskLog::Impl::open_segment(std::uint32_t number) {
  Segment& segment = segments[number];
  thread_local std::random_device entropy;
  segment.state = SegmentState::kOpening;
  segment.epoch = std::uint64_t{entropy()} << 32 | entropy();
  segment.write_at = kPage;
  segment.dead = segment.live = segment.reserved = segment.planned_index = 0;
  segment.overhead = kPage;
  segment.free = segment_bytes - kPage;
  segment.last_sequence = segment.synced = segment.wait_durable = segment.dirty_bytes = 0;
  segment.blocks = 0;
  segment.bad = segment.syncing = segment.submitted = segment.hopeless = false;
  segment.rows.clear();
  segment.index.clear();
  ++opening;

  Op& op = make_op(Op::Kind::kHeader, number);
  if (op.header_bytes < kPage) {
    op.header = aligned(kPage);
    op.header_bytes = kPage;
  }
  SegmentHeader header{kSegmentMagic, kVersion, number, segment.epoch, segment_bytes, {}, next_sequence, 0};
  std::memcpy(header.log_id, manifest.log_id, sizeof header.log_id);
  seal(header);
  std::memset(op.header.get(), 0, kPage);
  std::memcpy(op.header.get(), &header, sizeof header);
  op.vectors.push_back({op.header.get(), kPage});
  submit(op, IoOp::kWrite, segment.file, 0);
}

void DiskLog::Impl::finish_header(Op& op) {
  Segment& segment = segments[op.segment];
  if (op.error) {
    --opening;
    segment.state = SegmentState::kSealed;
    spoil(op.segment);
    maybe_emptied(op.segment);
    return;
  }
  if (op.kind == Op::Kind::kHeader) {
    submit(make_op(Op::Kind::kHeaderSync, op.segment), IoOp::kSync, segment.file, 0);
    return;
  }
  segment.first_sequence = ~std::uint64_t{0};  // what it held is overwritten for good
  if (segment.fresh) {
    segment.state = SegmentState::kNaming;
    return;
  }
  --opening;
  segment.state = SegmentState::kReady;
  ready.push_back(op.segment);
}

bool DiskLog::Impl::fits(const Segment& segment, std::uint64_t group, std::uint64_t index) const {
  return segment.write_at + group + padded(segment.planned_index + index) + kPage <= segment_bytes;
}

std::uint32_t DiskLog::Impl::place(std::uint64_t group, std::uint64_t index, bool cleaning_) {
  if (!cleaning_ && cleaning != kNone && ready.empty()) return kNone;  // what room there is, is the cleaner's
  if (active != kNone && fits(segments[active], group, index)) return active;
  if (active != kNone) {
    segments[active].state = SegmentState::kSealing;
    sealing.push_back(active);
    active = kNone;
  }
  // The last one is the cleaner's: without it nothing could ever be cleaned.
  if (ready.empty() || (!cleaning_ && present > 1 && ready.size() + growable() < 2)) return kNone;
  active = ready.front();
  ready.erase(ready.begin());
  segments[active].state = SegmentState::kActive;
  return active;
}

void DiskLog::Impl::spoil(std::uint32_t number) {
  Segment& segment = segments[number];
  ++counts.io_errors;
  failing_until = clock.now() + kRetry;
  if (segment.bad) return;
  segment.bad = true;
  ++counts.bad_segments;
  segment.overhead += std::exchange(segment.free, 0);
  if (number == active) {
    segment.state = SegmentState::kSealing;
    sealing.push_back(number);
    active = kNone;
  }
}

void DiskLog::Impl::lessen(std::uint32_t number, std::uint64_t bytes) {
  segments[number].live -= bytes;
  segments[number].dead += bytes;
  maybe_emptied(number);
}

void DiskLog::Impl::maybe_emptied(std::uint32_t number) {
  const Segment& segment = segments[number];
  if (segment.state != SegmentState::kSealed || segment.live > 0 || segment.readers > 0) return;
  if (std::find(emptied.begin(), emptied.end(), number) == emptied.end()) emptied.push_back(number);
}

bool DiskLog::Impl::recycle() {
  bool moved = false;
  for (std::size_t i = 0; i < emptied.size();) {
    const std::uint32_t number = emptied[i];
    const Segment& segment = segments[number];
    const bool busy = segment.readers > 0 || segment.syncing || number == cleaning;
    if (busy || segment.wait_durable > durable || (segment.bad && clock.now() < failing_until)) {
      sync_demanded |= segment.wait_durable > durable;
      ++i;
      continue;
    }
    emptied.erase(emptied.begin() + static_cast<std::ptrdiff_t>(i));
    if (segment.bad) --counts.bad_segments;
    open_segment(number);
    moved = true;
  }
  return moved;
}

}  // namespace kvarter
