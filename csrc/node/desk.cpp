#include "node/desk.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace kvarter::node {
namespace {

struct Malformed {};

constexpr std::uint64_t kFar = std::uint64_t{1}
                               << 31;  // no block or unit comes near, nor overflows times 2^32

void require(bool right) {
  if (!right) throw Malformed();
}

// `count` elements at `at` of the inbox, as they lie there. Whoever asks may change them meanwhile: what
// depends on a value reads it once.
template <class T>
std::span<const T> array(std::span<const std::byte> inbox, std::uint64_t at, std::uint64_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  require(at % alignof(T) == 0 && at <= inbox.size() && count <= (inbox.size() - at) / sizeof(T));
  return {reinterpret_cast<const T*>(inbox.data() + at), static_cast<std::size_t>(count)};
}

Chain chain_of(const wire::Call& call, std::span<const std::byte> inbox) {
  require(call.units < inbox.size() / sizeof(Digest));
  const auto digests = array<Digest>(inbox, 0, call.units + 1);
  Chain chain{call.ns, call.first_unit, {}, digests.subspan(1)};
  if (call.first_unit > 0) chain.parent = digests[0];
  require(call.first_unit < kFar && call.first < kFar && call.count < kFar);
  return chain;
}

void put(std::span<std::byte> outbox, const std::vector<Slot>& slots, std::size_t from, std::size_t at,
         wire::Reply& reply) {
  const std::size_t room = (outbox.size() - at) / sizeof(wire::Place);
  const std::size_t count = std::min(slots.size() - std::min(from, slots.size()), room);
  auto* const places = reinterpret_cast<wire::Place*>(outbox.data() + at);
  for (std::size_t i = 0; i < count; ++i) {
    const Slot& slot = slots[from + i];
    places[i] = {slot.record, slot.arena, slot.offset, slot.length, slot.checksum, slot.generation};
  }
  reply.slots = count;
}

void lease(Index& index, Owner owner, std::uint64_t deadline, const wire::Call& call,
           std::span<const std::byte> inbox, std::span<std::byte> outbox, wire::Reply& reply) {
  require(call.kind <= static_cast<std::uint32_t>(LeaseKind::kCopy));
  const auto kind = static_cast<LeaseKind>(call.kind);
  std::vector<Range> ranges;
  for (const wire::Wanted& wanted : array<wire::Wanted>(inbox, call.at, call.count)) {
    const wire::Wanted range = wanted;
    require(range.group < kMaxGroups && range.first < kFar && range.count < kFar);
    ranges.push_back({static_cast<std::uint32_t>(range.group), range.first, range.count});
  }
  const Status status =
      index.lease(chain_of(call, inbox), ranges, kind, owner, deadline, call.bytes, reply.id);
  reply.status = static_cast<std::uint32_t>(status);
  if (status != Status::kOk || (kind != LeaseKind::kRead && kind != LeaseKind::kCopy)) return;
  const std::vector<Slot> slots = index.slots(reply.id);
  reply.count = slots.size();
  put(outbox, slots, 0, 0, reply);
}

void reserve(Index& index, Owner owner, std::uint64_t deadline, const wire::Call& call,
             std::span<const std::byte> inbox, std::span<std::byte> outbox, wire::Reply& reply) {
  require(call.shards <= 0xffff && call.first_shard <= 0xffff);
  const Chain chain = chain_of(call, inbox);
  // What the answer takes has to fit: `kind` is how many slots a block has at most, as the caller knows it.
  require(call.kind > 0 && call.kind <= 0xffff &&
          call.count <= outbox.size() / (sizeof(wire::Made) + call.kind * sizeof(wire::Place)));
  std::vector<Slot> slots;
  const std::vector<Reserved> blocks = index.reserve(chain, {call.group, call.first, call.count},
                                                     {call.first_shard, call.shards}, owner, deadline, slots);
  auto* const made = reinterpret_cast<wire::Made*>(outbox.data());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    made[i] = {blocks[i].handle, static_cast<std::uint32_t>(blocks[i].status),
               static_cast<std::uint32_t>(blocks[i].reason)};
  reply.count = blocks.size();
  put(outbox, slots, 0, blocks.size() * sizeof(wire::Made), reply);
  if (reply.slots < slots.size()) {  // it said too small a number: none of it can be told, so none of it is
    std::vector<Handle> handles;
    for (const Reserved& block : blocks)
      if (block.handle != 0) handles.push_back(block.handle);
    index.abort(handles, {call.first_shard, call.shards});
    throw Malformed();
  }
}

void complete(Index& index, Owner owner, const wire::Call& call, std::span<const std::byte> inbox) {
  const auto handles = array<Handle>(inbox, call.at, call.count);
  const auto checksums = array<std::uint64_t>(inbox, call.at + 8 * call.count, call.count);
  const auto ok = array<std::uint8_t>(inbox, call.at + 16 * call.count, call.count);
  const std::vector<Handle> own(handles.begin(), handles.end());
  require(index.may_report(own, {call.first_shard, 1}, owner));
  index.complete(own, call.first_shard, ok, checksums);
}

void changes(Index& index, Owner owner, std::span<std::byte> outbox, wire::Reply& reply) {
  std::vector<Change> since;
  reply.id = index.changes(owner, since);
  reply.count = since.size();
  auto* const handles = reinterpret_cast<Handle*>(outbox.data());
  auto* const reasons = reinterpret_cast<std::uint8_t*>(handles + since.size());
  for (std::size_t i = 0; i < since.size(); ++i) {
    handles[i] = since[i].handle;
    reasons[i] = static_cast<std::uint8_t>(since[i].reason);
  }
}

}  // namespace

const char* name(wire::Verb verb) noexcept {
  static constexpr const char* kNames[] = {
      "none",           "look",         "leading", "last_run", "contains", "lease",         "slots",
      "release",        "drop_corrupt", "reserve", "complete", "abort",    "below_leading", "below_last_run",
      "below_contains", "watch",        "changes", "resident", "handles"};
  static_assert(std::size(kNames) == wire::kVerbs);
  return kNames[verb];
}

bool serve(Index& index, const DiskLog* log, Owner owner, const wire::Call& call,
           std::span<const std::byte> inbox, std::span<std::byte> outbox, wire::Reply& reply,
           Latencies& latencies) noexcept {
  const std::uint64_t now = index.clock().now();
  const std::uint64_t deadline = now + std::min(call.deadline, ~std::uint64_t{0} - now);
  reply.status = static_cast<std::uint32_t>(Status::kOk);
  try {
    switch (call.verb) {
      case wire::kLook:
        break;
      case wire::kLeading:
        reply.count = index.leading(chain_of(call, inbox), call.group, call.count);
        break;
      case wire::kLastRun:
        require(call.bytes > 0 && call.bytes < kFar);
        reply.count = index.last_run(chain_of(call, inbox), call.group, call.first, call.count, call.bytes);
        break;
      case wire::kContains:
        reply.count = index.contains(chain_of(call, inbox), call.group, call.first);
        break;
      case wire::kLease:
        lease(index, owner, deadline, call, inbox, outbox, reply);
        break;
      case wire::kSlots: {
        require(index.may_end(call.id, owner));
        const std::vector<Slot> slots = index.slots(call.id);
        reply.count = slots.size();
        put(outbox, slots, static_cast<std::size_t>(call.first), 0, reply);
        break;
      }
      case wire::kRelease: {
        require(call.kind <= static_cast<std::uint32_t>(Outcome::kExpired) && index.may_end(call.id, owner));
        const bool stood = index.release(call.id, static_cast<Outcome>(call.kind));
        reply.status = static_cast<std::uint32_t>(stood ? Status::kOk : Status::kNotFound);
        break;
      }
      case wire::kDropCorrupt: {
        require(index.may_end(call.id, owner));
        const auto positions = array<std::uint32_t>(inbox, call.at, call.count);
        index.drop_corrupt(call.id, std::vector<std::uint32_t>(positions.begin(), positions.end()));
        break;
      }
      case wire::kReserve:
        reserve(index, owner, deadline, call, inbox, outbox, reply);
        break;
      case wire::kComplete:
        complete(index, owner, call, inbox);
        break;
      case wire::kAbort: {
        const auto handles = array<Handle>(inbox, call.at, call.count);
        const std::vector<Handle> own(handles.begin(), handles.end());
        require(index.may_report(own, {call.first_shard, call.shards}, owner));
        index.abort(own, {call.first_shard, call.shards});
        break;
      }
      case wire::kBelowLeading:
        require(log != nullptr);
        reply.count = log->leading(chain_of(call, inbox), call.group, call.first, call.count);
        break;
      case wire::kBelowLastRun:
        require(log != nullptr && call.bytes > 0 && call.bytes < kFar);
        reply.count = log->last_run(chain_of(call, inbox), call.group, call.first, call.count, call.bytes);
        break;
      case wire::kBelowContains:
        require(log != nullptr);
        reply.count = log->contains(chain_of(call, inbox), call.group, call.first);
        break;
      case wire::kWatch:
        require(call.count > 0 && call.count <= outbox.size() / (sizeof(Handle) + 1));  // fit an answer
        index.watch(owner, static_cast<std::size_t>(call.count));
        break;
      case wire::kChanges:
        changes(index, owner, outbox, reply);
        break;
      case wire::kResident: {
        require(call.count <= outbox.size());
        const std::vector<bool> there = index.resident(array<Handle>(inbox, call.at, call.count));
        reply.count = there.size();
        std::ranges::transform(there, outbox.begin(), [](bool is) { return std::byte{is}; });
        break;
      }
      case wire::kHandles: {
        require(call.count <= outbox.size() / sizeof(Handle));
        const std::vector<Handle> handles =
            index.handles(chain_of(call, inbox), {call.group, call.first, call.count});
        reply.count = handles.size();
        std::ranges::copy(handles, reinterpret_cast<Handle*>(outbox.data()));
        break;
      }
      default:
        return false;
    }
  } catch (const Malformed&) {
    return false;
  } catch (const std::exception&) {  // what the index calls misuse
    return false;
  }
  reply.epoch = index.epoch(owner);
  reply.version = index.version();
  reply.below = log == nullptr ? 0 : log->version();
  latencies[call.verb].record(index.clock().now() - now);
  return true;
}

}  // namespace kvarter::node
