#include <algorithm>

#include "kvarter/pool.h"

namespace kvarter {
namespace {

constexpr int kGranuleBits = 44;
constexpr std::uint64_t kGranuleMask = (std::uint64_t{1} << kGranuleBits) - 1;

std::uint64_t address(std::uint32_t arena, std::uint64_t offset) {
  return std::uint64_t{arena} << kGranuleBits | offset / kGranule;
}
Extent extent(std::uint64_t start, std::uint64_t granules) {
  return {static_cast<std::uint32_t>(start >> kGranuleBits), (start & kGranuleMask) * kGranule,
          granules * kGranule};
}

}  // namespace

Extents::Extents(const std::vector<std::uint64_t>& arena_bytes) {
  for (std::uint32_t arena = 0; arena < arena_bytes.size(); ++arena) {
    arena_granules_.push_back(arena_bytes[arena] / kGranule);
    insert(address(arena, 0), arena_granules_.back());
  }
}

void Extents::insert(Address start, std::uint64_t granules) {
  by_address_.emplace(start, granules);
  by_size_.emplace(granules, start);
  free_ += granules * kGranule;
}

void Extents::erase(std::pmr::map<Address, std::uint64_t>::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  free_ -= hole->second * kGranule;
  by_address_.erase(hole);
}

std::optional<Extent> Extents::allocate(std::uint64_t bytes) {
  const std::uint64_t granules = round_up(bytes, kGranule) / kGranule;
  const auto best = by_size_.lower_bound({granules, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [size, start] = *best;
  erase(by_address_.find(start));
  if (size > granules) insert(start + granules, size - granules);
  return extent(start, granules);
}

void Extents::release(const Extent& freed) {
  Address start = address(freed.arena, freed.offset);
  std::uint64_t granules = freed.bytes / kGranule;
  // Arenas never coalesce: the arena's number is part of the address and arenas are shorter than 2^44
  // granules.
  auto next = by_address_.lower_bound(start);
  if (next != by_address_.end() && start + granules == next->first) {
    granules += next->second;
    erase(next++);
  }
  if (next != by_address_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      start = previous->first;
      granules += previous->second;
      erase(previous);
    }
  }
  insert(start, granules);
}

bool Extents::claim(const Extent& wanted) {
  if (wanted.arena >= arena_granules_.size() || wanted.bytes == 0 || wanted.offset % kGranule ||
      wanted.bytes % kGranule)
    return false;
  const Address start = address(wanted.arena, wanted.offset);
  const std::uint64_t granules = wanted.bytes / kGranule;
  auto hole = by_address_.upper_bound(start);
  if (hole == by_address_.begin()) return false;
  --hole;
  const auto [hole_start, hole_granules] = *hole;
  if (start + granules > hole_start + hole_granules) return false;
  erase(hole);
  if (start > hole_start) insert(hole_start, start - hole_start);
  if (start + granules < hole_start + hole_granules)
    insert(start + granules, hole_start + hole_granules - start - granules);
  return true;
}

std::uint64_t Extents::largest_hole() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first * kGranule;
}

std::vector<Extent> Extents::holes() const {
  std::vector<Extent> all;
  all.reserve(by_address_.size());
  for (const auto& [start, granules] : by_address_) all.push_back(extent(start, granules));
  return all;
}

}  // namespace kvarter
