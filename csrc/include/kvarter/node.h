#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvarter/mapping.h"

// Attaching to the pool. The node listens on a Unix socket in an owner-only directory; each engine worker
// connects, is checked (uid, protocol, layout, engine, rank), gets the pool's descriptors, maps them and says
// so. From the moment it was sent a descriptor its process is a *mapper*: it may write into the pool, and
// nothing but its death, seen through a pidfd, ends that. A closed socket proves nothing: a forked helper
// keeps it open past death, and a live process may close it and go on copying. What a live mapper can do is
// acknowledge a *fence*: "no copy of epoch <= e is running here". No payload byte ever crosses the socket.
// The messages are in csrc/node/PROTOCOL.md.
namespace kvarter {

namespace wire {
struct Call;
struct Reply;
}  // namespace wire

// Anything that keeps node and client apart: no node, no answer, a directory others can enter.
class NodeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Why the node turned a mapper away. On the wire: numbers keep their meaning for ever.
enum class Refusal : std::uint32_t {
  kNone = 0,
  kUid = 1,        // another user's process
  kProtocol = 2,   // another version of these messages
  kLayout = 3,     // another layout of records and index
  kEngine = 4,     // no engine of that name is open here
  kRank = 5,       // the engine has fewer ranks
  kDuplicate = 6,  // a live process has that rank already
  kUnwatched = 7,  // no pidfd to be had, so its death would go unseen
  kEmbedded = 8,   // sessions are for a node of its own process
  kDraining = 9,   // the node is ending, or hands over to another
  kMemory = 10,    // none left for a session
};

// The node's answer when it refuses: one sentence with what was found and what was expected.
class NodeRefused : public NodeError {
 public:
  NodeRefused(Refusal why, const std::string& sentence) : NodeError(sentence), refusal(why) {}
  const Refusal refusal;
};

// What the node's owner (the index) hears. Called on the server's thread only, never under its lock, so any
// method of NodeServer but close() may be called from inside. Must not throw, block or take Python's GIL.
class Listener {
 public:
  virtual ~Listener() = default;
  // Every fence of `owner` up to `epoch` has ended: each mapper acknowledged it or is dead. Fences that end
  // together are told once, by the highest epoch; one made after a higher one ended is told on its own.
  virtual void on_fenced(std::uint32_t owner, std::uint64_t epoch) = 0;
  // The last process that mapped the pool for `owner` is dead; its fences have ended before this call. Comes
  // again if mappers attach again and die.
  virtual void on_dead(std::uint32_t owner) = 0;
  // About every tick_ms.
  virtual void on_tick() = 0;
  // An engine that came with a session is gone: its session has ended and nobody maps for it. Its number
  // means nothing any more.
  virtual void on_gone(std::uint32_t owner) { static_cast<void>(owner); }

  // Whether engines may come by themselves, each with a session.
  virtual bool serves() const { return false; }
  // A session asks; fills `reply` and the outbox. False when what it asks is malformed or of another's: the
  // session ends. Called under the server's lock: may not call the server.
  virtual bool on_call(std::uint32_t owner, const wire::Call& call, std::span<const std::byte> inbox,
                       std::span<std::byte> outbox, wire::Reply& reply);
};

// What came and went at the door since start.
struct NodeCounters {
  std::uint64_t connections = 0, refused = 0, violations = 0, sessions = 0, calls = 0;
  std::uint64_t mappers_now = 0, sessions_now = 0;
};

// An engine that was opened here. pids: of its live mappers.
struct EngineStatus {
  std::uint32_t owner = 0, ranks = 0, attached = 0;
  std::string name;
  bool session = false;
  std::vector<pid_t> pids;
};

// The node's side. Threads: every method is safe from any thread; one own thread serves all connections and
// never waits for a client. Malformed input drops the connection it came on and nothing else. Beyond 64
// connections that have not introduced themselves the oldest is dropped.
class NodeServer {
 public:
  // Listens at `path` (at most 107 bytes). The directory is created with mode 0700 (its parent must exist) or
  // must be owner-only already; a socket left by a dead node is replaced, a live node's is refused. The
  // descriptors are duplicated, those of records and index read-only. Owners are numbered from `last_owner`
  // + 1. REQUIRES: tick_ms >= 1; exported as Mapping wants it. Throws NodeError, std::invalid_argument.
  NodeServer(std::string path, std::span<const Exported> exported, std::uint32_t layout_version,
             std::shared_ptr<Listener> listener, std::uint32_t tick_ms, std::uint32_t last_owner = 0);
  ~NodeServer();  // close()
  NodeServer(const NodeServer&) = delete;
  NodeServer& operator=(const NodeServer&) = delete;

  // Lets ranks 0 .. ranks-1 of engine `name` attach and returns its owner id, never 0 and never reused. A
  // name opened again (the engine returned) gets a new owner; mappers of the old one stay watched under it.
  // REQUIRES: name of 1 to 108 bytes, ranks in [1, 65536]. Throws std::invalid_argument, NodeError if closed.
  std::uint32_t open_engine(const std::string& name, std::uint32_t ranks);

  // Ranks of `owner` whose live mapper has said that its mapping stands and can still be reached.
  // Throws std::invalid_argument for an owner never opened, as do the next two.
  std::uint32_t attached(std::uint32_t owner) const;

  // Asks every mapper of `owner`, also those without a connection, to end its copies of epoch <= `epoch`.
  // Returns at once; ends in on_fenced, which comes at once too where nobody maps. A mapper is asked one
  // fence at a time, and then the highest still wanted. Of a closed node nobody is asked: a listener's tick
  // may fall into its closing. REQUIRES: epoch < 2^64 - 1.
  void fence(std::uint32_t owner, std::uint64_t epoch);

  NodeCounters counters() const;
  // Engines with a session or a live mapper.
  std::vector<EngineStatus> engines() const;
  // Kills (SIGKILL) the mappers that this has found behind with a fence for longer than that, and returns
  // their process ids; 0 for one of another pid namespace. For operators who would rather lose a process that
  // does not answer than the memory that it may still write. To be called again and again.
  std::vector<pid_t> kill_behind(std::chrono::milliseconds longer_than);
  // From now on nobody new is let in; those who are in stay. Not undone.
  void drain();

  // Process ids of the live mappers of `owner`, one per rank, in order of attaching.
  std::vector<pid_t> mappers(std::uint32_t owner) const;

  const std::string& path() const noexcept;

  // Ends the thread, the connections and the socket file. Mappings in clients stay valid and are no longer
  // watched. Idempotent. In a forked child this does nothing.
  void close() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// What a mapper does on a fence; the copy engine is one.
class FenceHandler {
 public:
  virtual ~FenceHandler() = default;
  // Returns when no copy of epoch <= `epoch` is running in this process and none will start. Called on the
  // client's thread. A handler that throws ends the connection unacknowledged: the fence then waits for this
  // process's death.
  virtual void fence(std::uint64_t epoch) = 0;
};

// The engine worker's side. Threads: every method is safe from any thread; one own thread acknowledges
// fences. When the node vanishes (its death is seen through a pidfd too) connected() turns false and the
// mapping stays as it is.
class NodeClient {
 public:
  // Connects, receives the pool, maps it and says so; returns within about `timeout`. A process that lost its
  // connection may construct another client for the same rank: it stays the same mapper, so `handler` must
  // answer for every copy of this process under that rank. No handler: nothing is ever copied, fences are
  // acknowledged at once.
  // REQUIRES: no fork runs at the same time. Throws NodeRefused (the node's sentence), NodeError,
  // std::invalid_argument, std::system_error.
  NodeClient(const std::string& path, const std::string& engine, std::uint32_t rank,
             std::uint32_t layout_version, std::shared_ptr<FenceHandler> handler,
             std::chrono::milliseconds timeout);
  ~NodeClient();  // close()
  NodeClient(const NodeClient&) = delete;
  NodeClient& operator=(const NodeClient&) = delete;

  // Lives on after close() for whoever holds it. The client keeps the pool's descriptors as long as it
  // exists, so that a node that comes after this one finds the pool in this process.
  std::shared_ptr<const Mapping> mapping() const noexcept;
  bool connected() const noexcept;
  // The engine has another session since: attach again, and keep this one, which still answers its fences.
  bool moved() const noexcept;
  std::uint32_t owner() const noexcept;

  // Ends the thread and the connection, after the fence it is in; this process stays a mapper until it dies.
  // Idempotent. In a forked child this does nothing.
  void close() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Where sockets go unless told otherwise: $XDG_RUNTIME_DIR/kvarter if that directory is set and ours to write
// in, else kvarter-<uid> in the temporary directory. Creates nothing.
std::string default_directory();

}  // namespace kvarter
