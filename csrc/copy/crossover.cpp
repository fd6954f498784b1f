// Which runs our kernel moves faster than the device's copy engines: measured, since cards and buses differ.
#include <chrono>
#include <new>

#include "copy/mover.h"

namespace kvarter {

namespace {

constexpr std::size_t kScratch = 4 << 20;  // of device and of host memory
constexpr std::size_t kShortest = 4 << 10, kLongest = 256 << 10;
constexpr int kRounds = 3;
// The kernel takes multiprocessors from the engine, which copy engines do not: it has to be worth it.
constexpr double kWorthIt = 1.25;

}  // namespace

double Mover::seconds(Way way, std::size_t run, const Scratch& scratch, Handle stream) {
  // Every other run of the scratch, so that none are neighbours. One block is one run.
  const std::size_t blocks = kScratch / run / 2;
  const auto scattered = std::make_shared<const Blocks>(
      std::vector<Region>{{reinterpret_cast<std::byte*>(scratch.device), 2 * run, run, 1, run}}, blocks);
  std::vector<Copy> copies;
  runs_.clear();
  pairs_.clear();
  for (std::size_t block = 0; block < blocks; ++block) {
    std::byte* const slot = scratch.host + 2 * run * block;
    copies.push_back({block, slot, 0, false});
    pairs_.push_back({block, scratch.locked.pointer(slot, run)});
  }
  runs_.add(*scattered, copies);
  double best = -1;
  for (int round = 0; round < kRounds; ++round) {
    const auto begun = std::chrono::steady_clock::now();
    if (move_in(way, scattered, copies, stream) != 0 || context_->driver().stream_synchronize(stream) != 0)
      return -1;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (best < 0 || took.count() < best) best = took.count();
  }
  return best;
}

void Mover::measure(Handle stream) {
  if (measured_) return;
  measured_ = true;
  const Driver& driver = context_->driver();
  constexpr std::align_val_t kPage{4096};
  const std::shared_ptr<std::byte> host(static_cast<std::byte*>(::operator new(kScratch, kPage)),
                                        [](std::byte* memory) { ::operator delete(memory, kPage); });
  Scratch scratch{LockedMemory(context_), host.get(), 0};
  if (!scratch.locked.add({host.get(), kScratch}, host).empty()) return;
  if (driver.allocate(&scratch.device, kScratch) != 0) return;
  const Way plain = batches_ ? Way::kBatch : Way::kSingle;
  std::uint64_t below = 0;
  for (std::size_t run = kShortest; run <= kLongest && kernel_.usable(); run *= 2) {
    const double copied = seconds(plain, run, scratch, stream);
    const double moved = seconds(Way::kKernel, run, scratch, stream);
    if (copied < 0 || moved < 0 || moved * kWorthIt > copied) break;
    below = 2 * run;
  }
  driver.release(scratch.device);
  kernel_below_ = below;
  for (auto& bytes : bytes_) bytes = 0;
}

}  // namespace kvarter
