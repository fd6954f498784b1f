// The first step of making room: the block used least recently, of those that nothing leans on, leaves the
// index, and its bytes are dead. Among blocks used last at the same time one that memory has, too, is the
// smallest loss. Which those are is asked when one of them is about to go, for many at once: what has come
// and gone above since does not matter.
#include <algorithm>
#include <array>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

constexpr std::size_t kAsked = 64;  // in one question

}  // namespace

bool DiskLog::Impl::Victim::operator<(const Victim& other) const {
  if (last_use != other.last_use) return last_use > other.last_use;
  if (above != other.above) return other.above;
  return sequence > other.sequence;
}

bool DiskLog::Impl::evictable(const Row& row) const {
  return row.state == RowState::kResident && row.child == kNone && row.leases == 0;
}

void DiskLog::Impl::candidate(std::uint32_t number) {
  Row& row = rows[number];
  if (row.candidate || !evictable(row)) return;
  row.candidate = true;
  victims.push_back({row.last_use, number, row.generation, row.sequence});
  std::push_heap(victims.begin(), victims.end());
}

// Asks for the one on top, and for those used last at the same time, as many as one question holds. Not for
// one that has no equal.
void DiskLog::Impl::ask_above() {
  std::array<Victim, kAsked> equals;
  std::array<Key, kAsked> keys;
  std::array<std::uint8_t, kAsked> there{};
  const std::uint64_t last_use = victims.front().last_use;
  const auto equal = [&] { return !victims.empty() && victims.front().last_use == last_use; };
  std::size_t count = 0, asking = 0;
  while (count < kAsked && equal() && !victims.front().asked) {
    std::pop_heap(victims.begin(), victims.end());
    equals[count++] = victims.back();
    victims.pop_back();
  }
  if (options.above && (count > 1 || equal())) {
    const auto known = std::partition(equals.begin(), equals.begin() + count, [this](const Victim& victim) {
      const Row& row = rows[victim.row];
      return row.generation == victim.generation && spaces[row.ns].above != kNone;
    });
    for (auto at = equals.begin(); at != known; ++at) {
      const Row& row = rows[at->row];
      keys[asking++] = {spaces[row.ns].above, row.group, row.sub, row.digest};
    }
    options.above->contains({keys.data(), asking}, there);
  }
  for (std::size_t i = 0; i < count; ++i) {
    equals[i].asked = true;
    equals[i].above = there[i] != 0;
    victims.push_back(equals[i]);
    std::push_heap(victims.begin(), victims.end());
  }
}

std::uint32_t DiskLog::Impl::next_victim() {
  while (!victims.empty()) {
    const Victim victim = victims.front();
    Row& row = rows[victim.row];
    const bool same = row.generation == victim.generation;
    if (same && evictable(row) && row.last_use == victim.last_use) {
      if (victim.asked) return victim.row;
      ask_above();
      continue;
    }
    std::pop_heap(victims.begin(), victims.end());
    victims.pop_back();
    if (!same) continue;
    row.candidate = false;
    candidate(victim.row);  // as it is now; one that is not evictable is offered again when that ends
  }
  return kNone;
}

std::uint32_t DiskLog::Impl::evict_one() {
  const std::uint32_t victim = next_victim();
  if (victim == kNone) return kNone;
  std::pop_heap(victims.begin(), victims.end());
  victims.pop_back();
  rows[victim].candidate = false;
  const std::uint32_t segment = rows[victim].segment;
  drop_alone(victim, DiskReason::kEvicted);
  return segment;
}

// Evicts a block with what leans on it, leaf or not; false when any of that is leased.
bool DiskLog::Impl::drop_unleased(std::uint32_t number) {
  std::vector<std::uint32_t> all{number};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (rows[all[i]].leases > 0) return false;
    for (std::uint32_t at = rows[all[i]].child; at != kNone; at = rows[at].next) all.push_back(at);
  }
  drop(number, DiskReason::kEvicted, DiskReason::kEvicted);
  return true;
}

}  // namespace kvarter
