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

bool DiskLog::Impl::seal_segments() {
  bool moved = false;
  for (std::size_t i = 0; i < sealing.size();) {
    const std::uint32_t number = sealing[i];
    Segment& segment = segments[number];
    if (segment.groups > 0 || segment.syncing || (segment.submitted && !segment.bad)) {
      ++i;
      continue;
    }
    if (segment.dirty_bytes > 0) {  // an index that arrives before its blocks would be a lie
      ++i;
      continue;
    }
    moved = true;
    if (segment.bad) {  // it stays unsealed: recovery looks at what is in it
      sealing.erase(sealing.begin() + static_cast<std::ptrdiff_t>(i));
      segment.state = SegmentState::kSealed;
      segment.index = {};
      segment.synced = ~std::uint64_t{0};
      maybe_emptied(number);
      continue;
    }
    segment.submitted = true;
    segment.overhead += std::exchange(segment.free, 0);
    Op& op = make_op(Op::Kind::kSeal, number);
    const std::uint64_t index_bytes = padded(segment.index.size());
    op.buffer = aligned(index_bytes + kPage);
    std::memcpy(op.buffer.get(), segment.index.data(), segment.index.size());
    Footer footer{kFooterMagic,
                  segment.epoch,
                  number,
                  segment.blocks,
                  segment_bytes - kPage - index_bytes,
                  segment.index.size(),
                  0,
                  segment.write_at,
                  0};
    footer.index_checksum = checksum(segment.index.data(), segment.index.size());
    seal(footer);
    std::memcpy(op.buffer.get() + index_bytes, &footer, sizeof footer);
    op.vectors.push_back({op.buffer.get(), index_bytes + kPage});
    submit(op, IoOp::kWrite, segment.file, footer.index_offset);
    ++i;
  }
  return moved;
}

void DiskLog::Impl::finish_seal(Op& op) {
  Segment& segment = segments[op.segment];
  if (op.error) {
    spoil(op.segment);
    segment.submitted = false;
    return;
  }
  counts.device_bytes += op.expected;
  segment.index = {};
  Op& sync = make_op(Op::Kind::kSync, op.segment);
  sync.sequence = segment.last_sequence;
  segment.syncing = true;
  submit(sync, IoOp::kSync, segment.file, 0);
}

bool DiskLog::Impl::sync_segments() {
  const bool demanded = sync_demanded || !flushes.empty();
  sync_demanded = false;
  bool moved = false;
  const auto consider = [&](std::uint32_t number) {
    Segment& segment = segments[number];
    if (segment.syncing || segment.submitted || segment.dirty_bytes == 0) return;
    if (!demanded && segment.state == SegmentState::kActive && segment.dirty_bytes < options.sync_bytes &&
        clock.now() - segment.dirty_since < options.sync_ns)
      return;
    Op& op = make_op(Op::Kind::kSync, number);
    op.sequence = segment.last_sequence;
    segment.dirty_bytes = 0;
    segment.syncing = true;
    submit(op, IoOp::kSync, segment.file, 0);
    moved = true;
  };
  if (active != kNone) consider(active);
  for (const std::uint32_t number : sealing) consider(number);
  return moved;
}

void DiskLog::Impl::finish_sync(Op& op) {
  Segment& segment = segments[op.segment];
  segment.syncing = false;
  ++counts.syncs;
  if (op.error) {
    // What the device has of it, nobody knows: it is not promised, and not served.
    spoil(op.segment);
    const std::vector<std::uint32_t> there = segment.rows;
    for (const std::uint32_t number : there) {
      const Row& row = rows[number];
      if (row.state == RowState::kResident && row.segment == op.segment && row.sequence > segment.synced)
        drop(number, DiskReason::kUnsynced);
    }
    segment.synced = ~std::uint64_t{0};
  } else {
    segment.synced = std::max(segment.synced, op.sequence);
  }
  if (segment.submitted) {
    sealing.erase(std::find(sealing.begin(), sealing.end(), op.segment));
    segment.state = SegmentState::kSealed;
    maybe_emptied(op.segment);
  }
  advance_durable();
}

void DiskLog::Impl::advance_durable() {
  while (!unsynced.empty() && segments[unsynced.front().segment].synced >= unsynced.front().last) {
    durable = unsynced.front().last;
    unsynced.pop_front();
  }
  if (unsynced.empty()) durable = published;
}

bool DiskLog::Impl::grow() {
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex);
    if (!grow_wanted) return false;
    grow_wanted = false;
    if (growth_stopped || present >= max_segments || closing_down) return false;
    while (number < segments.size() && segments[number].file >= 0) ++number;
  }
  int file = -1;
  if (device->free_bytes() >= segment_bytes + options.reserve_bytes)
    file = device->create(segment_name(number) + ".new", segment_bytes, options.sparse);
  const std::lock_guard lock(mutex);
  if (file < 0) {
    growth_stopped = true;
    next_space_check = clock.now() + kRetry;
    return true;
  }
  if (number == segments.size()) segments.emplace_back();
  segments[number] = Segment{};
  segments[number].file = file;
  segments[number].fresh = true;
  ++present;
  open_segment(number);
  return true;
}

bool DiskLog::Impl::name_new_segments() {
  std::vector<std::uint32_t> fresh;
  {
    const std::lock_guard lock(mutex);
    for (std::uint32_t number = 0; opening > 0 && number < segments.size(); ++number)
      if (segments[number].state == SegmentState::kNaming) fresh.push_back(number);
  }
  for (const std::uint32_t number : fresh) {
    const std::string name = segment_name(number);
    const bool named = device->rename(name + ".new", name) == 0 && device->sync_directory() == 0;
    const std::lock_guard lock(mutex);
    Segment& segment = segments[number];
    --opening;
    if (named) {
      segment.fresh = false;
      segment.state = SegmentState::kReady;
      ready.push_back(number);
      continue;
    }
    device->close(segment.file);
    segment = Segment{};
    --present;
    growth_stopped = true;
    next_space_check = clock.now() + kRetry;
    ++counts.io_errors;
  }
  return !fresh.empty();
}

}  // namespace kvarter
