// What makes blocks durable: syncs, and the index that seals a segment, which never arrives before its
// blocks.
#include <algorithm>
#include <cstring>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

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
    if (!segment.index.empty())  // what a vector of nothing points at is nothing
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
    unsynced_bytes -= unsynced.front().bytes;
    unsynced.pop_front();
  }
  if (unsynced.empty()) durable = published;
}

}  // namespace kvarter
