#pragma once
// The inner loops of a copy, behind one kernel object.
#include <cstddef>
#include <cstdint>

#include "kvarter/copy.h"

namespace kvarter {

class CopyKernel {
 public:
  virtual ~CopyKernel() = default;
  virtual const char* name() const noexcept = 0;
  virtual bool supported() const noexcept = 0;
  // Copies one segment. `next` is where the next segment's source begins: its first lines are fetched while
  // this one is still being stored, since no hardware prefetcher crosses from one segment to another.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes,
                    const std::byte* next) const noexcept = 0;
  // The same for a number of XXH3 stripes, which are mixed into `acc` on their way (Xxh3Kernel::accumulate).
  virtual void copy_mixing(std::byte* to, const std::byte* from, std::size_t stripes, const std::byte* next,
                           std::uint64_t* acc, std::size_t& stripe) const noexcept = 0;
  // Orders what was stored before everything that follows. Called once per block.
  virtual void finish() const noexcept {}
};

const CopyKernel& copy_kernel();
extern const CopyKernel& kCopyScalar;
#if defined(__x86_64__)
extern const CopyKernel& kCopyAvx2;
extern const CopyKernel& kCopyAvx512;
#endif

// Copies one block. `following` is the block that comes after it, or null.
Result copy_block(const CopyKernel& kernel, Direction direction, const Blocks& blocks, const Copy& copy,
                  const Copy* following);

}  // namespace kvarter
