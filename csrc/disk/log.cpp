// The log's thread: reap, verify, decide, submit. Only the deciding is done with the mutex held.
#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

constexpr int kMaxStalls = 16;  // transfers of less than a page in a row, after which it is an error
constexpr std::chrono::nanoseconds kShort = std::chrono::milliseconds(20), kLong = std::chrono::seconds(1);

}  // namespace

Op& DiskLog::Impl::make_op(Op::Kind kind, std::uint32_t segment) {
  if (free_ops.empty()) {
    free_ops.push_back(static_cast<std::uint32_t>(ops.size()));
    ops.push_back(std::make_unique<Op>());
    ops.back()->io.tag = free_ops.back();
  }
  Op& op = *ops[free_ops.back()];
  free_ops.pop_back();
  op.kind = kind;
  op.segment = segment;
  return op;
}

void DiskLog::Impl::submit(Op& op, IoOp what, int file, std::uint64_t offset) {
  op.expected = 0;
  for (const iovec& vector : op.vectors) op.expected += vector.iov_len;
  op.io.op = what;
  op.io.file = file;
  op.io.offset = offset;
  op.io.vectors = op.vectors.data();
  op.io.count = static_cast<unsigned>(op.vectors.size());
  op.data = op.kind == Op::Kind::kGroup || op.kind == Op::Kind::kRead || op.kind == Op::Kind::kCleanRead;
  if (op.data) ++in_flight;
  if (op.kind == Op::Kind::kRead) ++reads_in_flight;
  ++outstanding;
  submissions.push_back(op.io);
}

void DiskLog::Impl::release(Op& op) {
  const auto tag = static_cast<std::uint32_t>(op.io.tag);
  op.vectors.clear();
  op.rest.clear();
  op.writes.clear();
  op.reads.clear();
  op.verdicts.clear();
  op.checksums.clear();
  op.index.clear();
  op.cuts.clear();
  op.sizes.clear();
  op.buffer.reset();
  op.clean.reset();
  op.moved = op.sequence = 0;
  op.error = op.stalls = 0;
  op.finished = op.cleaning = false;
  free_ops.push_back(tag);
}

// True when the operation is over; false when what is left of it has to be submitted.
bool DiskLog::Impl::advance(Op& op, std::int64_t result) {
  if (result < 0) {
    if ((result == -EINTR || result == -EAGAIN) && ++op.stalls < kMaxStalls) return false;
    op.error = static_cast<int>(-result);
    return true;
  }
  if (op.io.op == IoOp::kSync) return true;
  const std::uint64_t before = op.moved;
  op.moved += static_cast<std::uint64_t>(result);
  if (op.moved >= op.expected) return true;
  op.moved = op.moved / kPage * kPage;  // O_DIRECT goes on at a page
  op.stalls = op.moved > before ? 0 : op.stalls + 1;
  if (result == 0 || op.stalls >= kMaxStalls) {
    op.error = EIO;
    return true;
  }
  op.rest.clear();
  std::uint64_t skip = op.moved;
  for (const iovec& vector : op.vectors) {
    const std::uint64_t cut = std::min<std::uint64_t>(skip, vector.iov_len);
    skip -= cut;
    if (cut < vector.iov_len)
      op.rest.push_back({static_cast<std::byte*>(vector.iov_base) + cut, vector.iov_len - cut});
  }
  return false;
}

void DiskLog::Impl::finish(Op& op) {
  switch (op.kind) {
    case Op::Kind::kGroup:
      op.finished = true;  // published in its turn
      return;
    case Op::Kind::kCleanRead:
      finish_clean_read(op);
      break;
    case Op::Kind::kRead:
      finish_reads(op);
      break;
    case Op::Kind::kHeader:
    case Op::Kind::kHeaderSync:
      finish_header(op);
      break;
    case Op::Kind::kSeal:
      finish_seal(op);
      break;
    case Op::Kind::kSync:
      finish_sync(op);
      break;
    case Op::Kind::kManifest:
    case Op::Kind::kManifestSync:
      finish_manifest(op);
      break;
  }
  release(op);
}

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
  for (Op* op : over)
    if (op->kind == Op::Kind::kRead || op->kind == Op::Kind::kCleanRead) verify(*op);
  std::vector<Io> batch;
  {
    const std::lock_guard lock(mutex);
    for (Op* op : over) {
      --outstanding;
      in_flight -= op->data;
      reads_in_flight -= op->kind == Op::Kind::kRead;
      finish(*op);
    }
    publish_done();
    moved |= schedule();
    batch.swap(submissions);
  }
  if (!batch.empty()) device->submit(batch);
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
