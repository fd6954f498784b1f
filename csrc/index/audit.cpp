// The recount. It believes nothing that the running account says, only the entries, the records and the
// holes.
#include <algorithm>

#include "index/impl.h"

namespace kvarter {
namespace {

struct Findings {
  std::vector<std::string> all;
  void equal(const std::string& what, std::uint64_t counted, std::uint64_t booked) {
    if (counted != booked)
      all.push_back(what + ": counted " + std::to_string(counted) + ", booked " + std::to_string(booked));
  }
  void require(bool holds, const std::string& what) {
    if (!holds) all.push_back(what);
  }
};

bool agrees(RowState state, const Flight* flight, std::size_t shard, SlotState slot) {
  if (state == RowState::kResident) return slot == SlotState::kCommitted;
  if (state == RowState::kDead) return slot == SlotState::kFree;
  if (state == RowState::kQuarantined) return slot == SlotState::kQuarantined;
  if (flight && flight->doom != Reason::kNone)
    return slot == SlotState::kWritten || slot == SlotState::kReserved;
  return slot == (flight && flight->writers[shard].ok ? SlotState::kWritten : SlotState::kReserved);
}

// Every granule of every arena belongs to exactly one hole or one slot.
void check_extents(std::vector<Extent> extents, const Pool& pool, Findings& findings) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.arena != b.arena ? a.arena < b.arena : a.offset < b.offset;
  });
  std::vector<std::uint64_t> ends(pool.arenas().size(), 0);
  for (const Extent& extent : extents) {
    const std::string where =
        "arena " + std::to_string(extent.arena) + " at " + std::to_string(extent.offset);
    if (extent.arena >= ends.size()) {
      findings.all.push_back(where + ": there is no such arena");
      continue;
    }
    findings.require(ends[extent.arena] == extent.offset, where + ": a gap or an overlap");
    ends[extent.arena] = extent.offset + extent.bytes;
  }
  for (std::size_t a = 0; a < ends.size(); ++a)
    findings.equal("bytes of arena " + std::to_string(a), ends[a], pool.arenas()[a].bytes());
}

}  // namespace

Ledger Index::Impl::ledger() const {
  Ledger ledger = book;
  ledger.free = pool.extents().free_bytes();
  ledger.capacity = pool.bytes() + records_file.bytes() + columns_file.bytes() + charged;
  ledger.overhead += charged;
  return ledger;
}

Ledger Index::ledger() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->ledger();
}

Counters Index::counters() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counts;
}

std::uint64_t Index::evictable() const {
  const std::lock_guard lock(impl_->mutex);
  const Impl& x = *impl_;
  std::vector<bool> kept(x.options.max_slots, false);
  std::uint64_t bytes = x.book.resident;
  for (std::uint32_t row = 0; row < x.options.max_slots; ++row) {
    const bool keeps = x.state(row) == RowState::kInFlight ||
                       (x.state(row) == RowState::kResident && (x.c.leases[row] || x.c.pins[row]));
    if (!keeps) continue;
    for (std::uint32_t up = x.c.parent[row]; up != kNoRow && !kept[up]; up = x.c.parent[up]) {
      kept[up] = true;
      if (x.state(up) == RowState::kResident && !x.c.leases[up] && !x.c.pins[up]) bytes -= x.c.bytes[up];
    }
  }
  return bytes;
}

std::vector<std::string> Index::audit() const {
  const std::lock_guard lock(impl_->mutex);
  const Impl& x = *impl_;
  const Ledger booked = x.ledger();
  Findings findings;
  Ledger counted;
  counted.overhead = x.records_file.bytes() + x.columns_file.bytes() + x.charged;
  std::vector<Extent> extents = x.pool.extents().holes();
  for (const Extent& hole : extents) counted.free += hole.bytes;

  std::uint64_t rows = 0, slots = 0, in_table = 0, resident = 0, in_flight = 0, children = 0;
  std::vector<std::uint64_t> by_namespace(kMaxNamespaces, 0), bytes_of(kMaxNamespaces, 0);
  for (std::uint32_t row = 0; row < x.options.max_slots; ++row) {
    const RowState state = x.state(row);
    if (state == RowState::kFree) continue;
    const std::string who = "entry " + std::to_string(row);
    ++rows;
    ++by_namespace[x.c.ns[row]];
    const auto found = x.flights.find(row);
    const Flight* flight = found == x.flights.end() ? nullptr : &found->second;
    const bool must_fly = state == RowState::kInFlight || state == RowState::kQuarantined;
    findings.require((flight != nullptr) == must_fly, who + ": flight and state disagree");
    std::uint64_t bytes = 0;
    std::size_t shard = 0;
    for (std::uint32_t at = x.c.slot[row]; at != kNoRow; at = x.c.next_shard[at], ++shard) {
      const SlotRecord& slot = x.records[at];
      ++slots;
      bytes += slot.length;
      extents.push_back({slot.arena, slot.offset, rounded(slot.length)});
      counted.overhead += rounded(slot.length) - slot.length;
      const std::uint32_t next = x.pool.extents().after(at);
      findings.require(next == kNoSlot || (x.records[next].arena == slot.arena &&
                                           x.records[next].offset >= slot.offset + rounded(slot.length) &&
                                           x.pool.extents().before(next) == at),
                       who + ": its slot and the next one are out of order");
      findings.require(agrees(state, flight, shard, slot.state()), who + ": its record is in another state");
    }
    findings.equal(who + ": shards", shard, x.c.shards[row]);
    findings.equal(who + ": bytes", bytes, x.c.bytes[row]);
    bytes_of[x.c.ns[row]] += bytes;
    const bool visible = state == RowState::kResident ||
                         (state == RowState::kInFlight && flight && flight->doom == Reason::kNone);
    if (visible) {
      ++in_table;
      findings.require(x.find(x.key_of(row)) == row, who + ": not found under its key");
      const std::uint32_t parent = x.c.parent[row];
      const bool chained = x.namespace_records[x.c.ns[row]].chained >> x.c.group[row] & 1;
      findings.require((chained && x.c.depth[row] > 0) == (parent != kNoRow),
                       who + ": parent missing or not wanted");
      if (parent != kNoRow) {
        ++children;
        const bool above = x.state(parent) == RowState::kResident ||
                           (state == RowState::kInFlight && x.state(parent) == RowState::kInFlight);
        findings.require(above, who + ": resident without its parent");
        findings.require(x.c.depth[parent] + 1 == x.c.depth[row],
                         who + ": its parent is not the block before it");
      }
    }
    switch (state) {
      case RowState::kInFlight:
        counted.reserved += bytes;
        in_flight += visible;
        break;
      case RowState::kQuarantined:
        counted.quarantined += bytes;
        break;
      case RowState::kDead:
        counted.dead += bytes;
        break;
      default:
        ++resident;
        (x.c.leases[row] ? counted.leased : x.c.pins[row] ? counted.pinned : counted.resident) += bytes;
        findings.require(!x.evictable(row) || x.c.queued[row] == x.namespaces[x.c.ns[row]].heap,
                         who + ": evictable, and no candidate for eviction");
    }
  }

  std::vector<std::uint32_t> uses(x.options.max_slots, 0), pins(x.options.max_slots, 0);
  std::uint64_t held = 0, leased_now = 0;
  for (const auto& [id, lease] : x.leases) {
    for (const std::uint32_t row : lease.rows) ++(lease.kind == LeaseKind::kPin ? pins : uses)[row];
    if (lease.kind == LeaseKind::kHold) held += lease.bytes;
    if (lease.kind == LeaseKind::kRead) leased_now += lease.rows.size();
  }
  std::uint64_t booked_children = 0;
  for (std::uint32_t row = 0; row < x.options.max_slots; ++row) {
    if (x.state(row) == RowState::kFree) continue;
    findings.equal("entry " + std::to_string(row) + ": leases", uses[row], x.c.leases[row]);
    findings.equal("entry " + std::to_string(row) + ": pins", pins[row], x.c.pins[row]);
    booked_children += x.c.children[row];
  }
  std::uint64_t cells = 0;
  for (std::uint64_t b = 0; b < x.c.buckets; ++b) cells += x.c.cells[b] != 0;
  for (std::uint32_t ns = 0; ns < kMaxNamespaces; ++ns) {
    findings.equal("entries of namespace " + std::to_string(ns), by_namespace[ns], x.namespaces[ns].rows);
    findings.equal("bytes of namespace " + std::to_string(ns), bytes_of[ns], x.namespaces[ns].bytes);
  }

  check_extents(std::move(extents), x.pool, findings);
  findings.equal("children", children, booked_children);
  findings.equal("table cells", in_table, cells);
  findings.equal("free entries", x.options.max_slots - rows, x.free_rows.size());
  findings.equal("free records", x.options.max_slots - slots, x.free_records.size());
  findings.equal("held bytes", held, x.held_bytes);
  findings.equal("free", counted.free, booked.free);
  findings.equal("reserved", counted.reserved, booked.reserved);
  findings.equal("leased", counted.leased, booked.leased);
  findings.equal("pinned", counted.pinned, booked.pinned);
  findings.equal("resident", counted.resident, booked.resident);
  findings.equal("quarantined", counted.quarantined, booked.quarantined);
  findings.equal("dead", counted.dead, booked.dead);
  findings.equal("overhead", counted.overhead, booked.overhead);
  findings.equal("sum of the ledger",
                 booked.free + booked.reserved + booked.leased + booked.pinned + booked.resident +
                     booked.quarantined + booked.dead + booked.overhead,
                 booked.capacity);

  const Counters& n = x.counts;
  const auto sum = [&](Reason first, Reason last) {
    std::uint64_t total = 0;
    for (int r = static_cast<int>(first); r <= static_cast<int>(last); ++r) total += n.reasons[r];
    return total;
  };
  findings.equal("resident blocks", resident, n.resident_blocks);
  findings.equal("blocks in flight", in_flight, n.in_flight);
  findings.equal("read-leased blocks", leased_now, n.leased_now);
  findings.equal("blocks offered", n.stored + n.in_flight + sum(Reason::kAlreadyResident, Reason::kOwnerDead),
                 n.offered);
  findings.equal("blocks stored", n.resident_blocks + sum(Reason::kEvicted, Reason::kOrphaned), n.stored);
  findings.equal("blocks leased", n.loaded + n.load_failed + n.load_unused + n.load_expired + n.leased_now,
                 n.leased);
  return std::move(findings.all);
}

}  // namespace kvarter
