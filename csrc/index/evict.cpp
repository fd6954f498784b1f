// Leaf-first LRU. Candidates wait in a heap by age; an entry is checked when it comes out, so nothing has to
// be moved inside the heap when a block is used, leased, or gets a child.
#include <algorithm>

#include "index/impl.h"

namespace kvarter {

bool Index::Impl::evictable(std::uint32_t row) const {
  return state(row) == RowState::kResident && c.children[row] == 0 && c.leases[row] == 0 && c.pins[row] == 0;
}

void Index::Impl::offer_victim(std::uint32_t row) {
  if (c.queued[row] || !evictable(row)) return;
  c.queued[row] = 1;
  victims.push_back({c.last_use[row], row});
  std::push_heap(victims.begin(), victims.end());
}

bool Index::Impl::evict_one() {
  while (!victims.empty()) {
    std::pop_heap(victims.begin(), victims.end());
    const Victim victim = victims.back();
    victims.pop_back();
    c.queued[victim.row] = 0;
    if (!evictable(victim.row)) continue;  // it is offered again when that ends
    if (c.last_use[victim.row] > victim.last_use) {
      offer_victim(victim.row);
      continue;
    }
    drop(victim.row, Reason::kEvicted);
    return true;
  }
  return false;
}

std::optional<Extent> Index::Impl::allocate(std::uint64_t bytes) {
  for (;;) {
    if (auto extent = pool.extents().allocate(bytes)) return extent;
    if (bytes > pool.bytes() || !evict_one()) return std::nullopt;
  }
}

}  // namespace kvarter
