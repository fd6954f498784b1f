#pragma once
#include "copy/move_abi.h"

namespace fake_driver {

// csrc/copy/move.cu on the CPU, one thread of the grid after the other.
void run_kernel(unsigned grid, unsigned threads, const kvarter::MoveSegment* segments, unsigned num_segments,
                unsigned runs, unsigned scatter, const kvarter::MovePairs& pairs);

}  // namespace fake_driver
