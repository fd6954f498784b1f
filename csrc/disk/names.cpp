// Namespaces, the keys of a chain's blocks, and finding.
#include <algorithm>
#include <stdexcept>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

std::uint32_t DiskLog::Impl::number_of(const Digest& digest) {
  const auto [at, added] = numbers.emplace(digest, static_cast<std::uint32_t>(spaces.size()));
  if (added) spaces.push_back({digest, {}});
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
  return kvarter::key_at(chain, shape(chain, group), group, block);
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

std::uint32_t DiskLog::open_namespace(const Digest& digest, std::span<const GroupShape> groups,
                                      std::optional<std::uint32_t> above) {
  if (above && *above >= kMaxNamespaces)
    throw std::invalid_argument("namespace " + std::to_string(*above) +
                                " of the index above; expected below " + std::to_string(kMaxNamespaces));
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
  if (above) space.above = *above;
  return number;
}

std::uint64_t DiskLog::leading(const Chain& chain, std::uint32_t group, std::uint64_t from,
                               std::uint64_t limit) const {
  const std::lock_guard lock(impl_->mutex);
  limit = std::min(limit, blocks_of(chain, impl_->shape(chain, group)));
  const auto there = [&](std::uint64_t block) { return impl_->resident(chain, group, block) != kNone; };
  if (limit <= from || !there(from)) return from;
  return there(limit - 1) ? limit : gallop(from, limit - 1, there);
}

std::uint64_t DiskLog::last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                                std::uint64_t step) const {
  if (step == 0) throw std::invalid_argument("step is 0");
  const std::lock_guard lock(impl_->mutex);
  const GroupShape& s = impl_->shape(chain, group);
  const auto there = [&](std::uint64_t block) { return impl_->resident(chain, group, block) != kNone; };
  return last_run_of(first_block(chain, s), std::min(end, blocks_of(chain, s)), run, step, there);
}

bool DiskLog::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->shape(chain, group);
  return impl_->resident(chain, group, block) != kNone;
}

std::uint64_t DiskLog::version() const { return impl_->version.load(std::memory_order_acquire); }

bool DiskLog::resting() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->clock.now() < impl_->failing_until;
}

void DiskLog::touch(const Chain& chain, const Range& range) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_range(chain, range);
  ++impl_->tick;
  for (std::uint64_t block = range.first + range.count; block-- > range.first;)
    impl_->use(impl_->resident(chain, range.group, block));
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
