#pragma once
// What the kernel in move.cu is called with. Compiled for the host and for the device.

namespace kvarter {

struct MoveSegment {  // where one lies in an engine block, and in a slot; everything is a multiple of 16
  unsigned long long base, block_stride, slot_offset, bytes;
};
struct MovePair {
  unsigned long long engine_block, slot;
};
inline constexpr unsigned kMovePairs = 128;  // of one launch: they travel as its parameters
struct MovePairs {
  MovePair at[kMovePairs];
};
struct alignas(16) MoveWord {
  unsigned long long low, high;
};

}  // namespace kvarter
