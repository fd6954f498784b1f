#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvarter/node.h"
#include "node/fd.h"

namespace kvarter::node {

// A process that was given the pool's descriptors for one rank of one owner, until its pidfd fires. Fences
// are kept as "all epochs below", so that 0 means none yet.
struct Mapper {
  std::uint32_t owner, rank;
  pid_t pid;
  Fd pidfd;
  std::uint64_t connection;  // 0: it closed its socket, and lives
  bool mapped = false;
  std::uint64_t asked_below = 0, fenced_below = 0;
  std::optional<std::chrono::steady_clock::time_point> behind_since{};  // with an open fence
};

struct Event {
  enum class Kind { kFenced, kDead, kGone } kind;
  std::uint32_t owner;
  std::uint64_t epoch;  // of kFenced
};

// Who may attach, who has, and which fences are open. Knows no sockets; not thread-safe.
class Roster {
 public:
  explicit Roster(std::uint32_t last_owner = 0) : last_owner_(last_owner) {}
  std::uint32_t open(const std::string& name, std::uint32_t ranks);
  // For a session over `connection`; throws NodeRefused while another one of that name stands. The session's
  // own process is its last rank, of which `attached` knows, too.
  std::uint32_t open_session(const std::string& name, std::uint32_t ranks, std::uint64_t connection);
  void end_session(std::uint32_t owner, std::vector<Event>& events);
  // Mappers in reach that came for an engine of this one's name, as an owner before it.
  std::vector<std::uint64_t> left_behind(std::uint32_t owner) const;
  std::vector<EngineStatus> engines() const;
  std::size_t mappers() const { return mappers_.size(); }
  // The owner of (engine, rank), or throws NodeRefused.
  std::uint32_t owner_of(std::string_view engine, std::uint32_t rank) const;

  void add(std::uint64_t id, Mapper mapper);
  Mapper* find(std::uint64_t id);
  std::uint64_t holder(std::uint32_t owner, std::uint32_t rank) const;  // id of its live mapper, 0 if none
  void remove(std::uint64_t id, std::vector<Event>& events);
  // Whether it is a session's own process, in the rank that reads the index and copies nothing.
  bool only_looks(const Mapper& mapper) const;

  // Of an engine that is gone there is nobody to ask: its fences end at once.
  void fence(std::uint32_t owner, std::uint64_t epoch, std::vector<Event>& events);
  // The epoch to ask this mapper for now, if any; counts as asked.
  std::optional<std::uint64_t> next_fence(Mapper& mapper);
  // Mappers that have kept a fence open for so long.
  std::vector<std::uint64_t> behind(std::chrono::milliseconds longer_than);
  // Ends what every mapper has acknowledged.
  void settle(std::uint32_t owner, std::vector<Event>& events);

  std::uint32_t attached(std::uint32_t owner) const;
  std::vector<pid_t> mappers(std::uint32_t owner) const;
  std::vector<std::uint64_t> ids(std::uint32_t owner) const;

 private:
  struct Engine {
    std::string name;
    std::uint32_t ranks;
    std::set<std::uint64_t> fences;  // open, by epoch
    std::uint64_t session = 0;       // its connection
    bool came = false;               // with a session, and goes when that has ended and nobody maps
  };
  const Engine& engine(std::uint32_t owner) const;
  void leave(std::uint32_t owner, std::vector<Event>& events);

  std::map<std::uint32_t, Engine> engines_;  // by owner
  std::uint32_t last_owner_;
  std::map<std::uint64_t, Mapper> mappers_;
};

}  // namespace kvarter::node
