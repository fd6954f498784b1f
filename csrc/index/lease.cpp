#include <algorithm>
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {

Status Index::lease(const Chain& chain, std::span<const Range> ranges, LeaseKind kind, Owner owner,
                    std::uint64_t deadline, std::uint64_t bytes, LeaseId& id) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  const auto share = static_cast<std::uint64_t>(x.options.hold_share * static_cast<double>(x.pool.bytes()));
  if (kind == LeaseKind::kHold && x.held_bytes + bytes > share) return Status::kRejected;
  std::vector<std::uint32_t> rows;
  for (const Range& range : ranges) {
    const Namespace& ns = x.space(chain.ns, range.group);
    if (ns.closed) return Status::kNotFound;
    const GroupShape& shape = ns.groups[range.group];
    const bool deepest_only = kind == LeaseKind::kHold && shape.chained;
    for (std::uint64_t i = deepest_only && range.count > 0 ? range.count - 1 : 0; i < range.count; ++i) {
      const std::uint32_t row = x.find(x.key_at(chain, shape, range.group, range.first + i));
      if (row == kNoRow || x.state(row) != RowState::kResident) return Status::kNotFound;
      rows.push_back(row);
    }
  }
  const std::uint64_t now = x.clock.now();
  for (const std::uint32_t row : rows) {
    x.set_uses(kind == LeaseKind::kPin ? x.c.pins : x.c.leases, row, +1);
    x.c.last_use[row] = now;
    if (kind == LeaseKind::kRead) ++x.c.hits[row];
  }
  if (kind == LeaseKind::kHold) x.held_bytes += bytes;
  if (kind == LeaseKind::kRead) {
    x.counts.leased += rows.size();
    x.counts.leased_now += rows.size();
  }
  id = x.next_lease++;
  x.leases.emplace(id, Lease{kind, owner, deadline, bytes, std::move(rows)});
  return Status::kOk;
}

std::vector<Slot> Index::slots(LeaseId id) const {
  const std::lock_guard lock(impl_->mutex);
  const auto lease = impl_->leases.find(id);
  std::vector<Slot> slots;
  if (lease == impl_->leases.end()) return slots;
  const Impl& x = *impl_;
  for (const std::uint32_t row : lease->second.rows)
    for (std::uint32_t at = x.c.slot[row]; at != kNoRow; at = x.c.next_shard[at]) {
      const SlotRecord& slot = x.records[at];
      slots.push_back({at, slot.arena, slot.offset, slot.length, slot.checksum, slot.generation()});
    }
  return slots;
}

bool Index::release(LeaseId id, Outcome outcome) {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->leases.contains(id)) return false;
  impl_->end_lease(id, outcome);
  return true;
}

void Index::Impl::end_lease(LeaseId id, Outcome outcome) {
  const auto node = leases.extract(id);
  const Lease& lease = node.mapped();
  for (const std::uint32_t row : lease.rows) {
    set_uses(lease.kind == LeaseKind::kPin ? c.pins : c.leases, row, -1);
    if (state(row) == RowState::kResident)
      offer_victim(row);
    else if (c.leases[row] == 0 && c.pins[row] == 0)
      free_entry(row);
  }
  if (lease.kind == LeaseKind::kHold) held_bytes -= lease.bytes;
  if (lease.kind != LeaseKind::kRead) return;
  counts.leased_now -= lease.rows.size();
  switch (outcome) {
    case Outcome::kLoaded:
      counts.loaded += lease.rows.size();
      counts.loaded_bytes += lease.bytes;
      break;
    case Outcome::kFailed:
      counts.load_failed += lease.rows.size();
      break;
    case Outcome::kUnused:
      counts.load_unused += lease.rows.size();
      break;
    case Outcome::kExpired:
      counts.load_expired += lease.rows.size();
      break;
  }
}

void Index::drop_corrupt(LeaseId id, std::span<const std::uint32_t> positions) {
  const std::lock_guard lock(impl_->mutex);
  const auto lease = impl_->leases.find(id);
  if (lease == impl_->leases.end()) return;
  for (const std::uint32_t position : positions) {
    if (position >= lease->second.rows.size())
      throw std::invalid_argument("position " + std::to_string(position) + " of a lease of " +
                                  std::to_string(lease->second.rows.size()) + " blocks");
    const std::uint32_t row = lease->second.rows[position];
    if (impl_->state(row) == RowState::kResident)
      impl_->drop_subtree(row, Reason::kCorrupt, Reason::kOrphaned);
  }
}

}  // namespace kvarter
