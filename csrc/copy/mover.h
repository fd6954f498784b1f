#pragma once
// Puts copies on a stream in the way that suits them: in one batch of the driver's, one call a run, or by our
// kernel.
#include <atomic>

#include "copy/device.h"
#include "copy/locked.h"
#include "copy/move.h"
#include "copy/runs.h"

namespace kvarter {

enum class Way { kBatch, kSingle, kKernel };

// Of one direction. One thread at a time, but for the numbers. REQUIRES: the context is current in every
// call.
class Mover {
 public:
  // kernel_below: as DeviceOptions has it; -1 is 0 until measure().
  Mover(std::shared_ptr<const Context> context, const LockedMemory& locked, Direction direction,
        std::int64_t kernel_below);

  // Puts all copies on `stream` and answers as the driver does. After an error some may be there.
  // REQUIRES: the engine has these blocks.
  int move(const std::shared_ptr<const Blocks>& blocks, std::span<const Copy> copies, Handle stream);

  // Finds out for which runs the kernel is the faster way, unless kernel_below was given. Puts work of its
  // own on `stream`, between memory of its own, and waits for it.
  void measure(Handle stream);

  std::uint64_t kernel_below() const { return kernel_below_; }
  std::uint64_t bytes(Way way) const { return bytes_[static_cast<int>(way)]; }

 private:
  Way choose(const Blocks& blocks) const;
  int move_in(Way way, const std::shared_ptr<const Blocks>& blocks, std::span<const Copy> copies,
              Handle stream);
  int batch(Handle stream);
  int single(Handle stream);
  struct Scratch {
    LockedMemory locked;
    std::byte* host;
    DevicePointer device;
  };
  double seconds(Way way, std::size_t run, const Scratch& scratch, Handle stream);

  std::shared_ptr<const Context> context_;
  const LockedMemory& locked_;
  const Direction direction_;
  bool measured_;
  bool batches_;
  MoveKernel kernel_;
  Runs runs_;                    // of the call
  std::vector<MovePair> pairs_;  // of the call; empty unless all slots are locked
  std::atomic<std::uint64_t> kernel_below_;
  std::atomic<std::uint64_t> bytes_[3]{};
};

}  // namespace kvarter
