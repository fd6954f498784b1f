#include "kvarter/index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {
namespace {

constexpr std::uint32_t kSweepRows =
    4096;  // a tick's share of removing closed namespaces: well under a millisecond

std::uint32_t checked_slots(const Index::Options& options) {
  if (options.max_slots == 0 || options.max_slots >= kNoRow)
    throw std::invalid_argument("max_slots is " + std::to_string(options.max_slots) +
                                "; it must be in [1, 2^32 - 2]");
  return options.max_slots;
}

Columns started(const Memfd& file, std::uint32_t max_rows) {
  const Columns columns = columns_at(file.data(), max_rows);
  columns.header->layout_version = kLayoutVersion;
  columns.header->max_rows = max_rows;
  columns.header->version = 1;
  columns.header->magic = kColumnsMagic;
  return columns;
}

Memfd new_records(const Index::Options& options, const Pool& pool) {
  Memfd file("kvarter-records", records_bytes(checked_slots(options)));
  auto* header = reinterpret_cast<RecordsHeader*>(file.data());
  header->layout_version = kLayoutVersion;
  header->max_slots = options.max_slots;
  header->arenas = static_cast<std::uint32_t>(pool.arenas().size());
  std::random_device random;
  for (std::size_t i = 0; i < sizeof header->pool_id; i += 4) {
    const std::uint32_t word = random();
    std::memcpy(header->pool_id + i, &word, 4);
  }
  share(header->magic, kRecordsMagic);
  return file;
}

std::span<const std::byte> all_of(const Memfd& file) { return {file.data(), file.bytes()}; }

}  // namespace

const char* name(Reason reason) noexcept {
  static constexpr const char* kNames[] = {
      "none",    "already_resident", "already_in_flight", "no_space",   "no_parent", "namespace_closed",
      "aborted", "failed",           "expired",           "owner_dead", "evicted",   "invalidated",
      "corrupt", "orphaned",         "node_gone"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Reason::kCount));
  return kNames[static_cast<int>(reason)];
}

Index::Impl::Impl(const Options& options_, Pool& pool_, const Clock& clock_, std::optional<Memfd> old)
    : options(options_),
      pool(pool_),
      clock(clock_),
      records_file(old ? std::move(*old) : new_records(options_, pool_)),
      columns_file("kvarter-columns", columns_bytes(options_.max_slots)),
      c(started(columns_file, options_.max_slots)),
      finder(all_of(records_file), all_of(columns_file)),
      first_epoch(clock_.now() / 1000) {
  next_lease =
      std::max(first_epoch << 20, next_lease);  // what an index before this one gave out names nothing
  std::uint32_t first_generation = 1;           // so that no handle is 0
  if (old) {  // a late report or release that names something of the index before must name nothing here
    first_generation = 1 + std::random_device()() / 2;
    next_lease = std::uint64_t{first_generation} << 32;
  }
  namespace_records = reinterpret_cast<NamespaceRecord*>(records_file.data() + 4096);
  records = reinterpret_cast<SlotRecord*>(namespace_records + kMaxNamespaces);
  namespaces.resize(kMaxNamespaces);
  victims.front().reserve(options.max_slots);
  for (std::uint32_t i = options.max_slots; i-- > 0;) {
    c.generation[i] = first_generation;
    free_rows.push_back(i);
    free_records.push_back(i);
  }
  book.overhead = records_file.bytes() + columns_file.bytes();
}

Index::Index(const Options& options, Pool& pool, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, pool, clock, std::nullopt)) {}

Index::~Index() = default;

std::uint32_t Index::open_namespace(const Digest& digest, std::span<const GroupShape> groups) {
  if (groups.empty() || groups.size() > kMaxGroups)
    throw std::invalid_argument("a namespace has 1 to " + std::to_string(kMaxGroups) + " groups, not " +
                                std::to_string(groups.size()));
  std::uint64_t chained = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupShape& shape = groups[g];
    if (shape.unit_stride == 0 || shape.subs == 0 || (shape.unit_stride > 1 && shape.subs > 1) ||
        shape.subs > 0xffff || shape.shard_bytes.empty() || shape.shard_bytes.size() > 0xffff ||
        std::count(shape.shard_bytes.begin(), shape.shard_bytes.end(), 0u))
      throw std::invalid_argument("group " + std::to_string(g) +
                                  " has an impossible shape: " + std::to_string(shape.unit_stride) +
                                  " units a block, " + std::to_string(shape.subs) + " blocks a unit, " +
                                  std::to_string(shape.shard_bytes.size()) + " shards");
    if (shape.chained) chained |= std::uint64_t{1} << g;
  }
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  std::uint32_t free = kMaxNamespaces;
  for (std::uint32_t i = 0; i < kMaxNamespaces; ++i) {
    const std::uint32_t ns = (x.next_namespace + i) % kMaxNamespaces;
    Namespace& space = x.namespaces[ns];
    if (!space.closed && (space.open || space.rows) && space.digest == digest) {
      if (space.open) return ns;
      free = ns;  // restored by rebuild: its blocks wait for whoever knows its shape
      break;
    }
    if (!space.open && !space.closed && !space.rows && free == kMaxNamespaces) free = ns;
  }
  if (free == kMaxNamespaces)
    throw std::length_error("all " + std::to_string(kMaxNamespaces) + " namespaces are open");
  Namespace& space = x.namespaces[free];
  space.digest = digest;
  space.groups.assign(groups.begin(), groups.end());
  space.open = true;
  NamespaceRecord& record = x.namespace_records[free];
  record.digest = digest;
  record.groups = static_cast<std::uint32_t>(groups.size());
  record.chained = chained;
  KVARTER_SYNC_POINT("namespace: open");
  share(record.state, 1u);
  x.c.gates[free].open(groups);
  x.next_namespace = free + 1;
  return free;
}

void Index::invalidate(std::uint32_t ns) {
  const std::lock_guard lock(impl_->mutex);
  Namespace& space = impl_->namespaces.at(ns);
  if (!space.open) return;
  space.open = false;
  space.closed = true;
  ++impl_->closed;
  KVARTER_SYNC_POINT("namespace: close");
  share(impl_->namespace_records[ns].state, 2u);
  impl_->c.gates[ns].close();
  ++impl_->c.header->version;
}

void Index::Impl::sweep() {
  if (closed == 0) return;
  for (std::uint32_t i = 0; i < std::min(kSweepRows, options.max_slots); ++i) {
    const std::uint32_t row = sweep_at;
    sweep_at = sweep_at + 1 == options.max_slots ? 0 : sweep_at + 1;
    if (state(row) == RowState::kFree || !namespaces[c.ns[row]].closed) continue;
    if (state(row) == RowState::kResident)
      drop_subtree(row, Reason::kInvalidated, Reason::kInvalidated);
    else if (state(row) == RowState::kInFlight && flights.at(row).doom == Reason::kNone)
      doom(row, Reason::kNamespaceClosed);
  }
  for (std::uint32_t ns = 0; ns < kMaxNamespaces; ++ns)
    if (namespaces[ns].closed && namespaces[ns].rows == 0) {
      end_share(namespaces[ns]);
      std::vector<GroupShape> groups = std::move(namespaces[ns].groups);  // for who still asks
      namespaces[ns] = {};
      namespaces[ns].groups = std::move(groups);
      --closed;
      KVARTER_SYNC_POINT("namespace: free");
      share(namespace_records[ns].state, 0u);
    }
}

std::vector<FenceRequest> Index::tick() {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  const std::uint64_t now = x.clock.now();
  std::vector<LeaseId> ended;
  for (const auto& [id, lease] : x.leases)
    if (lease.deadline <= now) ended.push_back(id);
  for (const LeaseId id : ended) x.end_lease(id, Outcome::kExpired);
  std::vector<std::uint32_t> late;
  for (const auto& [row, flight] : x.flights)
    if (flight.deadline <= now && x.state(row) != RowState::kQuarantined) late.push_back(row);
  // Deepest first: each is given up for its own lateness, and before its parent takes it along.
  std::ranges::sort(late, std::ranges::greater{}, [&](std::uint32_t row) { return x.c.depth[row]; });
  for (const std::uint32_t row : late) x.quarantine(row);
  x.sweep();
  x.keep_headroom();
  std::vector<FenceRequest> fences;
  for (const auto& [row, flight] : x.flights)
    for (const Writer& writer : flight.writers)
      if (x.state(row) == RowState::kQuarantined && writer.writing &&
          writer.epoch == x.epoch_of(writer.owner))
        fences.push_back({writer.owner, x.close_epoch(writer.owner)});
  return fences;
}

void Index::fenced(Owner owner, std::uint64_t epoch) {
  const std::lock_guard lock(impl_->mutex);
  epoch = std::min(epoch, ~std::uint64_t{0} - 1);
  impl_->fenced[owner] = std::max(impl_->fenced[owner], epoch + 1);
  impl_->end_writers(owner, epoch);
}

void Index::owner_dead(Owner owner) {
  const std::lock_guard lock(impl_->mutex);
  std::vector<LeaseId> ended;
  for (const auto& [id, lease] : impl_->leases)
    if (lease.owner == owner && lease.kind != LeaseKind::kPin) ended.push_back(id);
  for (const LeaseId id : ended) impl_->end_lease(id, Outcome::kExpired);
  impl_->end_writers(owner, ~std::uint64_t{0});
  impl_->watchers.erase(owner);
}

void Index::forget(Owner owner) {
  owner_dead(owner);
  const std::lock_guard lock(impl_->mutex);
  impl_->epochs.erase(owner);
  impl_->fenced.erase(owner);
}

bool Index::may_end(LeaseId id, Owner owner) const {
  const std::lock_guard lock(impl_->mutex);
  const auto lease = impl_->leases.find(id);
  return lease == impl_->leases.end() || lease->second.owner == owner;
}

bool Index::may_report(std::span<const Handle> handles, Shards shards, Owner owner) const {
  const std::lock_guard lock(impl_->mutex);
  return std::ranges::all_of(handles, [&](Handle handle) {
    const std::uint32_t row = impl_->row_of(handle);
    const auto flight = row == kNoRow ? impl_->flights.end() : impl_->flights.find(row);
    if (flight == impl_->flights.end()) return true;
    const std::vector<Writer>& writers = flight->second.writers;
    const std::size_t from = std::min<std::size_t>(shards.first, writers.size());
    const std::size_t count = shards.count == 0 ? writers.size() : shards.count;
    const auto asked = std::span(writers).subspan(from, std::min(count, writers.size() - from));
    const auto own = [&](const Writer& w) { return w.claimed && w.owner == owner; };
    return std::ranges::any_of(asked, own) &&
           std::ranges::all_of(asked, [&](const Writer& w) { return !w.claimed || own(w); });
  });
}

Owner Index::last_owner() const { return impl_->last_owner; }
std::uint64_t Index::first_epoch() const { return impl_->first_epoch; }

std::uint64_t Index::epoch(Owner owner) const {
  const std::lock_guard lock(impl_->mutex);
  const auto epoch = impl_->epochs.find(owner);
  return epoch == impl_->epochs.end() ? impl_->next_epoch : epoch->second;
}

std::uint64_t Index::leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const {
  return impl_->finder.leading(chain, group, limit);
}

std::uint64_t Index::last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                              std::uint64_t step) const {
  return impl_->finder.last_run(chain, group, end, run, step);
}

bool Index::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  return impl_->finder.contains(chain, group, block);
}

void Index::contains(std::span<const Key> keys, std::span<std::uint8_t> there) const {
  impl_->finder.contains(keys, there);
}

std::uint64_t Index::version() const { return impl_->finder.version(); }

const Memfd& Index::records() const { return impl_->records_file; }
const Memfd& Index::columns() const { return impl_->columns_file; }
const Clock& Index::clock() const { return impl_->clock; }
std::span<const std::uint8_t, 16> Index::pool_id() const { return impl_->finder.pool_id(); }

}  // namespace kvarter
