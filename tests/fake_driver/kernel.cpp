#include "fake_driver/kernel.h"

namespace {

struct Index {
  unsigned x = 0;
};
thread_local Index blockIdx, threadIdx, gridDim, blockDim;

}  // namespace

#define __global__
#include "copy/move.cu"

namespace fake_driver {

void run_kernel(unsigned grid, unsigned threads, const kvarter::MoveSegment* segments, unsigned num_segments,
                unsigned runs, unsigned scatter, const kvarter::MovePairs& pairs) {
  gridDim.x = grid;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
      kvarter_move(segments, num_segments, runs, scatter, pairs);
}

}  // namespace fake_driver
