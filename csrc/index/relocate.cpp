// Room without loss: blocks that nobody touches move out of the cheapest window of addresses, so that it
// becomes one hole.
#include <algorithm>
#include <cstring>

#include "index/impl.h"

namespace kvarter {
namespace {

constexpr std::size_t kCandidates = 32;  // the best window nearly always has one of the largest holes at an end

struct Window {
  Extent where;
  std::uint64_t live = 0;  // bytes of the slots it touches: what emptying it costs
  std::vector<std::uint32_t> slots;
};

// The window of `need` bytes that begins (or ends) with this hole; nothing when something in it may not move,
// when it costs `limit` or more, or when what moves would not find room outside.
std::optional<Window> window_at(const Index::Impl& x, const Hole& hole, bool begins, std::uint64_t need,
                                std::uint64_t limit, std::uint64_t largest_outside) {
  const Extents& extents = x.pool.extents();
  const auto [arena, gap, gap_bytes] = hole.extent;
  if (begins ? gap + need > x.pool.arenas()[arena].bytes() : gap + gap_bytes < need) return std::nullopt;
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
    if (window.live >= limit || bytes > largest_outside || !x.movable(slot)) return std::nullopt;
    window.slots.push_back(at);
  }
  if (window.live + (need - inside) > extents.free_bytes()) return std::nullopt;
  return window;
}

}  // namespace

bool Index::Impl::movable(const SlotRecord& slot) const {
  if (slot.state() != SlotState::kCommitted) return false;
  const std::uint32_t row = find({slot.ns, slot.group, slot.sub, slot.digest});
  return row != kNoRow && state(row) == RowState::kResident && c.leases[row] == 0;
}

bool Index::Impl::relocate(std::uint64_t need, std::uint64_t& budget) {
  Extents& extents = pool.extents();
  const std::vector<Hole> holes = extents.largest(kCandidates);
  std::optional<Window> best;
  for (std::size_t i = 0; i < holes.size(); ++i) {
    const std::uint64_t outside = i > 0 ? holes[0].extent.bytes : holes.size() > 1 ? holes[1].extent.bytes : 0;
    for (const bool begins : {true, false})
      if (auto window = window_at(*this, holes[i], begins, need, best ? best->live : budget + 1, outside))
        best = std::move(window);
  }
  if (!best) return false;
  // The largest first: it is the one that may find no room, and then nothing has been moved in vain.
  std::ranges::sort(best->slots, std::ranges::greater{}, [&](std::uint32_t at) { return records[at].length; });
  extents.withhold(best->where);
  bool emptied = true;
  for (const std::uint32_t at : best->slots) {
    emptied = move(at);
    if (!emptied) break;
    budget -= std::min(budget, rounded(records[at].length));
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
  std::memcpy(pool.arenas()[fresh->arena].data() + fresh->offset, pool.arenas()[old.arena].data() + old.offset,
              slot.length);
  mark(slot, SlotState::kFree, true);
  std::atomic_thread_fence(std::memory_order_release);
  slot.arena = static_cast<std::uint16_t>(fresh->arena);
  slot.offset = fresh->offset;
  mark(slot, SlotState::kCommitted);
  ++counts.moved;
  counts.moved_bytes += slot.length;
  return true;
}

}  // namespace kvarter
