#pragma once
// The pieces of a batch of blocks, as a device's driver takes them.
#include <span>
#include <vector>

#include "copy/driver.h"
#include "kvarter/copy.h"

namespace kvarter {

// Parallel arrays: run i is bytes[i] bytes at engine[i] of the device and at slot[i] of the host. Neighbours
// on both sides are one run.
struct Runs {
  std::vector<DevicePointer> engine, slot;
  std::vector<std::size_t> bytes;
  std::size_t total = 0;

  void clear();
  // REQUIRES: the engine has these blocks.
  void add(const Blocks& blocks, std::span<const Copy> copies);
  std::size_t mean() const { return bytes.empty() ? 0 : total / bytes.size(); }
};

}  // namespace kvarter
