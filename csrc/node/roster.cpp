#include "node/roster.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "node/socket.h"
#include "node/wire.h"

namespace kvarter::node {

std::uint32_t Roster::open(const std::string& name, std::uint32_t ranks) {
  if (name.empty() || name.size() > wire::kNameBytes)
    throw std::invalid_argument("engine name has " + std::to_string(name.size()) + " bytes, expected 1 to " +
                                std::to_string(wire::kNameBytes));
  if (ranks == 0 || ranks > 65536)
    throw std::invalid_argument("engine '" + name + "' has " + std::to_string(ranks) +
                                " ranks, expected 1 to 65536");
  engines_.emplace(++last_owner_, Engine{name, ranks, {}, 0, false});
  return last_owner_;
}

std::uint32_t Roster::open_session(const std::string& name, std::uint32_t ranks, std::uint64_t connection) {
  for (const auto& [owner, engine] : engines_)
    if (engine.name == name && engine.session != 0)
      throw NodeRefused(Refusal::kDuplicate, "engine '" + printable(name) +
                                                 "' has a session already, as owner " +
                                                 std::to_string(owner) + ": two engines need two names");
  const std::uint32_t owner = open(name, ranks + 1);
  engines_.at(owner).session = connection;
  engines_.at(owner).came = true;
  return owner;
}

void Roster::end_session(std::uint32_t owner, std::vector<Event>& events) {
  engines_.at(owner).session = 0;
  leave(owner, events);
}

void Roster::leave(std::uint32_t owner, std::vector<Event>& events) {
  const Engine& engine = engines_.at(owner);
  if (!engine.came || engine.session != 0 || !ids(owner).empty()) return;
  engines_.erase(owner);
  events.push_back({Event::Kind::kGone, owner, 0});
}

std::vector<std::uint64_t> Roster::left_behind(std::uint32_t owner) const {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, mapper] : mappers_)
    if (mapper.owner != owner && mapper.connection != 0 && engine(mapper.owner).name == engine(owner).name)
      ids.push_back(id);
  return ids;
}

std::vector<EngineStatus> Roster::engines() const {
  std::vector<EngineStatus> all;
  for (const auto& [owner, engine] : engines_)
    all.push_back({owner, engine.ranks, attached(owner), engine.name, engine.session != 0, mappers(owner)});
  return all;
}

std::uint32_t Roster::owner_of(std::string_view engine, std::uint32_t rank) const {
  for (auto it = engines_.rbegin(); it != engines_.rend(); ++it) {  // the newest of that name
    const auto& [owner, known] = *it;
    if (known.name != engine) continue;
    if (rank >= known.ranks)
      throw NodeRefused(Refusal::kRank, "rank " + std::to_string(rank) + " of engine '" + printable(engine) +
                                            "' is out of range, expected below " +
                                            std::to_string(known.ranks));
    return owner;
  }
  throw NodeRefused(Refusal::kEngine, "engine '" + printable(engine) +
                                          "' is unknown here: it must be opened at the node first");
}

void Roster::add(std::uint64_t id, Mapper mapper) { mappers_.emplace(id, std::move(mapper)); }

Mapper* Roster::find(std::uint64_t id) {
  const auto it = mappers_.find(id);
  return it == mappers_.end() ? nullptr : &it->second;
}

std::uint64_t Roster::holder(std::uint32_t owner, std::uint32_t rank) const {
  for (const auto& [id, mapper] : mappers_)
    if (mapper.owner == owner && mapper.rank == rank) return id;
  return 0;
}

void Roster::remove(std::uint64_t id, std::vector<Event>& events) {
  const std::uint32_t owner = mappers_.at(id).owner;
  mappers_.erase(id);
  settle(owner, events);
  if (!ids(owner).empty()) return;
  events.push_back({Event::Kind::kDead, owner, 0});
  leave(owner, events);
}

bool Roster::only_looks(const Mapper& mapper) const {
  const Engine& engine = engines_.at(mapper.owner);
  return engine.came && mapper.rank + 1 == engine.ranks;
}

void Roster::fence(std::uint32_t owner, std::uint64_t epoch, std::vector<Event>& events) {
  if (epoch == std::numeric_limits<std::uint64_t>::max())
    throw std::invalid_argument("fence of epoch 2^64 - 1, expected below");
  const auto engine = engines_.find(owner);
  if (engine != engines_.end())
    engine->second.fences.insert(epoch);
  else if (owner != 0 && owner <= last_owner_)
    events.push_back({Event::Kind::kFenced, owner, epoch});
  else
    throw std::invalid_argument("owner " + std::to_string(owner) + " was never opened, expected 1 to " +
                                std::to_string(last_owner_));
}

std::optional<std::uint64_t> Roster::next_fence(Mapper& mapper) {
  const auto& fences = engines_.at(mapper.owner).fences;
  const bool in_flight = mapper.asked_below > mapper.fenced_below;
  if (fences.empty() || in_flight || *fences.rbegin() < mapper.fenced_below) return std::nullopt;
  mapper.asked_below = *fences.rbegin() + 1;
  return *fences.rbegin();
}

void Roster::settle(std::uint32_t owner, std::vector<Event>& events) {
  std::uint64_t below = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [id, mapper] : mappers_)
    if (mapper.owner == owner) below = std::min(below, mapper.fenced_below);
  const auto engine = engines_.find(owner);
  if (engine == engines_.end()) return;
  auto& fences = engine->second.fences;
  const auto open = fences.lower_bound(below);
  if (open == fences.begin()) return;
  events.push_back({Event::Kind::kFenced, owner, *std::prev(open)});
  fences.erase(fences.begin(), open);
}

std::vector<std::uint64_t> Roster::behind(std::chrono::milliseconds longer_than) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::uint64_t> found;
  for (auto& [id, mapper] : mappers_) {
    const auto& fences = engines_.at(mapper.owner).fences;
    if (fences.empty() || *fences.begin() < mapper.fenced_below)
      mapper.behind_since.reset();
    else if (!mapper.behind_since)
      mapper.behind_since = now;
    else if (now - *mapper.behind_since > longer_than)
      found.push_back(id);
  }
  return found;
}

std::uint32_t Roster::attached(std::uint32_t owner) const {
  engine(owner);
  return static_cast<std::uint32_t>(
      std::count_if(mappers_.begin(), mappers_.end(), [owner](const auto& entry) {
        return entry.second.owner == owner && entry.second.mapped && entry.second.connection != 0;
      }));
}

std::vector<pid_t> Roster::mappers(std::uint32_t owner) const {
  engine(owner);
  std::vector<pid_t> pids;
  for (const auto& [id, mapper] : mappers_)
    if (mapper.owner == owner) pids.push_back(mapper.pid);
  return pids;
}

std::vector<std::uint64_t> Roster::ids(std::uint32_t owner) const {
  std::vector<std::uint64_t> found;
  for (const auto& [id, mapper] : mappers_)
    if (mapper.owner == owner) found.push_back(id);
  return found;
}

const Roster::Engine& Roster::engine(std::uint32_t owner) const {
  const auto found = engines_.find(owner);
  if (found == engines_.end())
    throw std::invalid_argument("owner " + std::to_string(owner) + " was never opened, expected 1 to " +
                                std::to_string(last_owner_));
  return found->second;
}

}  // namespace kvarter::node
