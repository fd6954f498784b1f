#pragma once
// What the parts of the index share. One file for each part:
//   along.h     names of a chain's blocks, shared with the disk log
//   table.cpp   key -> row            finder.cpp   leading, last_run, contains: without the mutex
//   entry.cpp   rows, slots, links    lease.cpp   read leases, holds, pins
//   evict.cpp   victims, room; share.cpp: floors, quotas, offers         relocate.cpp  room by moving
//   flight.cpp  reserve, complete, abort, quarantine, endings
//   index.cpp   construction, namespaces, tick    watch.cpp   who wants to know what comes and goes
//   audit.cpp, rebuild.cpp
// Everything below is called with the mutex held, except where it says otherwise.

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "index/along.h"
#include "index/cells.h"
#include "index/columns.h"
#include "kvarter/finder.h"
#include "kvarter/index.h"
#include "sync_points.h"

namespace kvarter {

struct Namespace {
  Digest digest{};
  std::vector<GroupShape> groups;
  std::uint64_t rows = 0;  // entries of it in any state
  bool open = false, closed = false;
  std::uint64_t bytes = 0;  // payload of its entries in any state
  std::uint64_t floor = 0, quota = 0;
  std::uint8_t heap = 1;  // where its victims wait; 1 is everybody's
};

struct Lease {
  LeaseKind kind;
  Owner owner;
  std::uint64_t deadline;
  std::uint64_t bytes;  // counted against the hold share
  std::vector<std::uint32_t> rows;
};

// An entry in flight or in quarantine: who writes which shard.
struct Writer {
  Owner owner = 0;
  std::uint64_t epoch = 0;
  bool claimed = false, writing = false, ok = false;
};
struct Flight {
  std::uint64_t deadline;
  std::vector<Writer> writers;  // by shard
  Reason doom = Reason::kNone;  // set: will not become resident, is freed when nobody writes any more
  bool writing() const {
    for (const Writer& w : writers)
      if (w.writing) return true;
    return false;
  }
  bool written() const {
    for (const Writer& w : writers)
      if (!w.claimed || w.writing) return false;
    return true;
  }
};

struct Watcher {
  std::size_t at_most;
  bool lost = false;
  std::vector<Change> changes;
};

struct Index::Impl {
  // `old`: records to take over, checked already.
  Impl(const Options& options_, Pool& pool_, const Clock& clock_, std::optional<Memfd> old);

  const Options options;
  Pool& pool;
  const Clock& clock;
  mutable std::mutex mutex;
  Memfd records_file, columns_file;
  NamespaceRecord* namespace_records;
  SlotRecord* records;
  Columns c;
  const Finder finder;
  std::vector<std::uint32_t> free_rows, free_records;
  std::uint32_t sweep_at = 0;
  std::uint64_t next_entry = 1, next_lease = 1;
  std::vector<Namespace> namespaces;
  std::uint32_t closed = 0;  // of the namespaces: a tick with nothing to sweep is a few instructions
  std::uint32_t next_namespace = 0;
  std::unordered_map<LeaseId, Lease> leases;
  std::uint64_t held_bytes = 0;
  std::unordered_map<std::uint32_t, Flight> flights;  // by row
  // Higher than any epoch of an index before this one: whoever mapped for that one, too, is never taken to
  // have ended a copy of now.
  const std::uint64_t first_epoch;
  Owner last_owner = 0;
  std::unordered_map<Owner, std::uint64_t> epochs;
  // Above every epoch so far, so that a fence of an owner before it never closes copies of a new one, which
  // the same process may do.
  std::uint64_t next_epoch = first_epoch;
  std::uint64_t epoch_of(Owner owner) {
    const auto [at, fresh] = epochs.try_emplace(owner, next_epoch);
    next_epoch += fresh;
    return at->second;
  }
  std::uint64_t close_epoch(Owner owner) {  // the one that is fenced
    const std::uint64_t epoch = epoch_of(owner);
    epochs[owner] = epoch + 1;
    next_epoch = std::max(next_epoch, epoch + 2);
    return epoch;
  }
  std::unordered_map<Owner, std::uint64_t> fenced;  // the first epoch that is not acknowledged yet
  struct Victim {
    std::uint64_t last_use;
    std::uint32_t row;
    bool operator<(const Victim& other) const { return last_use > other.last_use; }  // oldest on top
  };
  std::map<Owner, Watcher> watchers;
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  // Heaps, at most one entry a row that counts, checked when it is taken: everybody's, and one for each
  // namespace with a share.
  std::vector<std::vector<Victim>> victims{1};
  std::vector<std::uint32_t> sharers{kNobody};  // whose each heap is
  struct Offer {
    std::uint32_t row, generation;
    std::uint64_t when;
  };
  std::deque<Offer> offered;
  std::uint32_t asking = kNobody;  // the namespace that room is made for
  std::uint64_t charged = 0;       // memory of others, in the ledger as overhead
  Ledger book;  // free is kept by pool.extents(); overhead counts the rounding of slots here
  Counters counts;

  // table.cpp
  std::uint32_t find(const Key& key) const;
  void table_insert(const Key& key, std::uint32_t row);
  void table_erase(std::uint32_t row);
  Key key_of(std::uint32_t row) const;
  static void set_key(SlotRecord& slot, const Key& key);

  // entry.cpp
  const Namespace& space(std::uint32_t ns, std::uint32_t group) const;
  Handle handle_of(std::uint32_t row) const { return std::uint64_t{c.generation[row]} << 32 | row; }
  std::uint32_t row_of(Handle handle) const;  // kNoRow when it names nothing any more
  RowState state(std::uint32_t row) const { return static_cast<RowState>(c.state[row]); }
  SlotRecord& record(std::uint32_t row, std::uint32_t shard) const;
  void mark(SlotRecord& slot, SlotState state, bool next_generation = false);
  std::uint64_t* category(std::uint32_t row);
  void set_state(std::uint32_t row, RowState to);
  void set_uses(std::uint32_t* column, std::uint32_t row, int change);
  void link(std::uint32_t row, std::uint32_t parent);
  void unlink(std::uint32_t row);
  std::uint32_t make_entry(const Key& key, const GroupShape& shape, std::uint32_t parent, std::uint32_t depth,
                           Reason& refusal);
  void free_entry(std::uint32_t row);
  // Slots for all shards, chained by next_shard; kNoRow when there is no room. free_slots gives them back.
  std::uint32_t make_slots(const GroupShape& shape);
  void free_slots(std::uint32_t first);
  // Takes a resident entry out of the index: freed at once, or dead until its last lease ends.
  void drop(std::uint32_t row, Reason reason);
  void drop_subtree(std::uint32_t row, Reason own, Reason below);
  void orphan_children(std::uint32_t row, Reason reason);

  // watch.cpp
  void tell(std::uint32_t row, Reason reason);

  // evict.cpp
  bool evictable(std::uint32_t row) const;
  bool spared(std::uint32_t row) const;  // by its namespace's floor
  void offer_victim(std::uint32_t row);
  // False when nothing may go, or what would go next is larger than `at_most`.
  bool evict_one(std::uint64_t at_most = ~std::uint64_t{0});
  std::optional<bool> evict_from(std::vector<Victim>& heap, std::uint64_t at_most);
  bool evict_offered(std::uint64_t at_most);
  std::vector<Victim>* oldest();
  std::optional<Extent> allocate(std::uint64_t bytes, std::uint32_t slot);
  void keep_headroom();
  bool keep_quota(const Namespace& ns, std::uint64_t need);
  void end_share(Namespace& ns);

  // relocate.cpp
  // The row of a slot that nobody reads, writes or holds; kNoRow otherwise.
  std::uint32_t untouched(const SlotRecord& slot) const;
  // Makes a hole of `need` bytes: empties a window by moving at most `budget` bytes, which becomes what is
  // left of it. With `evicting`, what finds no room elsewhere is evicted.
  bool relocate(std::uint64_t need, std::uint64_t& budget, bool evicting);
  bool move(std::uint32_t slot);

  // lease.cpp
  bool resident_rows(const Chain& chain, const GroupShape& shape, const Range& range,
                     std::vector<std::uint32_t>& rows) const;
  void end_lease(LeaseId id, Outcome outcome);

  // flight.cpp
  void publish(std::uint32_t row);
  void settle(std::uint32_t row);  // after a report: publish, free, or go on waiting
  void doom(std::uint32_t row, Reason reason);
  void quarantine(std::uint32_t row);
  void end_writers(Owner owner, std::uint64_t epoch);

  // index.cpp
  void sweep();
  // audit.cpp
  Ledger ledger() const;
  // rebuild.cpp
  void rebuild();
};

inline std::uint64_t* Index::Impl::category(std::uint32_t row) {
  switch (state(row)) {
    case RowState::kFree:
      return nullptr;
    case RowState::kInFlight:
      return &book.reserved;
    case RowState::kQuarantined:
      return &book.quarantined;
    case RowState::kDead:
      return &book.dead;
    case RowState::kResident:
      break;
  }
  return c.leases[row] ? &book.leased : c.pins[row] ? &book.pinned : &book.resident;
}

inline void Index::Impl::set_uses(std::uint32_t* column, std::uint32_t row, int change) {
  *category(row) -= c.bytes[row];
  column[row] += static_cast<std::uint32_t>(change);
  *category(row) += c.bytes[row];
}

inline std::uint64_t rounded(std::uint64_t bytes) { return round_up(bytes, kGranule); }

}  // namespace kvarter
