#include <stdexcept>
#include <string>

#include "hash/xxh3.h"
#include "kvarter/copy.h"

namespace kvarter {

namespace {

void check(const Region& region, std::size_t index, std::size_t num_blocks) {
  const auto refuse = [index](const std::string& what) {
    throw std::invalid_argument("region " + std::to_string(index) + " has " + what);
  };
  if (region.base == nullptr) refuse("no address");
  if (region.segment_bytes == 0 || region.segments == 0)
    refuse(std::to_string(region.segments) + " segments of " + std::to_string(region.segment_bytes) +
           " bytes, expected at least one of each");
  if (region.segments > 1 && region.segment_stride < region.segment_bytes)
    refuse("a segment stride of " + std::to_string(region.segment_stride) + ", expected at least its " +
           std::to_string(region.segment_bytes) + " bytes");
  if (num_blocks > 1 && region.block_stride < region.segment_bytes)
    refuse("a block stride of " + std::to_string(region.block_stride) + ", expected at least a segment's " +
           std::to_string(region.segment_bytes) + " bytes");
}

}  // namespace

Blocks::Blocks(const std::vector<Region>& regions, std::size_t num_blocks) : num_blocks_(num_blocks) {
  if (num_blocks == 0) throw std::invalid_argument("found 0 blocks, expected at least 1");
  if (regions.empty()) throw std::invalid_argument("found 0 regions, expected at least 1");
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    check(region, i, num_blocks);
    for (std::size_t s = 0; s < region.segments; ++s) {
      std::byte* base = region.base + s * region.segment_stride;
      bytes_ += region.segment_bytes;
      Segment* last = segments_.empty() ? nullptr : &segments_.back();
      if (last && last->base + last->bytes == base && last->block_stride == region.block_stride)
        last->bytes += region.segment_bytes;
      else
        segments_.push_back({base, region.block_stride, region.segment_bytes});
    }
  }
  for (const Segment& segment : segments_) whole_stripes_ &= segment.bytes % kXxh3Stripe == 0;
}

}  // namespace kvarter
