// Floors and quotas of namespaces: whose victims may go, and whose must.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {

bool Index::Impl::spared(std::uint32_t row) const {
  const Namespace& ns = namespaces[c.ns[row]];
  return ns.floor > 0 && c.ns[row] != asking && ns.bytes < ns.floor + c.bytes[row];
}

// The heap whose oldest entry is the oldest of all that may go; null when there is none.
std::vector<Index::Impl::Victim>* Index::Impl::oldest() {
  std::vector<Victim>* best = nullptr;
  for (std::size_t i = 0; i < victims.size(); ++i) {
    std::vector<Victim>& heap = victims[i];
    if (heap.empty() || (best && heap.front().last_use >= best->front().last_use)) continue;
    const Victim& top = heap.front();
    const bool current = c.queued[top.row] == i + 1 && c.ns[top.row] == sharers[i];
    if (i == 0 || !current || !spared(top.row)) best = &heap;
  }
  return best;
}

bool Index::Impl::keep_quota(const Namespace& ns, std::uint64_t need) {
  while (ns.quota > 0 && ns.bytes + need > ns.quota) {
    std::vector<Victim>& own = victims[ns.heap - 1U];
    if (own.empty()) return false;
    evict_from(own, ~std::uint64_t{0});
  }
  return true;
}

void Index::Impl::end_share(Namespace& ns) {
  if (ns.heap == 1) return;
  std::vector<Victim> waiting = std::move(victims[ns.heap - 1U]);
  victims[ns.heap - 1U].clear();
  sharers[ns.heap - 1U] = kNobody;
  const std::uint8_t heap = ns.heap;
  ns.floor = ns.quota = 0;
  ns.heap = 1;
  for (const Victim& victim : waiting) {
    if (c.queued[victim.row] != heap) continue;
    c.queued[victim.row] = 0;
    offer_victim(victim.row);
  }
}

void Index::set_share(std::uint32_t number, std::uint64_t floor, std::uint64_t quota) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  if (number >= x.namespaces.size() || !x.namespaces[number].open)
    throw std::invalid_argument("namespace " + std::to_string(number) + " is not open");
  Namespace& ns = x.namespaces[number];
  std::uint64_t floors = floor;
  for (const std::uint32_t other : x.sharers)
    if (other != Impl::kNobody && other != number) floors += x.namespaces[other].floor;
  if (floors > x.pool.bytes())
    throw std::invalid_argument("floors of " + std::to_string(floors) + " bytes together; the pool has " +
                                std::to_string(x.pool.bytes()));
  if (quota > 0 && floor > quota)
    throw std::invalid_argument("a floor of " + std::to_string(floor) + " bytes above a quota of " +
                                std::to_string(quota));
  if (floor == 0 && quota == 0) {
    x.end_share(ns);
    return;
  }
  if (ns.heap == 1) {
    auto free = std::find(x.sharers.begin() + 1, x.sharers.end(), Impl::kNobody);
    if (free == x.sharers.end()) {
      if (x.sharers.size() > kMaxShares)
        throw std::length_error("all " + std::to_string(kMaxShares) + " shares are taken");
      x.victims.emplace_back();
      x.sharers.push_back(Impl::kNobody);
      free = x.sharers.end() - 1;
    }
    *free = number;
    ns.heap = static_cast<std::uint8_t>(free - x.sharers.begin() + 1);
    for (std::uint32_t row = 0; row < x.options.max_slots; ++row)
      if (x.state(row) == RowState::kResident && x.c.ns[row] == number) x.offer_victim(row);
  }
  ns.floor = floor;
  ns.quota = quota;
}

}  // namespace kvarter
