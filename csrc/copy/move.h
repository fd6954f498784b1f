#pragma once
// Our kernel for short runs (move.cu).
#include <span>
#include <utility>
#include <vector>

#include "copy/device.h"
#include "copy/move_abi.h"
#include "kvarter/copy.h"

namespace kvarter {

// One thread at a time. REQUIRES: the context is current in every call.
class MoveKernel {
 public:
  // Holds no kernel where the device is too old for it.
  explicit MoveKernel(std::shared_ptr<const Context> context);
  ~MoveKernel();
  MoveKernel(const MoveKernel&) = delete;
  MoveKernel& operator=(const MoveKernel&) = delete;

  bool usable() const { return function_ != nullptr; }
  // Whether it can move such blocks: it moves words of 16 bytes.
  bool takes(const Blocks& blocks) const;
  // Puts the copies on a stream. The slots are where the device sees them. The driver's answer.
  int launch(Direction direction, const std::shared_ptr<const Blocks>& blocks,
             std::span<const MovePair> pairs, Handle stream);

 private:
  // Where the segments of these Blocks are listed on the device; 0 with the driver's answer when they cannot
  // be.
  DevicePointer table(const std::shared_ptr<const Blocks>& blocks, int& result);

  struct Table {
    std::weak_ptr<const Blocks> blocks;
    DevicePointer at;
  };
  std::shared_ptr<const Context> context_;
  OwnStream uploads_;  // a list never waits for what the copies wait for
  Handle module_ = nullptr, function_ = nullptr;
  std::vector<Table> tables_;
};

}  // namespace kvarter
