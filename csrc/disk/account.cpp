// The ledger, and the recount: it believes only rows and segments.
#include <map>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

DiskLedger DiskLog::Impl::ledger() const {
  DiskLedger l;
  l.overhead = kFixedBytes;
  l.leased = leased;
  for (const Segment& segment : segments) {
    l.free += segment.free;
    l.reserved += segment.reserved;
    l.resident += segment.live;
    l.dead += segment.dead;
    l.overhead += segment.overhead;
  }
  l.resident -= leased;
  if (growth_stopped) {
    l.capacity = kFixedBytes + present * segment_bytes;
  } else {
    l.capacity = options.capacity;
    l.free += (max_segments - std::min(max_segments, present)) * segment_bytes;
    l.overhead += options.capacity - kFixedBytes - std::max(max_segments, present) * segment_bytes;
  }
  return l;
}

DiskLedger DiskLog::ledger() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->ledger();
}

DiskCounters DiskLog::counters() const {
  const std::lock_guard lock(impl_->mutex);
  DiskCounters n = impl_->counts;
  n.segments = impl_->present;
  n.last_sequence = impl_->published;
  n.durable_sequence = impl_->durable;
  n.undurable_bytes = impl_->unsynced_bytes;
  return n;
}

std::string DiskLog::device() const { return impl_->device_text; }

std::uint64_t DiskLog::segment_bytes() const { return impl_->segment_bytes; }

std::vector<std::string> DiskLog::audit() const {
  const std::lock_guard lock(impl_->mutex);
  const Impl& x = *impl_;
  std::vector<std::string> findings;
  const auto equal = [&](const std::string& what, std::uint64_t counted, std::uint64_t booked) {
    if (counted != booked)
      findings.push_back(what + ": counted " + std::to_string(counted) + ", booked " +
                         std::to_string(booked));
  };
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) findings.push_back(what);
  };

  std::vector<std::map<std::uint64_t, std::uint64_t>> extents(x.segments.size());
  std::uint64_t resident = 0, queued = 0, queued_bytes = 0, leased = 0, free = 0, live = 0;
  for (std::uint32_t number = 0; number < x.rows.size(); ++number) {
    const Row& row = x.rows[number];
    const std::string who = "row " + std::to_string(number);
    if (row.state == RowState::kFree) {
      ++free;
      continue;
    }
    require(x.find({row.ns, row.group, row.sub, row.digest}) == number, who + ": not found under its key");
    if (row.state != RowState::kResident) {
      ++queued;
      queued_bytes += x.bytes_of(row);
      continue;
    }
    ++resident;
    live += x.bytes_of(row);
    if (row.leases) leased += x.bytes_of(row);
    if (row.segment >= extents.size()) {
      findings.push_back(who + ": in no segment");
      continue;
    }
    require(extents[row.segment].emplace(row.page * kPage, x.bytes_of(row)).second,
            who + ": shares its place");
    const bool needs = row.chained && row.depth > 0;
    require(needs == (row.parent != kNone), who + ": parent missing or not wanted");
    if (row.parent != kNone) {
      const Row& parent = x.rows[row.parent];
      require(parent.state == RowState::kResident && parent.depth + 1 == row.depth && parent.ns == row.ns,
              who + ": resident without its parent");
    }
    require(!x.evictable(row) || row.candidate, who + ": evictable, and no candidate");
  }
  equal("resident blocks", resident, x.counts.resident_blocks);
  equal("queued blocks", queued, x.counts.queued);
  equal("queued bytes", queued_bytes, x.counts.queued_bytes);
  equal("leased bytes", leased, x.leased);
  equal("live bytes", live, x.live_bytes);
  equal("free rows", free, x.free_rows.size());
  equal("rows in the table", resident + queued, x.in_table);
  std::uint64_t unsynced = 0;
  for (const auto& group : x.unsynced) unsynced += group.bytes;
  equal("bytes that are not durable", unsynced, x.unsynced_bytes);

  std::uint64_t present = 0;
  for (std::size_t number = 0; number < x.segments.size(); ++number) {
    const Segment& s = x.segments[number];
    if (s.state == SegmentState::kAbsent) continue;
    ++present;
    const std::string who = "segment " + std::to_string(number);
    std::uint64_t bytes = 0, end = kPage;
    for (const auto& [offset, length] : extents[number]) {
      require(offset >= end, who + ": blocks overlap at " + std::to_string(offset));
      end = offset + length;
      bytes += length;
    }
    require(end <= x.segment_bytes, who + ": blocks reach beyond it");
    equal(who + ": live bytes", bytes, s.live);
    equal(who + ": its sum", s.live + s.reserved + s.dead + s.overhead + s.free, x.segment_bytes);
  }
  equal("segments", present, x.present);
  const DiskLedger l = x.ledger();
  equal("sum of the ledger", l.free + l.reserved + l.leased + l.resident + l.dead + l.overhead, l.capacity);

  const DiskCounters& n = x.counts;
  const auto sum = [](const std::uint64_t* reasons, DiskReason first, DiskReason last) {
    std::uint64_t total = 0;
    for (int r = static_cast<int>(first); r <= static_cast<int>(last); ++r) total += reasons[r];
    return total;
  };
  equal("blocks offered",
        n.stored + n.queued + sum(n.reasons, DiskReason::kAlreadyResident, DiskReason::kShutDown), n.offered);
  equal("blocks stored and recovered",
        n.resident_blocks + sum(n.reasons, DiskReason::kEvicted, DiskReason::kUnsynced),
        n.stored + n.recovered);
  equal("blocks asked for",
        n.loaded + n.loading + sum(n.not_loaded, DiskReason::kAlreadyResident, DiskReason::kTimedOut),
        n.asked);
  return findings;
}

}  // namespace kvarter
