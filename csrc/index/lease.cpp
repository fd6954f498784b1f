#include <algorithm>
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {
namespace {

constexpr std::size_t kAhead = 32;  // rows: enough misses under way to hide one
constexpr std::size_t kLanes = 16;  // links followed at the same time, since each waits for the one before it

template <class T>
void fetch(const T& there) {
  __builtin_prefetch(&there);
}

}  // namespace

// Appends the rows of blocks [first, first + count), or answers false when one is not resident. A chained
// block's ancestors are resident and linked to it (R7): after a look-up of the last block the links name the
// others, and only their keys remain to be compared. That reads each record where a look-up would also read a
// cell somewhere else, and knows early which record comes next.
bool Index::Impl::resident_rows(const Chain& chain, const GroupShape& shape, const Range& range,
                                std::vector<std::uint32_t>& rows) const {
  if (range.count == 0) return true;
  key_at(chain, shape, range.group, range.first + range.count - 1);  // throws before there is room for it all
  const std::size_t begin = rows.size();
  rows.resize(begin + range.count);
  std::uint32_t* const row = rows.data() + begin;
  const auto look_up = [&](std::uint64_t i) {
    row[i] = find(key_at(chain, shape, range.group, range.first + i));
    return row[i] != kNoRow && state(row[i]) == RowState::kResident;
  };
  const std::uint64_t lane = shape.chained ? range.count / kLanes + 1 : 1;
  for (std::uint64_t end = lane; end < range.count + lane; end += lane)
    if (!look_up(std::min(end, range.count) - 1)) return false;
  for (std::uint64_t left = lane - 1; left > 0; --left)
    for (std::uint64_t i = left; i < range.count; i += lane) {
      row[i - 1] = c.parent[row[i]];
      if (row[i - 1] == kNoRow) return false;
    }
  if (lane == 1) return true;
  std::uint64_t unit = (range.first / shape.subs + 1) * shape.unit_stride - 1;
  if (!look_up(0)) return false;  // and the chain names its first block
  auto sub = static_cast<std::uint32_t>(range.first % shape.subs);
  for (std::uint64_t i = 1; i < range.count; ++i) {
    if (i + 2 * kAhead < range.count) fetch(c.slot[row[i + 2 * kAhead]]);
    if (i + kAhead < range.count) {
      fetch(records[c.slot[row[i + kAhead]]].digest);
      fetch(records[c.slot[row[i + kAhead]]].offset);
      fetch(c.state[row[i + kAhead]]);
    }
    if (++sub == shape.subs) {
      sub = 0;
      unit += shape.unit_stride;
    }
    const Digest& digest = unit < chain.first_unit ? chain.parent : chain.digests[unit - chain.first_unit];
    const SlotRecord& slot = records[c.slot[row[i]]];
    if (state(row[i]) != RowState::kResident || slot.digest != digest || slot.sub != sub) return false;
  }
  return true;
}

Status Index::lease(const Chain& chain, std::span<const Range> ranges, LeaseKind kind, Owner owner,
                    std::uint64_t deadline, std::uint64_t bytes, LeaseId& id) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  const auto share = static_cast<std::uint64_t>(x.options.hold_share * static_cast<double>(x.pool.bytes()));
  if (kind == LeaseKind::kHold && x.held_bytes + bytes > share) return Status::kRejected;
  std::vector<std::uint32_t> rows;
  for (const Range& range : ranges) {
    const Namespace& ns = x.space(chain.ns, range.group);
    if (!ns.open) return Status::kNotFound;
    const GroupShape& shape = ns.groups[range.group];
    const bool deepest_only = kind == LeaseKind::kHold && shape.chained && range.count > 0;
    const Range wanted = deepest_only ? Range{range.group, range.first + range.count - 1, 1} : range;
    if (!x.resident_rows(chain, shape, wanted, rows)) return Status::kNotFound;
  }
  const std::uint64_t now = x.clock.now();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) {
      const std::uint32_t later = rows[i + kAhead];
      fetch(x.c.leases[later]);
      fetch(x.c.pins[later]);
      fetch(x.c.bytes[later]);
      fetch(x.c.last_use[later]);
      fetch(x.c.hits[later]);
    }
    const std::uint32_t row = rows[i];
    x.set_uses(kind == LeaseKind::kPin ? x.c.pins : x.c.leases, row, +1);
    if (kind != LeaseKind::kCopy) x.c.last_use[row] = now;
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
  const std::vector<std::uint32_t>& rows = lease->second.rows;
  std::size_t count = 0;
  for (const std::uint32_t row : rows) count += x.c.shards[row];
  slots.reserve(count);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) fetch(x.records[x.c.slot[rows[i + kAhead]]].offset);
    for (std::uint32_t at = x.c.slot[rows[i]]; at != kNoRow; at = x.c.next_shard[at]) {
      const SlotRecord& slot = x.records[at];
      slots.push_back({at, slot.arena, slot.offset, slot.length, slot.checksum, slot.generation()});
    }
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

std::optional<Lineage> Index::lineage(const Key& key) const {
  const std::lock_guard lock(impl_->mutex);
  const Impl& x = *impl_;
  const Namespace& ns = x.space(key.ns, key.group);
  const std::uint32_t row = ns.open ? x.find(key) : kNoRow;
  if (row == kNoRow || x.state(row) != RowState::kResident) return std::nullopt;
  const GroupShape& shape = ns.groups[key.group];
  const auto unit = [&](std::uint64_t block) { return (block / shape.subs + 1) * shape.unit_stride - 1; };
  Lineage found{0, x.c.depth[row], {}};
  if (!shape.chained) {
    found.first_unit = unit(found.block);
    found.digests = {key.digest};
    return found;
  }
  found.digests.resize(unit(found.block) + 1);
  for (std::uint32_t at = row; at != kNoRow; at = x.c.parent[at])
    found.digests[unit(x.c.depth[at])] = x.records[x.c.slot[at]].digest;
  return found;
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
