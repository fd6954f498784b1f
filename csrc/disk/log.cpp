// The log's thread: reap, decide, submit, verify. Only the deciding is done with the mutex held.
#include <algorithm>
#include <stdexcept>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

constexpr std::chrono::nanoseconds kShort = std::chrono::milliseconds(20), kLong = std::chrono::seconds(1);

}  // namespace

bool DiskLog::Impl::schedule() {
  if (closing_down) {
    const bool sealed = seal_segments();
    return sync_segments() || sealed;
  }
  bool moved = sweep();
  moved |= write_manifest();
  expire_reads();
  moved |= seal_segments();
  moved |= reclaim();
  const unsigned depth = std::max(1u, options.queue_depth);
  const bool writing = !queue.empty();
  const unsigned for_reads = writing && depth > 1 ? depth - std::max(1u, depth / 4) : depth;
  bool blocked = false;
  while (in_flight < depth) {
    const bool may_read = !reads.empty() && reads_in_flight < for_reads;
    const bool may_write = !queue.empty() && !blocked;
    if (!may_read && !may_write) break;
    read_last = may_read && !(may_write && read_last);
    if (read_last) {
      moved |= form_read();
    } else if (form_group()) {
      moved = true;
    } else {
      blocked = !queue.empty();
    }
  }
  if (opening + ready.size() < 2 && growable() > 0 && opening == 0 && !grow_wanted)
    grow_wanted = moved = true;
  moved |= sync_segments();
  settle_flushes();
  const bool waiting = outstanding > 0 || !reads.empty() || grow_wanted || opening > 0;
  if (blocked && !moved && !waiting && clock.now() >= failing_until) {
    // Nothing is under way that could make room.
    const WriteItem item = queue.front();
    queue.pop_front();
    refuse(item, Status::kRejected, DiskReason::kNoSpace);
    moved = true;
  }
  return moved;
}

bool DiskLog::Impl::step(std::chrono::nanoseconds wait) {
  arrived.clear();
  device->reap(arrived, wait);
  bool moved = !arrived.empty();
  std::vector<Op*> over;
  std::vector<Io> again;
  for (const IoDone& done : arrived) {
    Op& op = *ops[done.tag];
    if (advance(op, done.result)) {
      over.push_back(&op);
      continue;
    }
    Io rest = op.io;
    if (!op.rest.empty()) {
      rest.offset += op.moved;
      rest.vectors = op.rest.data();
      rest.count = static_cast<unsigned>(op.rest.size());
    }
    again.push_back(rest);
  }
  if (!again.empty()) device->submit(again);
  std::vector<Io> batch;
  std::vector<Op*> read;
  {
    const std::lock_guard lock(mutex);
    for (Op* op : over) {
      in_flight -= op->data;
      reads_in_flight -= op->kind == Op::Kind::kRead;
      if (op->kind == Op::Kind::kRead || op->kind == Op::Kind::kCleanRead) {
        read.push_back(op);
        continue;
      }
      --outstanding;
      finish(*op);
    }
    publish_done();
    moved |= schedule();
    batch.swap(submissions);
  }
  if (!batch.empty()) device->submit(batch);
  if (!read.empty()) {  // verified while the device has what comes next
    for (Op* op : read) verify(*op);
    const std::lock_guard lock(mutex);
    outstanding -= static_cast<unsigned>(read.size());
    for (Op* op : read) finish(*op);
  }
  moved |= grow();
  moved |= name_new_segments();
  return moved;
}

// How long nothing needs to happen by itself.
std::chrono::nanoseconds DiskLog::Impl::patience() {
  const std::lock_guard lock(mutex);
  const bool timed =
      !reads.empty() || !queue.empty() || !unsynced.empty() || manifest_wanted || !tickets.empty();
  return timed ? kShort : kLong;
}

DiskLog::Impl::~Impl() {
  stop = true;
  device->wake();
  if (thread.joinable()) thread.join();
  closing_down = true;
  if (active != kNone) {  // so that the next start has no tail to look through
    segments[active].state = SegmentState::kSealing;
    sealing.push_back(active);
    active = kNone;
  }
  step(std::chrono::nanoseconds(0));
  while (outstanding > 0) step(kShort);  // until then the device may touch slots
  for (const Segment& segment : segments)
    if (segment.file >= 0) device->close(segment.file);
  if (manifest_file >= 0) device->close(manifest_file);
}

DiskLog::DiskLog(const Options& options, std::unique_ptr<Device> device, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, std::move(device), clock)) {
  if (!options.background) return;
  impl_->thread = std::thread([x = impl_.get()] {
    bool moved = true;
    while (!x->stop) moved = x->step(moved ? std::chrono::nanoseconds(0) : x->patience());
  });
}

DiskLog::~DiskLog() = default;

bool DiskLog::step() { return impl_->step(std::chrono::nanoseconds(0)); }

}  // namespace kvarter
