#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "copy/kernel.h"
#include "hash/kernel.h"
#include "hash/xxh3.h"

namespace kvarter {

namespace {

std::span<const CopyKernel* const> kernels() {
#if defined(__x86_64__)
  static const CopyKernel* const all[] = {&kCopyScalar, &kCopyAvx2, &kCopyAvx512};
#else
  static const CopyKernel* const all[] = {&kCopyScalar};
#endif
  return all;
}

const std::uint8_t* bytes_at(const std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); }

// Calls visit(to, from, bytes, next source, whether it is the last) for every segment of a block.
template <class Visit>
void for_each_segment(Direction direction, const Blocks& blocks, const Copy& copy, const Copy* following,
                      Visit visit) {
  const auto& segments = blocks.segments();
  const auto engine_at = [&](const Copy& c, std::size_t i) {
    return segments[i].base + c.engine_block * segments[i].block_stride;
  };
  const bool gather = direction == Direction::kGather;
  std::byte* slot = copy.slot;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    std::byte* engine = engine_at(copy, i);
    const std::size_t bytes = segments[i].bytes;
    const bool last = i + 1 == segments.size();
    const std::byte* next = gather ? engine : slot;
    if (!last)
      next = gather ? engine_at(copy, i + 1) : slot + bytes;
    else if (following && following->engine_block < blocks.num_blocks())
      next = gather ? engine_at(*following, 0) : following->slot;
    if (gather)
      visit(slot, engine, bytes, next, last);
    else
      visit(engine, slot, bytes, next, last);
    slot += bytes;
  }
}

// The last stripe of a block is no regular one (xxh3.h): it is copied and mixed by itself.
std::uint64_t copy_stripes(const CopyKernel& kernel, Direction direction, const Blocks& blocks,
                           const Copy& copy, const Copy* following) {
  alignas(64) std::array<std::uint64_t, 8> acc = kXxh3Start;
  std::array<std::uint8_t, kXxh3Stripe> last_stripe;
  std::size_t stripe = 0;
  for_each_segment(
      direction, blocks, copy, following,
      [&](std::byte* to, const std::byte* from, std::size_t bytes, const std::byte* next, bool last) {
        const std::size_t regular = last ? bytes - kXxh3Stripe : bytes;
        kernel.copy_mixing(to, from, regular / kXxh3Stripe, next, acc.data(), stripe);
        if (!last) return;
        std::memcpy(last_stripe.data(), from + regular, kXxh3Stripe);
        std::memcpy(to + regular, last_stripe.data(), kXxh3Stripe);
      });
  return xxh3_finish(acc.data(), last_stripe.data(), blocks.bytes());
}

// Segments of odd sizes: hash each piece while it is in the nearest cache.
std::uint64_t copy_pieces(const CopyKernel& kernel, Direction direction, const Blocks& blocks,
                          const Copy& copy, const Copy* following) {
  constexpr std::size_t kPiece = 4096;
  Xxh3 hash;
  for_each_segment(direction, blocks, copy, following,
                   [&](std::byte* to, const std::byte* from, std::size_t bytes, const std::byte* next, bool) {
                     for (std::size_t at = 0; at < bytes; at += kPiece) {
                       const std::size_t piece = std::min(kPiece, bytes - at);
                       kernel.copy(to + at, from + at, piece, at + piece < bytes ? from + at + piece : next);
                       hash.update({bytes_at(from + at), piece});
                     }
                   });
  return hash.digest();
}

}  // namespace

const CopyKernel& copy_kernel() {
  static const CopyKernel& chosen = choose_kernel("KVARTER_COPY", kernels());
  return chosen;
}

std::string copy_kernel_name() { return copy_kernel().name(); }
std::vector<std::string> copy_kernel_names() { return supported_names(kernels()); }

Result copy_block(const CopyKernel& kernel, Direction direction, const Blocks& blocks, const Copy& copy,
                  const Copy* following) {
  if (copy.engine_block >= blocks.num_blocks()) return {Status::kRejected, 0};
  Result result{Status::kOk, 0};
  if (!copy.verify)
    for_each_segment(direction, blocks, copy, following,
                     [&](std::byte* to, const std::byte* from, std::size_t bytes, const std::byte* next,
                         bool) { kernel.copy(to, from, bytes, next); });
  else if (blocks.whole_stripes() && blocks.bytes() > kXxh3Short)
    result.checksum = copy_stripes(kernel, direction, blocks, copy, following);
  else
    result.checksum = copy_pieces(kernel, direction, blocks, copy, following);
  kernel.finish();
  if (direction == Direction::kScatter && copy.verify && result.checksum != copy.checksum)
    result.status = Status::kCorrupt;
  return result;
}

}  // namespace kvarter
