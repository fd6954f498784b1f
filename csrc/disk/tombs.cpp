// Invalidation: gone from memory at once, and for good when both slots of the manifest say so.
#include <algorithm>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

constexpr std::size_t kSweep = 4096;  // rows looked at in one step

}  // namespace

DiskTicket DiskLog::invalidate(std::uint32_t ns) {
  DiskTicket id;
  {
    const std::lock_guard lock(impl_->mutex);
    Impl& x = *impl_;
    if (ns >= x.spaces.size())
      throw std::invalid_argument("namespace " + std::to_string(ns) + " is not open on disk");
    if (!x.make_ticket(1, {}, id)) return 0;
    Space& space = x.spaces[ns];
    if (!space.closed) {
      space.open = false;
      space.closed = true;
      x.numbers.erase(space.digest);
      x.closing.push_back(ns);
      // What is in flight has a lower number; what is queued is refused before it gets one.
      x.manifest.tombstones[space.digest] = x.next_sequence++;
      x.changed();
    }
    x.manifest_wanted = true;
    x.manifest_next.push_back(id);
  }
  impl_->device->wake();
  return id;
}

void DiskLog::Impl::drop_everything() {
  manifest.floor = next_sequence++;
  manifest.tombstones.clear();
  for (std::uint32_t row = 0; row < rows.size(); ++row) {
    if (rows[row].state == RowState::kResident) drop(row, DiskReason::kInvalidated, DiskReason::kInvalidated);
    if (rows[row].state == RowState::kQueued) doom(row, DiskReason::kNamespaceClosed);
  }
}

bool DiskLog::Impl::write_manifest() {
  if (manifest_stage != 0 || !manifest_wanted || clock.now() < failing_until) return false;
  manifest_wanted = false;
  manifest_now = std::exchange(manifest_next, {});
  // A tombstone has done its work when no segment holds anything as old.
  std::uint64_t oldest = next_sequence;
  for (const Segment& segment : segments) oldest = std::min(oldest, segment.first_sequence);
  std::erase_if(manifest.tombstones, [&](const auto& tombstone) { return tombstone.second < oldest; });
  if (manifest.tombstones.size() > kMaxTombstones) drop_everything();
  ++manifest.change;
  manifest_stage = 1;
  Op& op = make_op(Op::Kind::kManifest, kNone);
  op.buffer = aligned(kSlotBytes);
  write_slot(manifest, op.buffer.get());
  op.vectors.push_back({op.buffer.get(), kSlotBytes});
  submit(op, IoOp::kWrite, manifest_file, manifest.change % 2 * kSlotBytes);
  return true;
}

void DiskLog::Impl::finish_manifest(Op& op) {
  if (op.error) {
    ++counts.io_errors;
    manifest_stage = 0;
    manifest_wanted = true;  // it is tried again; who waits is told that nothing is certain
    failing_until = clock.now() + kRetry;
    for (const DiskTicket ticket : std::exchange(manifest_now, {}))
      answer(ticket, 0, Status::kRejected, DiskReason::kWriteFailed);
    return;
  }
  if (manifest_stage == 4) {
    manifest_stage = 0;
    for (const DiskTicket ticket : std::exchange(manifest_now, {}))
      answer(ticket, 0, Status::kOk, DiskReason::kNone);
    return;
  }
  ++manifest_stage;
  if (op.kind == Op::Kind::kManifest) {
    Op& sync = make_op(Op::Kind::kManifestSync, kNone);
    sync.buffer = op.buffer;
    submit(sync, IoOp::kSync, manifest_file, 0);
  } else {
    Op& other = make_op(Op::Kind::kManifest, kNone);
    other.buffer = op.buffer;
    other.vectors.push_back({other.buffer.get(), kSlotBytes});
    submit(other, IoOp::kWrite, manifest_file, (manifest.change + 1) % 2 * kSlotBytes);
  }
}

bool DiskLog::Impl::sweep() {
  if (closing.empty()) return false;
  const std::size_t end = std::min(rows.size(), sweep_at + kSweep);
  for (; sweep_at < end; ++sweep_at) {
    const auto number = static_cast<std::uint32_t>(sweep_at);
    if (rows[number].state == RowState::kFree || !spaces[rows[number].ns].closed) continue;
    if (rows[number].state == RowState::kResident)
      drop(number, DiskReason::kInvalidated, DiskReason::kInvalidated);
    else
      doom(number, DiskReason::kNamespaceClosed);
  }
  if (sweep_at == rows.size()) {
    sweep_at = 0;
    closing.clear();
  }
  return true;
}

}  // namespace kvarter
