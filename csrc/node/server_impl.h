#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvarter/node.h"
#include "kvarter/pool.h"
#include "node/fd.h"
#include "node/roster.h"
#include "node/socket.h"
#include "node/wire.h"

namespace kvarter::node {

// What an epoll event is about: the source in the top byte, an id of ours below it.
enum Source : std::uint64_t { kWake = 0, kDoor = 1, kConnection = 2, kProcess = 3 };
inline constexpr std::uint64_t tag(Source source, std::uint64_t id = 0) { return source << 56 | id; }

struct Connection {
  Fd socket;
  Peer peer;
  std::uint64_t mapper = 0;  // that it speaks for
  // Of a session: whose, and the memory shared with it.
  std::uint32_t owner = 0;
  std::unique_ptr<Memfd> exchange;
  bool stranger() const { return mapper == 0 && exchange == nullptr; }
};

}  // namespace kvarter::node

namespace kvarter {

using namespace node;  // this header is the node's own

// The node's thread and what it works on. server.cpp has the loop, attach.cpp what packets and deaths mean.
class NodeServer::Impl {
 public:
  Impl(std::string path, std::span<const Exported> exported, std::uint32_t layout,
       std::shared_ptr<Listener> listener, std::uint32_t tick_ms, std::uint32_t last_owner);

  void run();
  void close() noexcept;
  void wake() const noexcept;
  void require_open() const {
    if (stop_) throw NodeError("the node at '" + path_ + "' is closed");
  }

  const std::string path_;
  mutable std::mutex mutex_;  // guards what the public methods share with the thread: what follows
  Roster roster_;
  std::set<std::uint32_t> due_;  // owners with a fence to send or to end
  bool stop_ = false, draining_ = false;
  NodeCounters counters_;
  std::vector<Event> events_;

 private:
  bool watch(int fd, std::uint64_t data) const;
  void handle(std::uint64_t data);
  void accept_all();
  void read_all(std::uint64_t id);
  bool receive_one(std::uint64_t id, Connection& connection);
  void introduce(std::uint64_t id, Connection& connection, const wire::Hello& hello, std::size_t size);
  std::uint64_t admit(std::uint64_t id, Connection& connection, const wire::Hello& hello, std::size_t size);
  bool grant(const Connection& connection, std::uint32_t owner, std::span<const Exported> files);
  void begin_session(std::uint64_t id, Connection& connection, const wire::Hello& hello, std::size_t size);
  bool answer(Connection& connection, const wire::Call& call);
  bool notice(Connection& connection, const wire::Notice& notice);
  void advance(std::uint32_t owner);
  void drop(std::uint64_t id);
  void bury(std::uint64_t mapper);
  void set_door(bool open);

  const std::uint32_t layout_;
  const std::shared_ptr<Listener> listener_;
  const std::chrono::milliseconds tick_;
  const pid_t process_ = ::getpid();
  std::vector<Exported> exported_;
  std::vector<Fd> files_;
  Fd epoll_, wake_, door_;
  struct stat file_{};
  // The thread's own:
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t last_connection_ = 0, last_mapper_ = 0;
  bool door_open_ = true;

  std::mutex closing_;  // guards thread_
  std::unique_ptr<std::thread> thread_;
};

}  // namespace kvarter
