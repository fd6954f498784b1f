// Namespaces, the keys of a chain's blocks, and finding.
#include <algorithm>
#include <stdexcept>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

std::uint32_t DiskLog::Impl::number_of(const Digest& digest) {
  const auto [at, added] = numbers.emplace(digest, static_cast<std::uint32_t>(spaces.size()));
  if (added) spaces.push_back({digest, {}, false, false});
  return at->second;
}

const GroupShape& DiskLog::Impl::shape(const Chain& chain, std::uint32_t group) const {
  const std::string who = "namespace " + std::to_string(chain.ns);
  if (chain.ns >= spaces.size() || spaces[chain.ns].groups.empty())
    throw std::invalid_argument(who + " is not open on disk");
  const std::size_t groups = spaces[chain.ns].groups.size();
  if (group >= groups)
    throw std::invalid_argument(who + " has " + std::to_string(groups) + " groups, and none of number " +
                                std::to_string(group));
  return spaces[chain.ns].groups[group];
}

Key DiskLog::Impl::key_at(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  // A block is named by the digest of the last unit that it touches; `sub` tells blocks of one unit apart.
  const GroupShape& s = shape(chain, group);
  const std::uint64_t unit = (block / s.subs + 1) * s.unit_stride - 1;
  Key key{chain.ns, static_cast<std::uint16_t>(group), static_cast<std::uint16_t>(block % s.subs), {}};
  if (unit >= chain.first_unit && unit - chain.first_unit < chain.digests.size())
    key.digest = chain.digests[unit - chain.first_unit];
  else if (chain.first_unit > 0 && unit == chain.first_unit - 1)
    key.digest = chain.parent;
  else
    throw std::invalid_argument("block " + std::to_string(block) + " of group " + std::to_string(group) +
                                " ends at unit " + std::to_string(unit) + ", and the chain has units " +
                                std::to_string(chain.first_unit) + " to " +
                                std::to_string(chain.first_unit + chain.digests.size()));
  return key;
}

std::uint32_t DiskLog::Impl::resident(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  if (!spaces[chain.ns].open) return kNone;
  const std::uint32_t row = find(key_at(chain, group, block));
  return row != kNone && rows[row].state == RowState::kResident ? row : kNone;
}

void DiskLog::Impl::check_range(const Chain& chain, const Range& range) const {
  shape(chain, range.group);
  if (range.count == 0) return;
  key_at(chain, range.group, range.first);
  key_at(chain, range.group, range.first + range.count - 1);
}

void DiskLog::Impl::check_spans(const Chain& chain, std::span<const Range> ranges,
                                std::span<const Span> spans) const {
  std::uint64_t needed = 0;
  for (const Range& range : ranges) {
    check_range(chain, range);
    needed += range.count * shape(chain, range.group).shard_bytes.size();
  }
  if (needed != spans.size())
    throw std::invalid_argument("the ranges have " + std::to_string(needed) + " shards, and there are " +
                                std::to_string(spans.size()) + " spans");
  for (const Span& span : spans)
    if (reinterpret_cast<std::uintptr_t>(span.address) % kPage != 0 || span.length == 0)
      throw std::invalid_argument("a span is empty, or does not begin at a multiple of 4096");
}

std::uint32_t DiskLog::open_namespace(const Digest& digest, std::span<const GroupShape> groups) {
  if (groups.empty() || groups.size() > kMaxGroups)
    throw std::invalid_argument("a namespace has " + std::to_string(groups.size()) +
                                " groups, expected 1 to " + std::to_string(kMaxGroups));
  for (const GroupShape& shape : groups)
    if (shape.unit_stride == 0 || shape.subs == 0 || shape.subs > 0xffff || shape.shard_bytes.empty() ||
        shape.shard_bytes.size() > kMaxShards)
      throw std::invalid_argument("a group needs a stride, subs up to 65535, and 1 to " +
                                  std::to_string(kMaxShards) + " shards");
  const std::lock_guard lock(impl_->mutex);
  const std::uint32_t number = impl_->number_of(digest);
  Space& space = impl_->spaces[number];
  if (!space.open) {
    space.groups.assign(groups.begin(), groups.end());
    space.open = true;
    impl_->changed();
  }
  return number;
}

std::uint64_t DiskLog::leading(const Chain& chain, std::uint32_t group, std::uint64_t from,
                               std::uint64_t limit) const {
  const std::lock_guard lock(impl_->mutex);
  const GroupShape& s = impl_->shape(chain, group);
  const std::uint64_t named = (chain.first_unit + chain.digests.size()) / s.unit_stride * s.subs;
  limit = std::min(limit, named);
  const auto there = [&](std::uint64_t block) { return impl_->resident(chain, group, block) != kNone; };
  if (limit <= from || !there(from)) return from;
  if (there(limit - 1)) return limit;
  std::uint64_t low = from, high = limit - 1, step = 1;  // low is there, high is not (R7)
  while (low + step < high && there(low + step)) {
    low += step;
    step *= 2;
  }
  high = std::min(high, low + step);
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (there(middle) ? low : high) = middle;
  }
  return low + 1;
}

std::uint64_t DiskLog::last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                                std::uint64_t step) const {
  if (step == 0) throw std::invalid_argument("step is 0");
  const std::lock_guard lock(impl_->mutex);
  const GroupShape& s = impl_->shape(chain, group);
  end = std::min(end, (chain.first_unit + chain.digests.size()) / s.unit_stride * s.subs) / step * step;
  const std::uint64_t before = chain.first_unit / s.unit_stride * s.subs;
  const std::uint64_t begin = before > 0 && chain.first_unit % s.unit_stride == 0 ? before - 1 : before;
  while (end > 0) {
    const std::uint64_t first = end - std::min(run, end);
    std::uint64_t block = end;
    while (block > first && block > begin && impl_->resident(chain, group, block - 1) != kNone) --block;
    if (block == first) return end;
    if (block <= begin) return 0;
    end = (block - 1) / step * step;  // block - 1 is missing: no run may contain it
  }
  return 0;
}

bool DiskLog::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->shape(chain, group);
  return impl_->resident(chain, group, block) != kNone;
}

std::uint64_t DiskLog::version() const { return impl_->version.load(std::memory_order_acquire); }

void DiskLog::touch(const Chain& chain, const Range& range) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_range(chain, range);
  ++impl_->tick;
  for (std::uint64_t block = range.first + range.count; block-- > range.first;)
    impl_->use(impl_->resident(chain, range.group, block));
}

void DiskLog::mark_above(const Chain& chain, const Range& range, bool above) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_range(chain, range);
  for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
    const std::uint32_t row = impl_->resident(chain, range.group, block);
    if (row != kNone) impl_->rows[row].above = above;
  }
}

void DiskLog::remove(const Chain& chain, const Range& range) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_range(chain, range);
  for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
    const std::uint32_t row = impl_->resident(chain, range.group, block);
    if (row != kNone) impl_->drop(row, DiskReason::kRemoved);
  }
}

}  // namespace kvarter
