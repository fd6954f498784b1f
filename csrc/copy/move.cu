// Moves runs of 16-byte words between engine blocks and slots: for runs so short that starting a copy engine
// for each takes longer than the run. Built into move.ptx, which is checked in, by
//   nvcc -O3 -ptx -arch=compute_75 -I.. -o - move.cu | sed -e '/^\/\//d' -e 's/^\.version .*/.version 6.4/' > move.ptx
// (nothing in it needs more than PTX 6.4, which every driver for such a card knows). The fake driver of the
// tests runs this very source on the CPU.
#include "copy/move_abi.h"

extern "C" __global__ void kvarter_move(const kvarter::MoveSegment* segments, unsigned num_segments,
                                        unsigned runs, unsigned scatter, const kvarter::MovePairs pairs) {
  for (unsigned run = blockIdx.x; run < runs; run += gridDim.x) {
    const kvarter::MoveSegment segment = segments[run % num_segments];
    const kvarter::MovePair pair = pairs.at[run / num_segments];
    auto engine = (kvarter::MoveWord*)(segment.base + pair.engine_block * segment.block_stride);
    auto slot = (kvarter::MoveWord*)(pair.slot + segment.slot_offset);
    auto to = scatter ? engine : slot;
    auto from = scatter ? slot : engine;
    for (unsigned long long i = threadIdx.x; i < segment.bytes / sizeof(*to); i += blockDim.x) to[i] = from[i];
  }
}
