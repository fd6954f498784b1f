// What a policy says: classes of blocks, and victims ahead of the need for them.
#include <algorithm>
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {
namespace {

constexpr std::uint64_t kPressed = 16;  // victims are ranked while less than 1 / 16 of the pool is free
// What can no longer go is taken out in passing: at most so many for one eviction, so that no put waits for
// it.
constexpr int kPassedOver = 256;

}  // namespace

bool Index::Impl::evict_offered(std::uint64_t at_most) {
  for (int i = 0; i < kPassedOver && !offered.empty(); ++i) {
    const Offer offer = offered.front();
    const std::uint32_t row = offer.row;
    const bool stands =
        c.generation[row] == offer.generation && evictable(row) && c.last_use[row] <= offer.when;
    if (stands && c.bytes[row] > at_most) return false;
    offered.pop_front();
    if (!stands || spared(row)) continue;
    const std::uint32_t parent = c.parent[row];
    // A parent with the same past would score the same: it goes next, and is checked as its child was.
    if (parent != kNoRow && c.klass[parent] == c.klass[row] && c.hits[parent] == c.hits[row])
      offered.push_front({parent, c.generation[parent], offer.when});
    drop(row, Reason::kEvicted);
    ++counts.evicted_offered;
    return true;
  }
  return false;
}

std::uint32_t Index::offer_victims(std::span<const std::uint32_t> rows,
                                   std::span<const std::uint32_t> generations) {
  if (rows.size() != generations.size())
    throw std::invalid_argument(std::to_string(rows.size()) + " rows and " +
                                std::to_string(generations.size()) + " generations");
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  const std::uint64_t now = x.clock.now();
  std::uint32_t taken = 0;
  for (std::size_t i = 0; i < rows.size() && x.offered.size() < kMostOffered; ++i) {
    if (rows[i] >= x.options.max_slots) continue;
    x.offered.push_back({rows[i], generations[i], now});
    ++taken;
  }
  return taken;
}

std::uint32_t Index::victims_wanted() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->pool.extents().free_bytes() > impl_->pool.bytes() / kPressed && !impl_->free_rows.empty())
    return 0;
  const auto waiting = static_cast<std::uint32_t>(std::min<std::size_t>(impl_->offered.size(), kMostOffered));
  return kMostOffered - waiting;
}

std::uint64_t Index::classify(const Chain& chain, std::uint32_t group, std::uint64_t first,
                              std::span<const std::uint16_t> classes) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  if (chain.ns >= x.namespaces.size() || !x.namespaces[chain.ns].open || classes.empty()) return 0;
  const Namespace& ns = x.space(chain.ns, group);
  const GroupShape& shape = ns.groups[group];
  key_at(chain, shape, group, first);  // throws before anything has changed
  key_at(chain, shape, group, first + classes.size() - 1);
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::uint32_t row = x.find(key_at(chain, shape, group, first + i));
    if (row == kNoRow) {
      if (shape.chained) break;
      continue;
    }
    x.c.klass[row] = classes[i];
    ++found;
  }
  return found;
}

void Index::charge(std::uint64_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->charged = bytes;
}

View Index::view() const {
  const Columns& c = impl_->c;
  return {impl_->options.max_slots,
          c.slot,
          c.generation,
          c.parent,
          c.children,
          c.leases,
          c.pins,
          c.hits,
          c.depth,
          c.ns,
          c.last_use,
          c.bytes,
          c.group,
          c.klass,
          c.state,
          impl_->records};
}

}  // namespace kvarter
