#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "node/server_impl.h"

namespace kvarter {

void NodeServer::Impl::read_all(std::uint64_t id) {
  for (;;) {
    const auto it = connections_.find(id);
    if (it == connections_.end() || !receive_one(id, it->second)) return;
  }
}

bool NodeServer::Impl::receive_one(std::uint64_t id, Connection& connection) {
  std::size_t size = 0;
  if (connection.exchange != nullptr) {
    wire::Call call{};
    const Received got = receive_packet(connection.socket.get(), bytes_of(call), size);
    if (got == Received::kEnd) drop(id);
    if (got != Received::kPacket) return false;
    if (size == sizeof call && answer(connection, call)) return false;  // the others' turn
    if (!hung_up(connection.socket.get())) ++counters_.violations;  // else it gave up waiting, and is gone
    drop(id);
    return false;
  }
  if (connection.mapper == 0) {
    wire::Hello hello{};
    const Received got = receive_packet(connection.socket.get(), bytes_of(hello), size);
    if (got == Received::kNothing) return false;
    if (got == Received::kEnd)
      drop(id);
    else
      introduce(id, connection, hello, size);
    return true;
  }
  wire::Notice packet{};
  const Received got = receive_packet(connection.socket.get(), bytes_of(packet), size);
  if (got == Received::kNothing) return false;
  const bool good = got == Received::kPacket && size == sizeof packet && notice(connection, packet);
  if (!good && got == Received::kPacket) ++counters_.violations;
  if (!good) drop(id);
  return true;
}

void NodeServer::Impl::introduce(std::uint64_t id, Connection& connection, const wire::Hello& hello,
                                 std::size_t size) {
  // Nothing that is no Hello of some version deserves an answer.
  if (size < 2 * sizeof(std::uint32_t) || hello.magic != wire::kMagic) {
    ++counters_.violations;
    return drop(id);
  }
  try {
    if (hello.protocol >= wire::kFirstWithSessions && (hello.rank & wire::kSession))
      return begin_session(id, connection, hello, size);
    const std::uint64_t mapper = admit(id, connection, hello, size);
    if (mapper == 0 || !grant(connection, roster_.find(mapper)->owner, exported_)) return drop(id);
    due_.insert(roster_.find(mapper)->owner);
  } catch (const NodeRefused& refused) {
    ++counters_.refused;
    const std::string_view text = refused.what();
    wire::Answer answer{.magic = wire::kMagic,
                        .protocol = wire::kProtocol,
                        .refusal = static_cast<std::uint32_t>(refused.refusal),
                        .text_bytes = static_cast<std::uint32_t>(std::min(text.size(), sizeof answer.text)),
                        .owner = 0,
                        .descriptors = 0,
                        .text = {}};
    std::memcpy(answer.text, text.data(), answer.text_bytes);
    send_packet(connection.socket.get(), bytes_of(answer));
    drop(id);
  }
}

namespace {

void require_equal(Refusal why, const char* what, std::uint64_t found, std::uint64_t expected) {
  if (found != expected)
    throw NodeRefused(why, std::string(what) + " found " + std::to_string(found) + ", expected " +
                               std::to_string(expected));
}

// Versions next to ours differ in what they can ask, and understand each other's.
void require_neighbour(std::uint32_t protocol) {
  if (protocol + 1 < wire::kProtocol || protocol > wire::kProtocol + 1)
    require_equal(Refusal::kProtocol, "protocol version", protocol, wire::kProtocol);
}

bool same_process(const Mapper& mapper, const Connection& connection) {
  if (mapper.pid != 0 || connection.peer.pid != 0) return mapper.pid == connection.peer.pid;
  const Fd peer = watch_peer(connection.socket.get());  // of another pid namespace, as many are
  return peer && of_one_process(mapper.pidfd.get(), peer.get());
}

}  // namespace

// The mapper this connection speaks for, watched from here on; 0 if the Hello is malformed.
std::uint64_t NodeServer::Impl::admit(std::uint64_t id, Connection& connection, const wire::Hello& hello,
                                      std::size_t size) {
  require_equal(Refusal::kUid, "uid", connection.peer.uid, ::geteuid());
  require_neighbour(hello.protocol);
  if (size != sizeof hello || hello.name_bytes == 0 || hello.name_bytes > wire::kNameBytes) return 0;
  require_equal(Refusal::kLayout, "layout version", hello.layout, layout_);
  const std::string_view name(hello.name, hello.name_bytes);
  std::uint32_t owner = roster_.owner_of(name, hello.rank);
  std::uint64_t holder = roster_.holder(owner, hello.rank);
  if (holder != 0) {  // its end may be waiting to be read, and the engine may go with it
    const Mapper& mapper = *roster_.find(holder);
    if (ended(mapper.pidfd.get()))
      bury(holder);
    else if (same_process(mapper, connection) && mapper.connection != 0)
      read_all(mapper.connection);
    owner = roster_.owner_of(name, hello.rank);
    holder = roster_.holder(owner, hello.rank);
  }
  if (holder != 0) {
    Mapper& mapper = *roster_.find(holder);
    if (!same_process(mapper, connection) || mapper.connection != 0)
      throw NodeRefused(Refusal::kDuplicate, "rank " + std::to_string(hello.rank) + " of engine '" +
                                                 printable(name) + "' is mapped by pid " +
                                                 std::to_string(mapper.pid) + ", which is alive");
    mapper.connection = id;
    mapper.mapped = false;
    mapper.asked_below = mapper.fenced_below;
    return connection.mapper = holder;
  }
  Fd pidfd = watch_peer(connection.socket.get());
  const std::uint64_t mapper = ++last_mapper_;
  if (!pidfd || !watch(pidfd.get(), tag(kProcess, mapper)))
    throw NodeRefused(Refusal::kUnwatched, "pid " + std::to_string(connection.peer.pid) +
                                               " cannot be watched: " + std::strerror(errno));
  roster_.add(mapper, {.owner = owner,
                       .rank = hello.rank,
                       .pid = connection.peer.pid,
                       .pidfd = std::move(pidfd),
                       .connection = id});
  return connection.mapper = mapper;
}

void NodeServer::Impl::begin_session(std::uint64_t id, Connection& connection, const wire::Hello& hello,
                                     std::size_t size) {
  require_equal(Refusal::kUid, "uid", connection.peer.uid, ::geteuid());
  require_neighbour(hello.protocol);
  const std::uint32_t ranks = hello.rank & ~wire::kSession;
  if (size != sizeof hello || hello.name_bytes == 0 || hello.name_bytes > wire::kNameBytes || ranks == 0 ||
      ranks >= 65536) {
    ++counters_.violations;
    return drop(id);
  }
  if (!listener_->serves())
    throw NodeRefused(Refusal::kEmbedded, "this pool is inside an engine; sessions are for `kvarter serve`");
  if (draining_) throw NodeRefused(Refusal::kDraining, "the node is draining and lets nobody in");
  const std::string name(hello.name, hello.name_bytes);
  std::vector<std::uint64_t> over;  // sessions that have ended, and whose end nobody has read yet
  for (const auto& [other, held] : connections_)
    if (held.exchange != nullptr && hung_up(held.socket.get())) over.push_back(other);
  for (const std::uint64_t other : over) drop(other);
  std::unique_ptr<Memfd> exchange;
  try {
    exchange = std::make_unique<Memfd>("kvarter-exchange", wire::kInbox + wire::kOutbox);
  } catch (const std::system_error& error) {
    throw NodeRefused(Refusal::kMemory, std::string("no memory for a session: ") + error.what());
  }
  const std::uint32_t owner = roster_.open_session(name, ranks, id);
  connection.owner = owner;
  connection.exchange = std::move(exchange);
  ++counters_.sessions;
  ++counters_.sessions_now;
  const Exported file{connection.exchange->fd(), connection.exchange->bytes(), ArenaKind::kExchange, 0};
  if (!grant(connection, owner, {&file, 1})) return drop(id);
  for (const std::uint64_t left : roster_.left_behind(owner)) {
    const wire::Notice packet{.type = wire::kMoved, .zero = 0, .epoch = 0};
    const std::uint64_t theirs = roster_.find(left)->connection;
    if (!send_packet(connections_.at(theirs).socket.get(), std::as_bytes(std::span(&packet, 1))))
      drop(theirs);
  }
}

// False if it is malformed, or cannot be answered.
bool NodeServer::Impl::answer(Connection& connection, const wire::Call& call) {
  ++counters_.calls;
  const std::span exchange(connection.exchange->data(), connection.exchange->bytes());
  wire::Reply reply{};
  if (!listener_->on_call(connection.owner, call, exchange.first(wire::kInbox),
                          exchange.subspan(wire::kInbox), reply))
    return false;
  reply.number = call.number;
  reply.attached = roster_.attached(connection.owner);
  return send_packet(connection.socket.get(), bytes_of(reply));
}

bool NodeServer::Impl::grant(const Connection& connection, std::uint32_t owner,
                             std::span<const Exported> files) {
  wire::Answer answer{};
  answer.magic = wire::kMagic;
  answer.protocol = wire::kProtocol;
  answer.owner = owner;
  answer.descriptors = static_cast<std::uint32_t>(files.size());
  if (!send_packet(connection.socket.get(), bytes_of(answer))) return false;
  for (std::size_t first = 0; first < files.size(); first += wire::kDescriptorsPerGrant) {
    wire::Grant packet{};
    std::array<int, wire::kDescriptorsPerGrant> descriptors{};
    packet.count =
        static_cast<std::uint32_t>(std::min<std::size_t>(files.size() - first, wire::kDescriptorsPerGrant));
    for (std::size_t i = 0; i < packet.count; ++i) {
      const Exported& file = files[first + i];
      packet.items[i] = {file.bytes, static_cast<std::uint32_t>(file.kind), file.arena};
      descriptors[i] = file.fd;
    }
    if (!send_packet(connection.socket.get(), bytes_of(packet), std::span(descriptors).first(packet.count)))
      return false;
  }
  return true;
}

// False if it is malformed.
bool NodeServer::Impl::notice(Connection& connection, const wire::Notice& notice) {
  Mapper& mapper = *roster_.find(connection.mapper);
  if (notice.zero != 0) return false;
  if (notice.type == wire::kMapped && notice.epoch == 0 && !mapper.mapped) {
    mapper.mapped = true;
    return true;
  }
  const bool asked = mapper.asked_below > mapper.fenced_below && notice.epoch == mapper.asked_below - 1;
  if (notice.type != wire::kFenced || !asked) return false;
  mapper.fenced_below = mapper.asked_below;
  due_.insert(mapper.owner);
  return true;
}

// Ends the fences that are over and asks every mapper in reach for the next.
void NodeServer::Impl::advance(std::uint32_t owner) {
  roster_.settle(owner, events_);
  for (const std::uint64_t id : roster_.ids(owner)) {
    Mapper& mapper = *roster_.find(id);
    if (mapper.connection == 0) continue;
    const auto epoch = roster_.next_fence(mapper);
    if (!epoch) continue;
    const wire::Notice packet{.type = wire::kFence, .zero = 0, .epoch = *epoch};
    if (!send_packet(connections_.at(mapper.connection).socket.get(), std::as_bytes(std::span(&packet, 1))))
      drop(mapper.connection);
  }
}

void NodeServer::Impl::drop(std::uint64_t id) {
  const auto it = connections_.find(id);
  if (Mapper* const mapper = roster_.find(it->second.mapper); mapper != nullptr) {
    mapper->connection = 0;
    // A session's own rank copies nothing: no fence waits for it, and there is no death to wait for.
    if (roster_.only_looks(*mapper)) roster_.remove(it->second.mapper, events_);
  }
  if (it->second.exchange != nullptr) {
    roster_.end_session(it->second.owner, events_);
    --counters_.sessions_now;
  }
  connections_.erase(it);
}

void NodeServer::Impl::bury(std::uint64_t id) {
  Mapper* const mapper = roster_.find(id);
  if (mapper == nullptr) return;
  if (mapper->connection != 0) drop(mapper->connection);
  if (roster_.find(id) != nullptr) roster_.remove(id, events_);
}

}  // namespace kvarter
