#include "copy/mover.h"

#include <algorithm>

namespace kvarter {

Mover::Mover(std::shared_ptr<const Context> context, const LockedMemory& locked, Direction direction,
             std::int64_t kernel_below)
    : context_(std::move(context)),
      locked_(locked),
      direction_(direction),
      measured_(kernel_below >= 0),
      batches_(context_->driver().batch != nullptr),
      kernel_(context_),
      kernel_below_(static_cast<std::uint64_t>(std::max<std::int64_t>(kernel_below, 0))) {}

Way Mover::choose(const Blocks& blocks) const {
  // What is not locked only the driver's plain copies reach: they stage it.
  if (pairs_.empty()) return Way::kSingle;
  if (runs_.mean() < kernel_below_ && kernel_.takes(blocks) &&
      std::ranges::all_of(pairs_, [](const MovePair& pair) { return pair.slot % sizeof(MoveWord) == 0; }))
    return Way::kKernel;
  return batches_ ? Way::kBatch : Way::kSingle;
}

int Mover::move(const std::shared_ptr<const Blocks>& blocks, std::span<const Copy> copies, Handle stream) {
  runs_.clear();
  runs_.add(*blocks, copies);
  pairs_.clear();
  for (const Copy& copy : copies) {
    const DevicePointer slot = locked_.pointer(copy.slot, blocks->bytes());
    if (slot == 0) {
      pairs_.clear();
      break;
    }
    pairs_.push_back({copy.engine_block, slot});
  }
  return move_in(choose(*blocks), blocks, copies, stream);
}

int Mover::move_in(Way way, const std::shared_ptr<const Blocks>& blocks, std::span<const Copy> copies,
                   Handle stream) {
  if (copies.empty()) return 0;
  int result = 0;
  if (way == Way::kKernel) {
    result = kernel_.launch(direction_, blocks, pairs_, stream);
  } else if (way == Way::kBatch) {
    result = batch(stream);
    if (result == kDriverNotSupported) {  // by this device
      batches_ = false;
      way = Way::kSingle;
    }
  }
  if (way == Way::kSingle) result = single(stream);
  if (result == 0) bytes_[static_cast<int>(way)] += runs_.total;
  return result;
}

int Mover::batch(Handle stream) {
  BatchAttributes attributes{kSourceInStreamOrder, {}, {}, 0};
  std::size_t first = 0, failed = 0;
  auto& to = direction_ == Direction::kGather ? runs_.slot : runs_.engine;
  auto& from = direction_ == Direction::kGather ? runs_.engine : runs_.slot;
  return context_->driver().batch(to.data(), from.data(), runs_.bytes.data(), runs_.bytes.size(), &attributes,
                                  &first, 1, &failed, stream);
}

int Mover::single(Handle stream) {
  const Driver& driver = context_->driver();
  for (std::size_t i = 0; i < runs_.bytes.size(); ++i) {
    auto slot = reinterpret_cast<void*>(runs_.slot[i]);
    const int result = direction_ == Direction::kGather
                           ? driver.to_host(slot, runs_.engine[i], runs_.bytes[i], stream)
                           : driver.to_device(runs_.engine[i], slot, runs_.bytes[i], stream);
    if (result != 0) return result;
  }
  return 0;
}

}  // namespace kvarter
