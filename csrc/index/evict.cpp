// Leaf-first LRU. Candidates wait in a heap by age; an entry is checked when it comes out, so nothing has to
// be moved inside the heap when a block is used, leased, or gets a child.
#include <algorithm>

#include "index/impl.h"

namespace kvarter {
namespace {

constexpr std::uint64_t kMoveLimit = 2;  // bytes moved for one put, for each of its own
constexpr int kHeadroomBlocks = 256;     // evicted in one tick: well under a millisecond

}  // namespace

bool Index::Impl::evictable(std::uint32_t row) const {
  return state(row) == RowState::kResident && c.children[row] == 0 && c.leases[row] == 0 && c.pins[row] == 0;
}

void Index::Impl::offer_victim(std::uint32_t row) {
  const std::uint8_t heap = namespaces[c.ns[row]].heap;
  if (c.queued[row] == heap || !evictable(row)) return;
  c.queued[row] = heap;  // an entry in another heap no longer counts
  std::vector<Victim>& in = victims[heap - 1U];
  in.push_back({c.last_use[row], row});
  std::push_heap(in.begin(), in.end());
}

bool Index::Impl::evict_one(std::uint64_t at_most) {
  if (evict_offered(at_most)) return true;
  while (std::vector<Victim>* const heap = oldest())
    if (const auto evicted = evict_from(*heap, at_most)) return *evicted;
  return false;
}

// Whether the oldest of a heap went; false when it is larger than at_most, nothing when it could not go and
// was taken out.
std::optional<bool> Index::Impl::evict_from(std::vector<Victim>& heap, std::uint64_t at_most) {
  const auto number = static_cast<std::uint8_t>(&heap - victims.data() + 1);
  const auto [last_use, row] = heap.front();
  std::pop_heap(heap.begin(), heap.end());
  heap.pop_back();
  if (c.queued[row] != number) return std::nullopt;
  c.queued[row] = 0;
  if (!evictable(row)) return std::nullopt;  // it is offered again when that ends
  if (c.last_use[row] > last_use || namespaces[c.ns[row]].heap != number) {
    offer_victim(row);
    return std::nullopt;
  }
  if (c.bytes[row] > at_most) {
    offer_victim(row);
    return false;
  }
  drop(row, Reason::kEvicted);
  return true;
}

std::optional<Extent> Index::Impl::allocate(std::uint64_t bytes, std::uint32_t slot) {
  Extents& extents = pool.extents();
  const std::uint64_t need = rounded(bytes);
  if (need > pool.arenas().front().bytes()) return std::nullopt;  // no arena is larger
  std::uint64_t budget = kMoveLimit * need;
  for (;;) {
    if (auto extent = extents.allocate(need, slot)) return extent;
    if (extents.free_bytes() >= need && (relocate(need, budget, false) || relocate(need, budget, true)))
      continue;
    // A good part of what is needed before the next look for a window: looking costs more than evicting.
    const std::uint64_t enough = std::max(need, extents.free_bytes() + need / 8);
    if (!evict_one()) return std::nullopt;
    while (extents.free_bytes() < enough && extents.largest_hole() < need && evict_one()) {
    }
  }
}

void Index::Impl::keep_headroom() {
  const auto wanted = static_cast<std::uint64_t>(options.headroom * static_cast<double>(pool.bytes()));
  // A block larger than the headroom is not worth it: a pool of few such blocks would lose one for nothing.
  for (int i = 0; i < kHeadroomBlocks && pool.extents().free_bytes() < wanted && evict_one(wanted); ++i) {
  }
}

}  // namespace kvarter
