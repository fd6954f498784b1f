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

Extents::Extents(const std::vector<std::uint64_t>& arena_bytes) : first_(arena_bytes.size(), kNoSlot) {
  for (std::uint32_t arena = 0; arena < arena_bytes.size(); ++arena) {
    arena_granules_.push_back(arena_bytes[arena] / kGranule);
    insert(address(arena, 0), {arena_granules_.back(), kNoSlot});
  }
}

bool Extents::withheld(Address start, std::uint64_t granules) const {
  return start < withheld_to_ && start + granules > withheld_from_;
}

void Extents::insert(Address start, Free hole) {
  by_address_.emplace(start, hole);
  if (!withheld(start, hole.granules)) by_size_.emplace(hole.granules, start);
  free_ += hole.granules * kGranule;
}

void Extents::erase(Holes::iterator hole) {
  by_size_.erase({hole->second.granules, hole->first});
  free_ -= hole->second.granules * kGranule;
  by_address_.erase(hole);
}

void Extents::link(std::uint32_t slot, std::uint32_t before, std::uint32_t arena) {
  if (slot >= before_.size()) {
    before_.resize(slot + 1, kNoSlot);
    after_.resize(slot + 1, kNoSlot);
  }
  std::uint32_t& next = before == kNoSlot ? first_[arena] : after_[before];
  before_[slot] = before;
  after_[slot] = next;
  if (next != kNoSlot) before_[next] = slot;
  next = slot;
}

std::optional<Extent> Extents::allocate(std::uint64_t bytes, std::uint32_t slot) {
  const std::uint64_t granules = round_up(bytes, kGranule) / kGranule;
  const auto best = by_size_.lower_bound({granules, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [size, start] = *best;
  const auto hole = by_address_.find(start);
  const Extent taken = extent(start, granules);
  link(slot, hole->second.before, taken.arena);
  erase(hole);
  if (size > granules) insert(start + granules, {size - granules, slot});
  return taken;
}

void Extents::release(const Extent& freed, std::uint32_t slot) {
  Address start = address(freed.arena, freed.offset);
  Free hole{freed.bytes / kGranule, before_[slot]};
  (hole.before == kNoSlot ? first_[freed.arena] : after_[hole.before]) = after_[slot];
  if (after_[slot] != kNoSlot) before_[after_[slot]] = hole.before;
  // Arenas never coalesce: the arena's number is part of the address and arenas are shorter than 2^44
  // granules.
  auto next = by_address_.lower_bound(start);
  if (next != by_address_.end() && start + hole.granules == next->first) {
    hole.granules += next->second.granules;
    erase(next++);
  }
  if (next != by_address_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.granules == start) {
      start = previous->first;
      hole.granules += previous->second.granules;
      erase(previous);
    }
  }
  insert(start, hole);
}

bool Extents::claim(const Extent& wanted, std::uint32_t slot) {
  if (wanted.arena >= arena_granules_.size() || wanted.bytes == 0 || wanted.offset % kGranule ||
      wanted.bytes % kGranule)
    return false;
  const Address start = address(wanted.arena, wanted.offset), end = start + wanted.bytes / kGranule;
  auto found = by_address_.upper_bound(start);
  if (found == by_address_.begin()) return false;
  --found;
  const auto [hole_start, hole] = *found;
  const Address hole_end = hole_start + hole.granules;
  if (end > hole_end) return false;
  link(slot, hole.before, wanted.arena);
  erase(found);
  if (start > hole_start) insert(hole_start, {start - hole_start, hole.before});
  if (end < hole_end) insert(end, {hole_end - end, slot});
  return true;
}

void Extents::withhold(const Extent& window) {
  withheld_from_ = address(window.arena, window.offset);
  withheld_to_ = withheld_from_ + window.bytes / kGranule;
  auto hole = by_address_.upper_bound(withheld_from_);
  if (hole != by_address_.begin()) --hole;
  for (; hole != by_address_.end() && hole->first < withheld_to_; ++hole)
    if (withheld(hole->first, hole->second.granules)) by_size_.erase({hole->second.granules, hole->first});
}

void Extents::restore() {
  auto hole = by_address_.upper_bound(withheld_from_);
  if (hole != by_address_.begin()) --hole;
  for (; hole != by_address_.end() && hole->first < withheld_to_; ++hole)
    by_size_.emplace(hole->second.granules, hole->first);
  withheld_from_ = withheld_to_ = 0;
}

std::optional<Extent> Extents::move(const Extent& old, std::uint32_t slot) {
  release(old, slot);
  if (auto fresh = allocate(old.bytes, slot)) return fresh;
  claim(old, slot);
  return std::nullopt;
}

std::uint64_t Extents::largest_hole() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first * kGranule;
}

std::vector<Extent> Extents::holes() const {
  std::vector<Extent> all;
  all.reserve(by_address_.size());
  for (const auto& [start, hole] : by_address_) all.push_back(extent(start, hole.granules));
  return all;
}

std::vector<Hole> Extents::largest(std::size_t count) const {
  std::vector<Hole> found;
  for (auto hole = by_size_.rbegin(); hole != by_size_.rend() && found.size() < count; ++hole)
    found.push_back({extent(hole->second, hole->first), by_address_.at(hole->second).before});
  return found;
}

}  // namespace kvarter
