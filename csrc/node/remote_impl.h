#pragma once
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kvarter/finder.h"
#include "kvarter/node.h"
#include "kvarter/remote.h"
#include "node/greeting.h"
#include "node/wire.h"

namespace kvarter {

using namespace node;  // this header is the session's own

// The session itself: connection, shared memory, and what is known of leases and writes under way. remote.cpp
// has what is asked over it.
class RemoteIndex::Impl {
 public:
  Impl(const std::string& path, const std::string& name, std::uint32_t ranks, std::uint32_t layout,
       std::chrono::milliseconds timeout, std::chrono::milliseconds patience)
      : patience_(patience) {
    const auto deadline = Steady::now() + timeout;
    Greeting to = greet(path, name, wire::kSession | ranks, layout, deadline);
    if (to.granted.size() != 1 || to.granted[0].kind != ArenaKind::kExchange ||
        to.granted[0].bytes != wire::kInbox + wire::kOutbox)
      throw NodeError("the node at '" + path + "' grants no session");
    exchange_.emplace(Memfd::adopt(to.files[0].release()));
    socket_ = std::move(to.socket);
    node_ = std::move(to.node);
    owner = to.owner;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now());
    try {
      mapper.emplace(path, name, ranks, layout, nullptr, std::max(left, std::chrono::milliseconds(1)));
      mapping_ = mapper->mapping();
      finder.emplace(mapping_->records(), mapping_->index());
    } catch (const NodeRefused& refused) {
      if (refused.refusal != Refusal::kLayout) throw;
    }
    connected = true;
  }

  // Sends the call and waits for its reply; false when there is none. REQUIRES: the lock.
  bool ask(wire::Call call, wire::Reply& reply) {
    if (!connected) return false;
    call.number = ++number_;
    if (call.deadline != 0) {
      const auto now = static_cast<std::uint64_t>(Steady::now().time_since_epoch().count());
      call.deadline -= std::min(call.deadline, now);
    }
    if (send_packet(socket_.get(), bytes_of(call)) && receive(reply) && reply.number == number_) {
      epoch = reply.epoch;
      remote_version = reply.version;
      below_version = reply.below;
      attached = reply.attached;
      return true;
    }
    end();
    return false;
  }

  void end() {
    connected = false;
    socket_.reset();
  }

  std::byte* inbox() { return exchange_->data(); }
  const std::byte* outbox() const { return exchange_->data() + wire::kInbox; }

  // Where the chain's digests end in the inbox; nothing when they do not fit.
  std::optional<std::uint64_t> put(const Chain& chain, wire::Call& call) {
    const std::uint64_t bytes = (chain.digests.size() + 1) * sizeof(Digest);
    if (bytes > wire::kInbox / 2) return std::nullopt;
    std::memcpy(inbox(), chain.parent.data(), sizeof(Digest));
    if (!chain.digests.empty())  // what a span of nothing points at is nothing
      std::memcpy(inbox() + sizeof(Digest), chain.digests.data(), chain.digests.size_bytes());
    call.ns = chain.ns;
    call.first_unit = chain.first_unit;
    call.units = chain.digests.size();
    return bytes;
  }

  template <class T>
  std::uint64_t put_at(std::uint64_t at, std::span<const T> values) {
    if (!values.empty()) std::memcpy(inbox() + at, values.data(), values.size_bytes());
    return at + values.size_bytes();
  }

  void take(const wire::Reply& reply, std::uint64_t at, std::vector<Slot>& slots) const {
    const auto* const places = reinterpret_cast<const wire::Place*>(outbox() + at);
    for (std::uint64_t i = 0; i < reply.slots; ++i)
      slots.push_back({places[i].record, places[i].arena, places[i].offset, places[i].length,
                       places[i].checksum, places[i].generation});
  }

  // A look-up through the socket, for who cannot read the mapped index.
  std::uint64_t find(wire::Verb verb, const Chain& chain, std::uint32_t group, std::uint64_t first,
                     std::uint64_t count, std::uint64_t step) {
    const std::lock_guard lock(mutex);
    wire::Call call{.verb = verb, .group = group, .first = first, .count = count, .bytes = step};
    wire::Reply reply{};
    return put(chain, call) && ask(call, reply) ? reply.count : 0;
  }

  std::mutex mutex;
  std::atomic<bool> connected{false};
  Owner owner = 0;
  std::atomic<std::uint64_t> epoch{0}, remote_version{0}, below_version{0};
  std::atomic<std::uint32_t> attached{0};
  std::optional<NodeClient> mapper;
  std::optional<Finder> finder;
  std::map<std::uint32_t, std::uint32_t> most_shards;                // by namespace
  std::map<LeaseId, std::pair<std::uint64_t, std::uint64_t>> reads;  // blocks and bytes of open read leases
  std::vector<Slot> fresh;                                           // slots of `fresh_lease`
  LeaseId fresh_lease = 0;
  struct Pending {  // an entry that this session writes shards of
    std::uint64_t shards, bytes;
    bool ok;
  };
  std::unordered_map<Handle, Pending> writes;
  Counters counts;

  void ended(std::unordered_map<Handle, Pending>::iterator write, Reason reason) {
    --counts.in_flight;
    if (reason == Reason::kNone) {
      ++counts.stored;
      counts.stored_bytes += write->second.bytes;
    } else {
      ++counts.reasons[static_cast<int>(reason)];
    }
    writes.erase(write);
  }

 private:
  bool receive(wire::Reply& reply) {
    const auto until = Steady::now() + patience_;
    for (;;) {
      std::size_t size = 0;
      const Received got = receive_packet(socket_.get(), bytes_of(reply), size);
      if (got == Received::kPacket) return size == sizeof reply;
      if (got == Received::kEnd) return false;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Steady::now());
      std::array<pollfd, 2> wait{{{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = node_.get(), .events = POLLIN, .revents = 0}}};
      const int ready =
          ::poll(wait.data(), wait.size(), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
      if (ready == 0) return false;
      if (ready > 0 && wait[0].revents == 0) return false;  // it died
    }
  }

  const std::chrono::milliseconds patience_;
  std::optional<Memfd> exchange_;
  Fd socket_, node_;
  std::shared_ptr<const Mapping> mapping_;
  std::uint32_t number_ = 0;
};

}  // namespace kvarter
