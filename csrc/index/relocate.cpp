// Room for a block that fits no hole: the blocks that nobody touches move out of the cheapest window of
// addresses, so that it becomes one hole.
#include <algorithm>
#include <cstring>

#include "index/impl.h"

namespace kvarter {
namespace {

// The best window begins or ends with a hole. Over a 2 GiB pool of eight sizes the 8, the 32 and all holes
// left it as full and moved as many bytes; all found a window without evicting more often, in seconds.
constexpr std::size_t kCandidates = 32;

struct Window {
  Extent where;
  std::uint64_t live = 0;  // bytes of the slots it touches: what emptying it costs
  std::vector<std::uint32_t> slots;
};

struct Search {
  const Index::Impl& x;
  std::uint64_t need;
  bool evicting;
  std::uint64_t limit;  // windows that cost this or more are no use
  std::optional<Window> best;

  // Looks at the window that begins, or ends, with this hole. `outside` is the largest hole beside it.
  void look(const Hole& hole, bool begins, std::uint64_t outside) {
    const Extents& extents = x.pool.extents();
    const auto [arena, gap, gap_bytes] = hole.extent;
    if (begins ? gap + need > x.pool.arenas()[arena].bytes() : gap + gap_bytes < need) return;
    const std::uint64_t first = begins ? gap : gap + gap_bytes - need, last = first + need;
    Window window{{arena, first, need}, 0, {}};
    std::uint64_t inside = 0;
    for (std::uint32_t at = begins ? extents.after(hole) : hole.before; at != kNoSlot;
         at = begins ? extents.after(at) : extents.before(at)) {
      const SlotRecord& slot = x.records[at];
      const std::uint64_t bytes = rounded(slot.length), end = slot.offset + bytes;
      if (begins ? slot.offset >= last : end <= first) break;
      window.live += bytes;
      inside += std::min(end, last) - std::max(slot.offset, first);
      if (window.live >= limit) return;
      const std::uint32_t row = x.untouched(slot);
      if (row == kNoRow || (bytes > outside && !(evicting && x.evictable(row) && !x.spared(row)))) return;
      window.slots.push_back(at);
    }
    if (!evicting && window.live + (need - inside) > extents.free_bytes()) return;
    limit = window.live;
    best = std::move(window);
  }
};

}  // namespace

std::uint32_t Index::Impl::untouched(const SlotRecord& slot) const {
  if (slot.state() != SlotState::kCommitted) return kNoRow;
  const std::uint32_t row = find({slot.ns, slot.group, slot.sub, slot.digest});
  return row != kNoRow && c.leases[row] == 0 ? row : kNoRow;
}

bool Index::Impl::relocate(std::uint64_t need, std::uint64_t& budget, bool evicting) {
  Extents& extents = pool.extents();
  const std::vector<Hole> holes = extents.largest(kCandidates);
  Search search{*this, need, evicting, budget + 1, {}};
  for (std::size_t i = 0; i < holes.size(); ++i) {
    const std::uint64_t outside = i > 0              ? holes[0].extent.bytes
                                  : holes.size() > 1 ? holes[1].extent.bytes
                                                     : 0;
    search.look(holes[i], true, outside);
    search.look(holes[i], false, outside);
  }
  if (!search.best) return false;
  std::vector<std::uint32_t>& slots = search.best->slots;
  // The largest first: it is the one that may find no room, and then nothing has been moved in vain.
  std::ranges::sort(slots, std::ranges::greater{}, [&](std::uint32_t at) { return records[at].length; });
  extents.withhold(search.best->where);
  bool emptied = true;
  for (auto at = slots.begin(); emptied && at != slots.end(); ++at) {
    const std::uint32_t row = untouched(records[*at]);
    if (row == kNoRow) continue;  // evicted with another shard
    if (move(*at)) {
      budget -= std::min(budget, rounded(records[*at].length));
    } else {
      emptied = evicting && evictable(row) && !spared(row);
      if (emptied) drop(row, Reason::kEvicted);
    }
  }
  extents.restore();
  return emptied;
}

bool Index::Impl::move(std::uint32_t at) {
  SlotRecord& slot = records[at];
  const Extent old{slot.arena, slot.offset, rounded(slot.length)};
  const auto fresh = pool.extents().move(old, at);
  if (!fresh) return false;
  // The old bytes stay as they are until the extent has another owner, which is after the word has changed:
  // a reader whose lease has expired gets either the block or a failed check. A crash before the word
  // changes leaves the block where it was, between the two words no block, after them the block here.
  std::memcpy(pool.arenas()[fresh->arena].data() + fresh->offset,
              pool.arenas()[old.arena].data() + old.offset, slot.length);
  c.header->moves.fetch_add(2);  // before each change of the word: a look-up that it overtakes looks again
  KVARTER_SYNC_POINT("move: away");
  mark(slot, SlotState::kMoving, true);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // a killed process leaves its stores in program order
  slot.arena = static_cast<std::uint16_t>(fresh->arena);
  KVARTER_SYNC_POINT("move: address");
  slot.offset = fresh->offset;
  c.header->moves.fetch_add(2);
  KVARTER_SYNC_POINT("move: here");
  mark(slot, SlotState::kCommitted);
  ++counts.moved;
  counts.moved_bytes += slot.length;
  return true;
}

}  // namespace kvarter
