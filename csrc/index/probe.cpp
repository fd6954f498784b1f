#include <algorithm>
#include <stdexcept>
#include <string>

#include "index/impl.h"

namespace kvarter {
namespace {

// Look-ups of one group of one chain, by block number. Nothing here takes the mutex.
class Probe {
 public:
  Probe(const Index::Impl& index, const Chain& chain, std::uint32_t group)
      : index_(index), chain_(chain), group_(group) {
    if (chain.ns >= kMaxNamespaces) refuse("is not open");
    gate_ = &index.gates[chain.ns];
    word_ = gate_->word.load(std::memory_order_acquire);
    if (word_ == 0) refuse("is not open");
    const std::uint64_t groups = word_ >> 2 & 0x3fff;
    if (group >= groups)
      refuse("has " + std::to_string(groups) + " groups, and none of number " + std::to_string(group));
    const std::uint64_t stride = gate_->strides[group].load(std::memory_order_acquire);
    shape_.unit_stride = static_cast<std::uint32_t>(stride >> 32);
    shape_.subs = static_cast<std::uint32_t>(stride);
  }
  // False when nothing of the namespace is served, or when it is not the one any more that these look-ups
  // began in.
  bool open() const { return (word_ & Gate::kOpen) && gate_->word.load(std::memory_order_acquire) == word_; }
  std::uint64_t blocks() const { return Index::Impl::blocks_of(chain_, shape_); }
  std::uint64_t begin() const {  // the first block that the chain's digests (or its parent's) can name
    const std::uint64_t before = chain_.first_unit / shape_.unit_stride * shape_.subs;
    return before > 0 && chain_.first_unit % shape_.unit_stride == 0 ? before - 1 : before;
  }
  bool resident(std::uint64_t block) const {
    return index_.committed(index_.key_at(chain_, shape_, group_, block));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::invalid_argument("namespace " + std::to_string(chain_.ns) + " " + what);
  }

  const Index::Impl& index_;
  const Chain& chain_;
  const std::uint32_t group_;
  const Gate* gate_;
  std::uint64_t word_;
  GroupShape shape_;
};

std::uint64_t leading_of(const Probe& probe, std::uint64_t limit) {
  limit = std::min(limit, probe.blocks());
  std::uint64_t low = probe.begin();  // below: resident if low is (R7)
  if (limit <= low) return 0;
  if (probe.resident(limit - 1)) return limit;
  if (!probe.resident(low)) return 0;
  std::uint64_t step = 1, high = limit - 1;  // low was resident a moment ago, high was not
  while (low + step < high && probe.resident(low + step)) {
    low += step;
    step *= 2;
  }
  high = std::min(high, low + step);
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (probe.resident(middle) ? low : high) = middle;
  }
  return low + 1;
}

std::uint64_t last_run_of(const Probe& probe, std::uint64_t end, std::uint64_t run, std::uint64_t step) {
  end = std::min(end, probe.blocks()) / step * step;
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

}  // namespace

std::uint64_t Index::leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const {
  const Probe probe(*impl_, chain, group);
  const std::uint64_t blocks = probe.open() ? leading_of(probe, limit) : 0;
  return probe.open() ? blocks : 0;
}

std::uint64_t Index::last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                              std::uint64_t step) const {
  const Probe probe(*impl_, chain, group);
  const std::uint64_t found = probe.open() ? last_run_of(probe, end, run, step) : 0;
  return probe.open() ? found : 0;
}

bool Index::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  const Probe probe(*impl_, chain, group);
  return probe.open() && probe.resident(block) && probe.open();
}

std::uint64_t Index::version() const { return impl_->version.load(std::memory_order_acquire); }

}  // namespace kvarter
