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
  std::uint64_t blocks() const { return blocks_of(chain_, shape_); }
  std::uint64_t begin() const { return first_block(chain_, shape_); }
  bool operator()(std::uint64_t block) const {
    return index_.committed(key_at(chain_, shape_, group_, block));
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

std::uint64_t leading_of(const Probe& there, std::uint64_t limit) {
  limit = std::min(limit, there.blocks());
  const std::uint64_t begin = there.begin();  // below: resident if this one is (R7)
  if (limit <= begin) return 0;
  if (there(limit - 1)) return limit;
  if (!there(begin)) return 0;
  return gallop(begin, limit - 1, there);  // the one was resident a moment ago, the other was not
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
  const std::uint64_t found =
      probe.open() ? last_run_of(probe.begin(), std::min(end, probe.blocks()), run, step, probe) : 0;
  return probe.open() ? found : 0;
}

bool Index::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  const Probe probe(*impl_, chain, group);
  return probe.open() && probe(block) && probe.open();
}

void Index::contains(std::span<const Key> keys, std::span<std::uint8_t> there) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].ns >= kMaxNamespaces)
      throw std::invalid_argument("namespace " + std::to_string(keys[i].ns) + " is not open");
    const std::atomic<std::uint64_t>& gate = impl_->gates[keys[i].ns].word;
    const std::uint64_t word = gate.load(std::memory_order_acquire);
    there[i] =
        (word & Gate::kOpen) && impl_->committed(keys[i]) && gate.load(std::memory_order_acquire) == word;
  }
}

std::optional<Lineage> Index::lineage(const Key& key) const {
  const std::lock_guard lock(impl_->mutex);
  const Impl& x = *impl_;
  const Namespace& ns = x.space(key.ns, key.group);
  const std::uint32_t row = ns.open ? x.find(key) : kNoRow;
  if (row == kNoRow || x.state(row) != RowState::kResident) return std::nullopt;
  const GroupShape& shape = ns.groups[key.group];
  const auto unit = [&](std::uint64_t block) { return (block / shape.subs + 1) * shape.unit_stride - 1; };
  Lineage found{0, x.c.depth[row], {}};
  if (!shape.chained) {
    found.first_unit = unit(found.block);
    found.digests = {key.digest};
    return found;
  }
  found.digests.resize(unit(found.block) + 1);
  for (std::uint32_t at = row; at != kNoRow; at = x.c.parent[at])
    found.digests[unit(x.c.depth[at])] = x.records[x.c.slot[at]].digest;
  return found;
}

std::uint64_t Index::version() const { return impl_->version.load(std::memory_order_acquire); }

}  // namespace kvarter
