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
  engines_.push_back({name, ranks, {}});
  return static_cast<std::uint32_t>(engines_.size());
}

std::uint32_t Roster::owner_of(std::string_view engine, std::uint32_t rank) const {
  for (std::size_t i = engines_.size(); i-- > 0;) {  // the newest of that name
    if (engines_[i].name != engine) continue;
    if (rank >= engines_[i].ranks)
      throw NodeRefused(Refusal::kRank, "rank " + std::to_string(rank) + " of engine '" + printable(engine) +
                                            "' is out of range, expected below " +
                                            std::to_string(engines_[i].ranks));
    return static_cast<std::uint32_t>(i + 1);
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
  if (ids(owner).empty()) events.push_back({owner, std::nullopt});
}

void Roster::fence(std::uint32_t owner, std::uint64_t epoch) {
  require(owner);
  if (epoch == std::numeric_limits<std::uint64_t>::max())
    throw std::invalid_argument("fence of epoch 2^64 - 1, expected below");
  engines_[owner - 1].fences.insert(epoch);
}

std::optional<std::uint64_t> Roster::next_fence(Mapper& mapper) {
  const auto& fences = engines_[mapper.owner - 1].fences;
  const bool in_flight = mapper.asked_below > mapper.fenced_below;
  if (fences.empty() || in_flight || *fences.rbegin() < mapper.fenced_below) return std::nullopt;
  mapper.asked_below = *fences.rbegin() + 1;
  return *fences.rbegin();
}

void Roster::settle(std::uint32_t owner, std::vector<Event>& events) {
  std::uint64_t below = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [id, mapper] : mappers_)
    if (mapper.owner == owner) below = std::min(below, mapper.fenced_below);
  auto& fences = engines_[owner - 1].fences;
  const auto open = fences.lower_bound(below);
  if (open == fences.begin()) return;
  events.push_back({owner, *std::prev(open)});
  fences.erase(fences.begin(), open);
}

std::uint32_t Roster::attached(std::uint32_t owner) const {
  require(owner);
  return static_cast<std::uint32_t>(
      std::count_if(mappers_.begin(), mappers_.end(), [owner](const auto& entry) {
        return entry.second.owner == owner && entry.second.mapped && entry.second.connection != 0;
      }));
}

std::vector<pid_t> Roster::mappers(std::uint32_t owner) const {
  require(owner);
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

void Roster::require(std::uint32_t owner) const {
  if (owner == 0 || owner > engines_.size())
    throw std::invalid_argument("owner " + std::to_string(owner) + " was never opened, expected 1 to " +
                                std::to_string(engines_.size()));
}

}  // namespace kvarter::node
