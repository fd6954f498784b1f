#include <algorithm>

#include "index/impl.h"

namespace kvarter {
namespace {

// Look-ups of one group of one chain, by block number.
struct Probe {
  const Index::Impl& index;
  const Chain& chain;
  const GroupShape& shape;
  std::uint32_t group;

  std::uint64_t begin() const {  // the first block that the chain's digests (or its parent's) can name
    const std::uint64_t before = chain.first_unit / shape.unit_stride * shape.subs;
    return before > 0 && chain.first_unit % shape.unit_stride == 0 ? before - 1 : before;
  }
  bool resident(std::uint64_t block) const {
    const std::uint32_t row = index.find(index.key_at(chain, shape, group, block));
    return row != kNoRow && index.state(row) == RowState::kResident;
  }
};

}  // namespace

std::uint64_t Index::leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const {
  const std::lock_guard lock(impl_->mutex);
  const Namespace& ns = impl_->space(chain.ns, group);
  const Probe probe{*impl_, chain, ns.groups[group], group};
  limit = std::min(limit, Impl::blocks_of(chain, probe.shape));
  std::uint64_t low = probe.begin();  // below: resident if low is (R7)
  if (ns.closed || limit <= low) return 0;
  if (probe.resident(limit - 1)) return limit;
  if (!probe.resident(low)) return 0;
  std::uint64_t high = limit - 1;  // low is resident, high is not
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (probe.resident(middle) ? low : high) = middle;
  }
  return low + 1;
}

std::uint64_t Index::last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                              std::uint64_t step) const {
  const std::lock_guard lock(impl_->mutex);
  const Namespace& ns = impl_->space(chain.ns, group);
  const Probe probe{*impl_, chain, ns.groups[group], group};
  if (ns.closed) return 0;
  end = std::min(end, Impl::blocks_of(chain, probe.shape)) / step * step;
  const std::uint64_t begin = probe.begin();
  while (end > 0) {
    const std::uint64_t first = end - std::min(run, end);
    std::uint64_t block = end;
    while (block > first && block > begin && probe.resident(block - 1)) --block;
    if (block == first) return end;
    if (block <= begin) return 0;
    end = (block - 1) / step * step;  // block - 1 is missing: no run may contain it
  }
  return 0;
}

bool Index::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  const std::lock_guard lock(impl_->mutex);
  const Namespace& ns = impl_->space(chain.ns, group);
  return !ns.closed && Probe{*impl_, chain, ns.groups[group], group}.resident(block);
}

std::uint64_t Index::version() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->version;
}

}  // namespace kvarter
