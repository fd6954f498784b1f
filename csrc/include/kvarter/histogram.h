#pragma once
// How long something takes, counted by powers of two. Fixed size: recording allocates nothing and costs a few
// nanoseconds. Threads: one records, any may read meanwhile, and then sees each count as it was at some
// moment of the call.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace kvarter {

class Histogram {
 public:
  // Bucket b counts what took less than 2^b ns and no less than half of that; the last one, all that took
  // longer.
  static constexpr int kBuckets = 40;
  struct Counts {
    std::array<std::uint64_t, kBuckets> buckets{};
    std::uint64_t nanoseconds = 0;  // of all together
  };

  void record(std::uint64_t nanoseconds) noexcept {
    const auto bits = static_cast<std::size_t>(std::bit_width(nanoseconds));
    add(buckets_[std::min<std::size_t>(bits, kBuckets - 1)], 1);
    add(sum_, nanoseconds);
  }

  Counts read() const noexcept {
    Counts counts;
    for (std::size_t i = 0; i < buckets_.size(); ++i)
      counts.buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    counts.nanoseconds = sum_.load(std::memory_order_relaxed);
    return counts;
  }

 private:
  using Count = std::atomic<std::uint64_t>;
  // Nobody else writes: what is read is still there, and no locked instruction is needed.
  static void add(Count& count, std::uint64_t more) noexcept {
    count.store(count.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  std::array<Count, kBuckets> buckets_{};
  Count sum_{0};
};

}  // namespace kvarter
