#pragma once
// The index and the ledger: which blocks are in the pool, where, who may touch them, and what every byte is.
//
// One entry per key (namespace, digest, group, sub) with one slot per shard. The life of an entry:
//
//   reserve -> in flight -> complete (every shard) -> resident -> evicted | removed
//                  |               '-> waits while its parent is in flight
//                  '-> abort | deadline: quarantined until its writers cannot touch it
//
// Threads: every method may be called from any thread. One mutex orders them, except for those under
// "finding", which take none: they never wait, and answer what was true at some moment of the call. Nothing
// here waits for anything else or calls back. Only reserve touches payload bytes, when it moves blocks, and
// only the index moves them. When full: reserve takes the smallest hole that fits. When free bytes would do
// and no hole does, it empties the cheapest window of addresses by moving the blocks in it that nobody
// leases, at most twice the slot's own bytes: that many bytes are copied with the mutex held. What finds no
// room elsewhere is evicted from the window, if it is a leaf that nobody pins. Otherwise it evicts the least
// recently used entries that nobody leases or pins and that no entry leans on (leaf first, R7), those that a
// policy has offered before all others, and answers kRejected (no_space) when there are none. So a slot's
// address holds for as long as its lease or reservation does, and no longer: a block that has moved has
// another generation, and whoever still copies from its old place learns it from the record. Statuses, never
// exceptions, for what concerns one block. std::invalid_argument for misuse: an unknown namespace, a group
// out of range, arrays of unequal length.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvarter/clock.h"
#include "kvarter/pool.h"
#include "kvarter/record.h"
#include "kvarter/status.h"

namespace kvarter {

// What the index must know of a cache group. Exactly one of unit_stride and subs is above 1, or neither.
struct GroupShape {
  std::uint32_t unit_stride = 1;           // hash units per block
  std::uint32_t subs = 1;                  // blocks per hash unit
  bool chained = true;                     // a block needs its ancestors resident (lifetime Full)
  std::vector<std::uint64_t> shard_bytes;  // payload bytes of each shard's slot; its size is the shard count
};

// Part of a sequence in one namespace: the digests of units [first_unit, first_unit + digests.size()).
// `parent` is the digest of unit first_unit - 1; unused when first_unit is 0.
struct Chain {
  std::uint32_t ns = 0;
  std::uint64_t first_unit = 0;
  Digest parent{};
  std::span<const Digest> digests;
};

// Blocks [first, first + count) of one group of a chain. REQUIRES: the chain has all their digests.
struct Range {
  std::uint32_t group = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

// One block of one group, as tables find it. `digest`: of the last unit that the block touches.
struct Key {
  std::uint32_t ns = 0;
  std::uint16_t group = 0;
  std::uint16_t sub = 0;  // the block's number in its unit
  Digest digest{};
};

// Shards [first, first + count) of a block; count 0 means all.
struct Shards {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// Names one entry for as long as it lives: generation << 32 | row. 0 names none.
using Handle = std::uint64_t;
using LeaseId = std::uint64_t;
using Owner = std::uint32_t;

inline constexpr std::uint32_t kMostOffered = 8192;
inline constexpr std::uint32_t kMaxShares = 254;  // namespaces with a floor or a quota

struct Slot {
  std::uint32_t record = 0;  // its number in the records memfd
  std::uint32_t arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;  // set for leased slots
  std::uint64_t generation =
      0;  // a reader whose lease has expired compares it with the record after its copy
};

// Why a block was not stored, not loaded, or dropped. Every block adds to exactly one of them (R6).
enum class Reason : std::uint8_t {
  kNone = 0,
  // reserve: not needed or refused
  kAlreadyResident,
  kAlreadyInFlight,
  kNoSpace,
  kNoParent,  // also at complete: the parent went away meanwhile
  kNamespaceClosed,
  // in flight: given up
  kAborted,
  kFailed,  // a shard reported failure or a wrong length
  kExpired,
  kOwnerDead,
  // resident: dropped
  kEvicted,
  kInvalidated,
  kCorrupt,
  kOrphaned,  // an ancestor was dropped as corrupt
  // asked of a node in another process
  kNodeGone,  // it did not answer
  kCount
};
const char* name(Reason reason) noexcept;

struct Reserved {
  Status status =
      Status::kRejected;  // kOk: slots are the caller's to write; kBusy: resident or in flight already
  Reason reason = Reason::kNone;
  Handle handle = 0;
};

enum class LeaseKind : std::uint8_t {
  kRead,  // somebody copies from the slots
  kHold,  // a match's promise: short, dropped at load
  kPin,   // a user's wish: not evicted until its time is over
  kCopy,  // as kRead, for a copy to or from another tier: neither a use nor a load
};
enum class Outcome : std::uint8_t { kLoaded, kFailed, kUnused, kExpired };

// Bytes of the tier by what they are. capacity is the sum of the others, at every instant (R4).
struct Ledger {
  std::uint64_t capacity = 0, free = 0, reserved = 0, leased = 0, pinned = 0, resident = 0, quarantined = 0,
                dead = 0, overhead = 0;
  bool operator==(const Ledger&) const = default;
};

// Blocks and bytes since start, beside what is there now.
struct Counters {
  std::uint64_t offered = 0;  // = stored + in_flight + the reserve and in-flight reasons
  std::uint64_t stored = 0;   // = resident_blocks + the dropped reasons
  std::uint64_t in_flight = 0, resident_blocks = 0;
  std::uint64_t leased =
      0;  // = loaded + load_failed + load_unused + load_expired + leased_now; read leases only
  std::uint64_t loaded = 0, load_failed = 0, load_unused = 0, load_expired = 0, leased_now = 0;
  std::uint64_t loaded_bytes = 0, stored_bytes = 0, evicted_bytes = 0;
  std::uint64_t evicted_offered = 0;         // of the evicted: those that the policy named, and their parents
  std::uint64_t moved = 0, moved_bytes = 0;  // slots, and their payload, moved to make a hole
  std::uint64_t reasons[static_cast<int>(Reason::kCount)] = {};
};

// What became of a block: resident (kNone), or why it was dropped, also in flight.
struct Change {
  Handle handle = 0;
  Reason reason = Reason::kNone;
};

// The entries' columns, `rows` elements each, for whoever ranks them: read at any time, in no order with what
// the index does. state is 2 for a resident entry; its number in the order of making is
// records[slot[row]].entry.
struct View {
  std::uint32_t rows = 0;
  const std::uint32_t *slot, *generation, *parent, *children, *leases, *pins, *hits, *depth, *ns;
  const std::uint64_t *last_use, *bytes;
  const std::uint16_t *group, *klass;
  const std::uint8_t* state;
  const SlotRecord* records;
};

// Where in its sequence a block is: what makes a Chain of a key. Of a chained group the digests go back to
// unit 0, and are known at the end of each block; those of other units are 0. Of other groups it is the one
// of the block itself.
struct Lineage {
  std::uint64_t first_unit = 0;
  std::uint64_t block = 0;
  std::vector<Digest> digests;
};

struct FenceRequest {
  Owner owner;
  std::uint64_t epoch;
};

class Index {
 public:
  struct Options {
    std::uint32_t max_slots = 0;  // slot records; each shard of a block takes one
    double hold_share = 0.5;      // of the pool, that holds may cover
    double headroom = 0.02;       // of the pool, that tick keeps free; no block larger than that goes for it
  };

  // REQUIRES: pool and clock outlive the index, and nobody else uses pool.extents().
  Index(const Options& options, Pool& pool, const Clock& clock);
  // Takes over the records of an index whose process is gone, wherever it stopped: blocks that were committed
  // whole, with all their ancestors, become resident; of all others, what an owner may still be writing is
  // quarantined until owner_dead (no fence covers it: epochs begin anew), the rest is free. Leases, pins and
  // holds are gone; who still reads under one sees the generation change when its slot is used again. The
  // records are changed in place, and a crash in here leaves what this can be called with again. REQUIRES:
  // pool has the same arenas with the same content, and nobody else writes the records. Throws
  // std::runtime_error when the records are of another layout version or do not fit the arenas.
  Index(const Options& options, Pool& pool, const Clock& clock, Memfd records);
  ~Index();

  // --- namespaces
  // The same digest gives the same number while it is open. Throws std::length_error past kMaxNamespaces.
  std::uint32_t open_namespace(const Digest& digest, std::span<const GroupShape> groups);
  // Eviction for others leaves it at least `floor` bytes, and above `quota` its own blocks go first; 0: none.
  // What it holds is counted as resident and in flight. Ends with the namespace. Throws std::invalid_argument
  // when the floors of all come to more than the pool, or a floor is above its quota, and std::length_error
  // past kMaxShares.
  void set_share(std::uint32_t ns, std::uint64_t floor, std::uint64_t quota);
  // From now on nothing of it is served or stored; tick removes its blocks, bounded in each call.
  void invalidate(std::uint32_t ns);

  // --- finding: without the mutex. A hit may be gone when the call returns, which lease finds out. A
  // namespace that was closed holds nothing. How many blocks of a chained group are resident from block 0 on,
  // at most `limit`. O(log) look-ups: R7 makes the resident blocks of a chain a prefix.
  std::uint64_t leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const;
  // The largest e <= end, e a multiple of `step`, such that the min(run, e) blocks before e are all resident;
  // 0 when there is none. Looks backwards; each block of the run was resident at its own moment.
  std::uint64_t last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                         std::uint64_t step) const;
  bool contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const;
  // The same of many at once, 1 or 0 for each key. REQUIRES: `there` is as long as `keys`.
  void contains(std::span<const Key> keys, std::span<std::uint8_t> there) const;
  // Changes whenever a look-up may answer differently: what a memoised match depends on.
  std::uint64_t version() const;
  // With the mutex, and as long as the chain: not for hot paths. Nothing when the block is not resident.
  std::optional<Lineage> lineage(const Key& key) const;

  // --- leases
  // Takes all of the ranges or nothing. Returns kOk; kNotFound: a block is gone; kRejected: a hold above its
  // share. A hold leases only the deepest block of a chained range (its ancestors cannot go while it stays)
  // and counts `bytes` against the share. The lease ends by release, by its deadline (in tick), or by
  // owner_dead.
  Status lease(const Chain& chain, std::span<const Range> ranges, LeaseKind kind, Owner owner,
               std::uint64_t deadline, std::uint64_t bytes, LeaseId& id);
  // The slots of a read lease, in the order of its ranges and their blocks; `shards` of each block together.
  std::vector<Slot> slots(LeaseId id) const;
  // False when the lease has ended already. Ends it otherwise.
  bool release(LeaseId id, Outcome outcome);
  // The blocks of a read lease that failed their check: removed everywhere at once, with their descendants.
  void drop_corrupt(LeaseId id, std::span<const std::uint32_t> positions);

  // --- storing
  // For each block of the range: makes an entry with slots for all its shards, or says why not. `slots`
  // receives the slots of `shards` for each kOk block, in order: these are owner's to write. Another owner
  // that reserves other shards of an entry in flight joins it.
  std::vector<Reserved> reserve(const Chain& chain, const Range& range, Shards shards, Owner owner,
                                std::uint64_t deadline, std::vector<Slot>& slots);
  // Shard `shard` of these entries has been written (ok) or has failed, and its writer touches it no more.
  // When the last shard of an entry has reported, the entry becomes resident, at once and whole, or is given
  // up. A handle that is no longer in flight is ignored, or ends its quarantine.
  void complete(std::span<const Handle> handles, std::uint32_t shard, std::span<const std::uint8_t> ok,
                std::span<const std::uint64_t> checksums);
  // Gives the entries up. Slots of other shards stay until their writers have reported. REQUIRES: no writer
  // touches the slots of `shards` any more.
  void abort(std::span<const Handle> handles, Shards shards = {});
  std::vector<bool> resident(std::span<const Handle> handles) const;

  // --- placement: what a policy says off the hot path, and may be wrong about
  // Blocks [first, first + classes.size()) of a group, as far as they are there, get these classes. Returns
  // how many are there; of a chained group none is behind the first that is not, of a closed namespace none.
  std::uint64_t classify(const Chain& chain, std::uint32_t group, std::uint64_t first,
                         std::span<const std::uint16_t> classes);
  // Rows in the order in which they should go, each of the generation that it was ranked in. Appends to what
  // waits, up to kMostOffered, and returns how many it took. One is passed over when its turn comes if it is
  // another entry by then, was used since this call, or may not be evicted. After it goes its parent, if it
  // has become a leaf, is of the same class and was hit as often, and so on up the chain.
  std::uint32_t offer_victims(std::span<const std::uint32_t> rows,
                              std::span<const std::uint32_t> generations);
  // How many more victims it would take now: none while a good part of the pool is free.
  std::uint32_t victims_wanted() const;
  View view() const;
  // Bytes of memory outside the pool that are kept for the index's sake, a policy's for one, in place of
  // those that were named before: counted as overhead, beside the records and columns.
  void charge(std::uint64_t bytes);

  // --- endings
  // Ends what is past its deadline, removes some blocks of closed namespaces, evicts a bounded number of
  // blocks while less than the headroom is free, and returns the fences that must now be sent so that
  // quarantined slots can be freed.
  std::vector<FenceRequest> tick();
  // Every mapper of owner has acknowledged a fence of at least this epoch.
  void fenced(Owner owner, std::uint64_t epoch);
  // Every process that mapped the pool for owner is dead: nobody writes or reads for it any more.
  void owner_dead(Owner owner);
  // As owner_dead, and the owner's number is never used again: nothing is remembered of it.
  void forget(Owner owner);
  // False when the lease stands and is another's.
  bool may_end(LeaseId id, Owner owner) const;
  // False when any of these shards of an entry in flight is written by another owner, or none by this one.
  bool may_report(std::span<const Handle> handles, Shards shards, Owner owner) const;
  // The highest owner that the records taken over name, and the first epoch of any owner here: copies of
  // epochs below are for an index before this one.
  Owner last_owner() const;
  std::uint64_t first_epoch() const;
  // The epoch that copies of new reservations of owner carry.
  std::uint64_t epoch(Owner owner) const;

  // --- watching
  // From now on remembers for this owner what becomes of all blocks, up to `at_most` changes at a time; its
  // death ends that.
  void watch(Owner owner, std::size_t at_most);
  // What happened since the last call, in its order. False when there was more than could be remembered: then
  // none of it is told, and the watcher has to look anew. Throws std::invalid_argument for who does not
  // watch.
  bool changes(Owner owner, std::vector<Change>& since);
  // The handles of these blocks, 0 for one that is not resident. With the mutex, and as long as the range.
  std::vector<Handle> handles(const Chain& chain, const Range& range) const;

  // --- account
  Ledger ledger() const;
  // Bytes of resident blocks that eviction could free now, one leaf after another: those without a leased,
  // pinned or unfinished descendant. Counts over all entries; not for hot paths.
  std::uint64_t evictable() const;
  Counters counters() const;
  // Recounts everything from the records, the free extents and the entries themselves. Empty when all agree;
  // otherwise one sentence for each disagreement.
  std::vector<std::string> audit() const;

  const Memfd& records() const;
  const Memfd& columns() const;
  const Clock& clock() const;
  std::span<const std::uint8_t, 16> pool_id() const;

  struct Impl;  // only csrc/index sees inside

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarter
