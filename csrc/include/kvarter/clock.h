#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace kvarter {

// Nanoseconds since some fixed moment. Everything with a deadline takes its time from here.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::uint64_t now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::uint64_t now() const override {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
};

// Moves only when told to: deadlines in tests do not depend on the machine.
class SteppedClock final : public Clock {
 public:
  std::uint64_t now() const override { return now_.load(std::memory_order_relaxed); }
  void advance(std::uint64_t nanoseconds) { now_.fetch_add(nanoseconds, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> now_{1};
};

}  // namespace kvarter
