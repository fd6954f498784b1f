#pragma once
// Along a chain: how its blocks are named, and how look-ups walk over them. The index and the disk log find
// blocks in tables of their own, by the same names and in the same steps. `there(block)` says whether a block
// is in one.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kvarter/index.h"

namespace kvarter {

// Throws std::invalid_argument for a block that the chain has no digest of.
inline Key key_at(const Chain& chain, const GroupShape& shape, std::uint32_t group, std::uint64_t block) {
  // A block is named by the digest of the last unit that it touches; `sub` tells blocks of one unit apart.
  const std::uint64_t unit = (block / shape.subs + 1) * shape.unit_stride - 1;
  Key key{chain.ns, static_cast<std::uint16_t>(group), static_cast<std::uint16_t>(block % shape.subs), {}};
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

// The last complete block + 1.
inline std::uint64_t blocks_of(const Chain& chain, const GroupShape& shape) {
  return (chain.first_unit + chain.digests.size()) / shape.unit_stride * shape.subs;
}

// The first block that the chain's digests (or its parent's) can name.
inline std::uint64_t first_block(const Chain& chain, const GroupShape& shape) {
  const std::uint64_t before = chain.first_unit / shape.unit_stride * shape.subs;
  return before > 0 && chain.first_unit % shape.unit_stride == 0 ? before - 1 : before;
}

// The end of a prefix-closed run, past its last block (R7). REQUIRES: low < high, low is there and high is
// not.
template <class There>
std::uint64_t gallop(std::uint64_t low, std::uint64_t high, const There& there) {
  std::uint64_t step = 1;
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

// As Index::last_run has it, of blocks from `begin` on.
template <class There>
std::uint64_t last_run_of(std::uint64_t begin, std::uint64_t end, std::uint64_t run, std::uint64_t step,
                          const There& there) {
  end = end / step * step;
  while (end > 0) {
    const std::uint64_t first = end - std::min(run, end);
    std::uint64_t block = end;
    while (block > first && block > begin && there(block - 1)) --block;
    if (block == first) return end;
    if (block <= begin) return 0;
    end = (block - 1) / step * step;  // block - 1 is missing: no run may contain it
  }
  return 0;
}

}  // namespace kvarter
