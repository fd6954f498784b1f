#include "kvarter/remote.h"

#include <algorithm>
#include <limits>

#include "node/remote_impl.h"

namespace kvarter {

RemoteIndex::RemoteIndex(const std::string& path, const std::string& name, std::uint32_t ranks,
                         std::chrono::milliseconds timeout, std::chrono::milliseconds patience,
                         std::uint32_t layout_version)
    : impl_(std::make_unique<Impl>(path, name, ranks, layout_version, timeout, patience)) {}

RemoteIndex::~RemoteIndex() { close(); }

bool RemoteIndex::connected() const noexcept {
  return impl_->connected && (!impl_->mapper || impl_->mapper->connected());
}
Owner RemoteIndex::owner() const noexcept { return impl_->owner; }

std::vector<std::uint8_t> RemoteIndex::pool_id() const {
  if (!impl_->finder) return std::vector<std::uint8_t>(16);
  const auto id = impl_->finder->pool_id();
  return {id.begin(), id.end()};
}

std::uint32_t RemoteIndex::look() {
  const std::lock_guard lock(impl_->mutex);
  wire::Reply reply{};
  if (!impl_->ask({.verb = wire::kLook}, reply)) return 0;
  return reply.attached - (impl_->mapper && reply.attached > 0 ? 1 : 0);
}

void RemoteIndex::close() noexcept {
  const std::lock_guard lock(impl_->mutex);
  impl_->end();
  if (impl_->mapper) impl_->mapper->close();
}

void RemoteIndex::know(std::uint32_t ns, std::uint32_t most_shards) {
  const std::lock_guard lock(impl_->mutex);
  impl_->most_shards[ns] = most_shards;
}

std::uint64_t RemoteIndex::leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const {
  if (!impl_->connected) return 0;
  if (impl_->finder) return impl_->finder->leading(chain, group, limit);
  return impl_->find(wire::kLeading, chain, group, 0, limit, 0);
}

std::uint64_t RemoteIndex::last_run(const Chain& chain, std::uint32_t group, std::uint64_t end,
                                    std::uint64_t run, std::uint64_t step) const {
  if (!impl_->connected) return 0;
  if (impl_->finder) return impl_->finder->last_run(chain, group, end, run, step);
  return impl_->find(wire::kLastRun, chain, group, end, run, step);
}

bool RemoteIndex::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  if (!impl_->connected) return false;
  if (impl_->finder) return impl_->finder->contains(chain, group, block);
  return impl_->find(wire::kContains, chain, group, block, 0, 0) != 0;
}

std::uint64_t RemoteIndex::gate(std::uint32_t ns) const {
  return impl_->finder ? impl_->finder->gate(ns) : 0;
}

std::uint64_t RemoteIndex::version() const {
  if (!impl_->connected) return 0;
  return impl_->finder ? impl_->finder->version() : impl_->remote_version.load();
}

Status RemoteIndex::lease(const Chain& chain, std::span<const Range> ranges, LeaseKind kind, Owner,
                          std::uint64_t deadline, std::uint64_t bytes, LeaseId& id) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  wire::Call call{.verb = wire::kLease,
                  .count = ranges.size(),
                  .deadline = deadline,
                  .bytes = bytes,
                  .kind = static_cast<std::uint32_t>(kind)};
  const auto at = x.put(chain, call);
  if (!at || ranges.size() > wire::kInbox / 2 / sizeof(wire::Wanted)) return Status::kRejected;
  std::vector<wire::Wanted> wanted;
  std::uint64_t blocks = 0;
  for (const Range& range : ranges) {
    wanted.push_back({range.group, range.first, range.count});
    blocks += range.count;
  }
  call.at = *at;
  x.put_at(*at, std::span<const wire::Wanted>(wanted));
  wire::Reply reply{};
  if (!x.ask(call, reply)) return Status::kClosed;
  const auto status = static_cast<Status>(reply.status);
  if (status != Status::kOk) return status;
  id = reply.id;
  if (kind != LeaseKind::kRead) return status;
  x.fresh.clear();
  x.take(reply, 0, x.fresh);
  while (x.fresh.size() < reply.count) {  // more than one answer holds
    wire::Reply more{};
    if (!x.ask({.verb = wire::kSlots, .first = x.fresh.size(), .id = id}, more)) return Status::kClosed;
    if (more.slots == 0) return Status::kNotFound;  // it has ended meanwhile
    x.take(more, 0, x.fresh);
  }
  x.fresh_lease = id;
  std::uint64_t payload = 0;
  for (const Slot& slot : x.fresh) payload += slot.length;
  x.reads[id] = {blocks, payload};
  x.counts.leased += blocks;
  x.counts.leased_now += blocks;
  return status;
}

std::vector<Slot> RemoteIndex::slots(LeaseId id) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  if (x.fresh_lease == id) {
    x.fresh_lease = 0;
    return std::move(x.fresh);
  }
  std::vector<Slot> slots;
  wire::Reply reply{};
  do {
    if (!x.ask({.verb = wire::kSlots, .first = slots.size(), .id = id}, reply)) return {};
    x.take(reply, 0, slots);
  } while (slots.size() < reply.count && reply.slots > 0);
  return slots;
}

bool RemoteIndex::release(LeaseId id, Outcome outcome) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  wire::Reply reply{};
  const bool asked =
      x.ask({.verb = wire::kRelease, .id = id, .kind = static_cast<std::uint32_t>(outcome)}, reply);
  const bool stood = asked && reply.status == static_cast<std::uint32_t>(Status::kOk);
  const auto read = x.reads.find(id);
  if (read == x.reads.end()) return stood;
  const auto [blocks, bytes] = read->second;
  x.reads.erase(read);
  x.counts.leased_now -= blocks;
  if (!stood) outcome = Outcome::kExpired;
  (outcome == Outcome::kLoaded   ? x.counts.loaded
   : outcome == Outcome::kFailed ? x.counts.load_failed
   : outcome == Outcome::kUnused ? x.counts.load_unused
                                 : x.counts.load_expired) += blocks;
  if (outcome == Outcome::kLoaded) x.counts.loaded_bytes += bytes;
  return stood;
}

void RemoteIndex::drop_corrupt(LeaseId id, std::span<const std::uint32_t> positions) {
  const std::lock_guard lock(impl_->mutex);
  if (positions.size_bytes() > wire::kInbox) return;
  impl_->put_at(0, positions);
  wire::Reply reply{};
  impl_->ask({.verb = wire::kDropCorrupt, .count = positions.size(), .id = id}, reply);
}

std::vector<Reserved> RemoteIndex::reserve(const Chain& chain, const Range& range, Shards shards, Owner,
                                           std::uint64_t deadline, std::vector<Slot>& slots) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  x.counts.offered += range.count;
  std::vector<Reserved> made;
  wire::Call call{.verb = wire::kReserve,
                  .group = range.group,
                  .deadline = deadline,
                  .kind = std::max(x.most_shards[chain.ns], 1u),
                  .first_shard = shards.first,
                  .shards = shards.count};
  const std::uint64_t at_once = wire::kOutbox / (sizeof(wire::Made) + call.kind * sizeof(wire::Place));
  bool fits = x.put(chain, call).has_value();
  while (made.size() < range.count && fits) {
    call.first = range.first + made.size();
    call.count = std::min<std::uint64_t>(range.count - made.size(), at_once);
    wire::Reply reply{};
    if (!x.ask(call, reply) || reply.count != call.count) break;
    const auto* const blocks = reinterpret_cast<const wire::Made*>(x.outbox());
    for (std::uint64_t i = 0; i < reply.count; ++i)
      made.push_back(
          {static_cast<Status>(blocks[i].status), static_cast<Reason>(blocks[i].reason), blocks[i].handle});
    const std::size_t before = slots.size();
    x.take(reply, reply.count * sizeof(wire::Made), slots);
    const auto granted = static_cast<std::uint64_t>(
        std::count_if(blocks, blocks + reply.count, [](const wire::Made& b) { return b.handle != 0; }));
    if (granted == 0) continue;
    const std::uint64_t each = reply.slots / granted;
    std::uint64_t bytes = 0;
    for (std::size_t i = before; i < std::min<std::size_t>(before + each, slots.size()); ++i)
      bytes += slots[i].length;
    for (std::uint64_t i = 0; i < reply.count; ++i)
      if (blocks[i].handle != 0) x.writes[blocks[i].handle] = {each, bytes, true};
  }
  made.resize(range.count, {Status::kClosed, Reason::kNodeGone, 0});
  for (const Reserved& block : made) {
    if (block.handle != 0)
      ++x.counts.in_flight;
    else
      ++x.counts.reasons[std::min<std::size_t>(static_cast<std::size_t>(block.reason),
                                               static_cast<std::size_t>(Reason::kNodeGone))];
  }
  return made;
}

void RemoteIndex::complete(std::span<const Handle> handles, std::uint32_t shard,
                           std::span<const std::uint8_t> ok, std::span<const std::uint64_t> checksums) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const auto write = x.writes.find(handles[i]);
    if (write == x.writes.end()) continue;
    write->second.ok &= ok[i] != 0;
    if (--write->second.shards == 0) {
      const bool stored = write->second.ok && x.connected;
      x.ended(write, stored ? Reason::kNone : x.connected ? Reason::kFailed : Reason::kNodeGone);
    }
  }
  const std::size_t at_once = wire::kInbox / 17 / 8 * 8;
  for (std::size_t from = 0; from < handles.size(); from += at_once) {
    const std::size_t count = std::min(at_once, handles.size() - from);
    std::uint64_t at = x.put_at(0, handles.subspan(from, count));
    at = x.put_at(at, checksums.subspan(from, count));
    x.put_at(at, ok.subspan(from, count));
    wire::Reply reply{};
    if (!x.ask({.verb = wire::kComplete, .count = count, .first_shard = shard}, reply)) return;
  }
}

void RemoteIndex::abort(std::span<const Handle> handles, Shards shards) {
  const std::lock_guard lock(impl_->mutex);
  for (const Handle handle : handles)
    if (const auto write = impl_->writes.find(handle); write != impl_->writes.end())
      impl_->ended(write, Reason::kAborted);
  const std::size_t at_once = wire::kInbox / sizeof(Handle);
  for (std::size_t from = 0; from < handles.size(); from += at_once) {
    const std::size_t count = std::min(at_once, handles.size() - from);
    impl_->put_at(0, handles.subspan(from, count));
    wire::Reply reply{};
    const wire::Call call{
        .verb = wire::kAbort, .count = count, .first_shard = shards.first, .shards = shards.count};
    if (!impl_->ask(call, reply)) return;
  }
}

std::uint64_t RemoteIndex::epoch(Owner) const { return impl_->epoch; }

void RemoteIndex::watch(Owner, std::size_t at_most) {
  const std::lock_guard lock(impl_->mutex);
  wire::Reply reply{};
  const std::uint64_t at_once = wire::kOutbox / (sizeof(Handle) + 1);
  impl_->ask({.verb = wire::kWatch, .count = std::min<std::uint64_t>(at_most, at_once)}, reply);
}

bool RemoteIndex::changes(Owner, std::vector<Change>& since) {
  since.clear();
  const std::lock_guard lock(impl_->mutex);
  wire::Reply reply{};
  if (!impl_->ask({.verb = wire::kChanges}, reply)) return false;
  const auto* const handles = reinterpret_cast<const Handle*>(impl_->outbox());
  const auto* const reasons = reinterpret_cast<const std::uint8_t*>(handles + reply.count);
  for (std::uint64_t i = 0; i < reply.count; ++i)
    since.push_back({handles[i], static_cast<Reason>(reasons[i])});
  return reply.id != 0;
}

std::vector<Handle> RemoteIndex::handles(const Chain& chain, const Range& range) const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<Handle> handles(range.count);
  wire::Call call{.verb = wire::kHandles, .group = range.group, .first = range.first, .count = range.count};
  wire::Reply reply{};
  if (impl_->put(chain, call) && impl_->ask(call, reply) && reply.count == range.count)
    std::memcpy(handles.data(), impl_->outbox(), handles.size() * sizeof(Handle));
  return handles;
}

std::vector<bool> RemoteIndex::resident(std::span<const Handle> handles) const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<bool> there(handles.size());
  const std::size_t at_once = wire::kInbox / sizeof(Handle);
  for (std::size_t from = 0; from < handles.size(); from += at_once) {
    const std::size_t count = std::min(at_once, handles.size() - from);
    impl_->put_at(0, handles.subspan(from, count));
    wire::Reply reply{};
    if (!impl_->ask({.verb = wire::kResident, .count = count}, reply)) break;
    for (std::size_t i = 0; i < count; ++i) there[from + i] = impl_->outbox()[i] != std::byte{0};
  }
  return there;
}

std::uint64_t RemoteIndex::below_leading(const Chain& chain, std::uint32_t group, std::uint64_t from,
                                         std::uint64_t limit) const {
  return impl_->connected ? impl_->find(wire::kBelowLeading, chain, group, from, limit, 0) : 0;
}

std::uint64_t RemoteIndex::below_last_run(const Chain& chain, std::uint32_t group, std::uint64_t end,
                                          std::uint64_t run, std::uint64_t step) const {
  return impl_->connected ? impl_->find(wire::kBelowLastRun, chain, group, end, run, step) : 0;
}

bool RemoteIndex::below_contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  return impl_->connected && impl_->find(wire::kBelowContains, chain, group, block, 0, 0) != 0;
}

std::uint64_t RemoteIndex::below_version() const { return impl_->below_version; }

Counters RemoteIndex::counters() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counts;
}

}  // namespace kvarter
