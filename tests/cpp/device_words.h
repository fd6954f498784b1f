#pragma once
// The language of the GPU copy engine's tests: a machine with an engine's tensors on its (faked) GPU, and
// slots.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

#include "copy/device_engine.h"
#include "copy/locked.h"
#include "fake_driver/fake_driver.h"
#include "kvarter/hash.h"

namespace kvarter {

using namespace std::chrono_literals;

constexpr auto kLong = std::chrono::hours(1);
constexpr int kDriverError = 999;
constexpr std::int64_t kAlwaysKernel = 1 << 30;

using Bytes = std::vector<char>;

inline Bytes noise(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// A machine with an engine's tensors on its GPU, and slots.
struct Gpu {
  static constexpr std::size_t kBlocks = 8, kSegment = 4096, kTensors = 3, kStride = kSegment + 64;

  explicit Gpu(std::int64_t kernel_below = 0) : kernel_below_(kernel_below) {
    fake_reset();
    content = noise(kTensors * kBlocks * kStride, 1);
    device = fake_alloc(content.size());
    std::memcpy(at(0), content.data(), content.size());
    blocks = blocks_at(device);
    slots = std::shared_ptr<std::byte>(
        static_cast<std::byte*>(::operator new(slots_size(), std::align_val_t(4096))),
        [](std::byte* p) { ::operator delete(p, std::align_val_t(4096)); });
    std::memset(slots.get(), 0, slots_size());
    compute = fake_stream();
  }
  ~Gpu() {
    engine.reset();
    fake_stream_destroy(compute);
    CHECK(violations() == "");
    for (const char* what : {"streams", "events", "contexts", "locked"}) {
      CAPTURE(what);
      CHECK(fake_count(what) == 0);
    }
  }

  static std::string violations() {
    std::string text(fake_violations(nullptr, 0) + 1, 0);
    fake_violations(text.data(), text.size());
    text.pop_back();
    return text;
  }
  static std::shared_ptr<CopyEngine> make(std::int64_t below, int ordinal = 0) {
    return make_device_engine("fake", cuda_from(fake_driver::find), {ordinal, "", 2, below});
  }
  CopyEngine& start(bool locked = true) {
    engine = make(kernel_below_);
    if (locked) CHECK(prepare(*engine) == "");
    return *engine;
  }
  std::string prepare(CopyEngine& with) { return with.prepare({slots.get(), slots_size()}, slots); }

  static std::shared_ptr<const Blocks> blocks_at(std::uint64_t where) {
    std::vector<Region> regions;
    for (std::size_t i = 0; i < kTensors; ++i)
      regions.push_back(
          {reinterpret_cast<std::byte*>(where) + i * kBlocks * kStride, kStride, kSegment, 1, kSegment});
    return std::make_shared<const Blocks>(regions, kBlocks);
  }
  std::size_t slots_size() const { return kBlocks * kTensors * kSegment; }
  char* at(std::size_t offset) { return reinterpret_cast<char*>(device) + offset; }
  char* slot(std::size_t i) { return reinterpret_cast<char*>(slots.get()) + i * blocks->bytes(); }
  Bytes in_slot(std::size_t i) { return {slot(i), slot(i) + blocks->bytes()}; }
  Bytes in_block(std::size_t block) const {
    Bytes all;
    for (const auto& segment : blocks->segments()) {
      const auto* from = reinterpret_cast<const char*>(segment.base + block * segment.block_stride);
      all.insert(all.end(), from, from + segment.bytes);
    }
    return all;
  }
  static std::uint64_t checksum(const Bytes& bytes) {
    return xxh3_64({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  }
  std::vector<Copy> copies(std::vector<std::size_t> which) {
    std::vector<Copy> all;
    for (const std::size_t i : which)
      all.push_back({i, reinterpret_cast<std::byte*>(slot(i)), checksum(in_slot(i)), true});
    return all;
  }
  std::vector<Copy> everything() { return copies({0, 1, 2, 3, 4, 5, 6, 7}); }
  Ticket submit(Direction direction, std::vector<Copy> which, std::uint64_t epoch = 0) {
    return engine->submit(direction, blocks, std::move(which), epoch, compute);
  }
  std::vector<Result> results(Ticket ticket) {
    REQUIRE(engine->wait(ticket, kLong));
    return engine->take(ticket);
  }
  std::vector<Result> run(Direction direction, std::vector<Copy> which) {
    return results(submit(direction, std::move(which)));
  }
  void fill(int value, unsigned microseconds = 0) {
    fake_fill(compute, device, content.size(), value, microseconds);
  }

  Bytes content;
  std::uint64_t device;
  std::shared_ptr<const Blocks> blocks;
  std::shared_ptr<std::byte> slots;
  std::uintptr_t compute;
  std::shared_ptr<CopyEngine> engine;

 private:
  std::int64_t kernel_below_;
};

inline bool all_are(const std::vector<Result>& results, Status status) {
  return std::ranges::all_of(results, [status](const Result& r) { return r.status == status; });
}

constexpr auto kGather = Direction::kGather, kScatter = Direction::kScatter;

}  // namespace kvarter
