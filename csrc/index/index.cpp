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

void write_header(const Memfd& file, const Index::Options& options, const Pool& pool,
                  std::random_device& random) {
  auto* header = reinterpret_cast<RecordsHeader*>(file.data());
  header->layout_version = kLayoutVersion;
  header->max_slots = options.max_slots;
  header->arenas = static_cast<std::uint32_t>(pool.arenas().size());
  for (std::size_t i = 0; i < sizeof header->pool_id; i += 4) {
    const std::uint32_t word = random();
    std::memcpy(header->pool_id + i, &word, 4);
  }
  share(header->magic, kRecordsMagic);
}

}  // namespace

const char* name(Reason reason) noexcept {
  static constexpr const char* kNames[] = {
      "none",    "already_resident", "already_in_flight", "no_space",   "no_parent", "namespace_closed",
      "aborted", "failed",           "expired",           "owner_dead", "evicted",   "invalidated",
      "corrupt", "orphaned"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Reason::kCount));
  return kNames[static_cast<int>(reason)];
}

Index::Impl::Impl(const Options& options_, Pool& pool_, const Clock& clock_, std::optional<Memfd> old)
    : options(options_),
      pool(pool_),
      clock(clock_),
      records_file(old ? std::move(*old) : Memfd("kvarter-records", records_bytes(checked_slots(options_)))),
      columns_file("kvarter-columns", columns_bytes(options_.max_slots)),
      c(columns_at(columns_file.data(), options_.max_slots)) {
  std::random_device random;
  std::uint32_t first_generation = 1;  // so that no handle is 0
  if (old) {  // a late report or release that names something of the index before must name nothing here
    first_generation = 1 + random() / 2;
    next_lease = std::uint64_t{first_generation} << 32;
  } else {
    write_header(records_file, options, pool, random);
  }
  namespace_records = reinterpret_cast<NamespaceRecord*>(records_file.data() + 4096);
  records = reinterpret_cast<SlotRecord*>(namespace_records + kMaxNamespaces);
  namespaces.resize(kMaxNamespaces);
  gates = std::make_unique<Gate[]>(kMaxNamespaces);
  victims.front().reserve(options.max_slots);
  for (std::uint32_t i = options.max_slots; i-- > 0;) {
    c.generation[i] = first_generation;
    free_rows.push_back(i);
    free_records.push_back(i);
  }
  book.overhead = records_file.bytes() + columns_file.bytes();
}

void Gate::open(std::span<const GroupShape> shapes) {
  if (!strides) strides = std::make_unique<std::atomic<std::uint64_t>[]>(kMaxGroups);
  for (std::size_t g = 0; g < shapes.size(); ++g)
    strides[g].store(std::uint64_t{shapes[g].unit_stride} << 32 | shapes[g].subs, std::memory_order_release);
  const std::uint64_t times = (word.load(std::memory_order_relaxed) >> 16) + 1;
  word.store(times << 16 | shapes.size() << 2 | kOpen, std::memory_order_release);
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
  x.gates[free].open(groups);
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
  impl_->gates[ns].close();
  ++impl_->version;
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
      namespaces[ns] = {};
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
      if (x.state(row) == RowState::kQuarantined && writer.writing && writer.epoch == x.epochs[writer.owner])
        fences.push_back({writer.owner, x.epochs[writer.owner]++});
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
}

std::uint64_t Index::epoch(Owner owner) const {
  const std::lock_guard lock(impl_->mutex);
  const auto epoch = impl_->epochs.find(owner);
  return epoch == impl_->epochs.end() ? 0 : epoch->second;
}

const Memfd& Index::records() const { return impl_->records_file; }
const Memfd& Index::columns() const { return impl_->columns_file; }

}  // namespace kvarter
