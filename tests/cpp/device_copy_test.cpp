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

namespace {

using namespace std::chrono_literals;

constexpr auto kLong = std::chrono::hours(1);
constexpr int kDriverError = 999;
constexpr std::int64_t kAlwaysKernel = 1 << 30;

using Bytes = std::vector<char>;

Bytes noise(std::size_t size, unsigned seed) {
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

bool all_are(const std::vector<Result>& results, Status status) {
  return std::ranges::all_of(results, [status](const Result& r) { return r.status == status; });
}

constexpr auto kGather = Direction::kGather, kScatter = Direction::kScatter;

}  // namespace

TEST_CASE("a device's blocks go to slots and back by every way there is, and padding is left alone") {
  for (const unsigned delay : {0u, 300u})
    for (const std::string way : {"batch", "single", "kernel", "unlocked"}) {
      CAPTURE(way);
      Gpu gpu(way == "kernel" ? kAlwaysKernel : 0);
      if (way == "single") fake_set_version(12040);
      CopyEngine& engine = gpu.start(way != "unlocked");
      fake_set_delay(delay, 7);
      const auto gathered = gpu.run(kGather, gpu.everything());
      REQUIRE(all_are(gathered, Status::kOk));
      for (std::size_t i = 0; i < Gpu::kBlocks; ++i) {
        REQUIRE(gpu.in_slot(i) == gpu.in_block(i));
        REQUIRE(gathered[i].checksum == Gpu::checksum(gpu.in_slot(i)));
      }
      for (const auto& segment : gpu.blocks->segments())
        for (std::size_t block = 0; block < Gpu::kBlocks; ++block)
          std::memset(segment.base + block * segment.block_stride, 0, segment.bytes);
      REQUIRE(all_are(gpu.run(kScatter, gpu.everything()), Status::kOk));
      REQUIRE(std::memcmp(gpu.at(0), gpu.content.data(), gpu.content.size()) == 0);
      const CopyAccount account = engine.account();
      const std::uint64_t moved = 2 * gpu.slots_size();
      CHECK(account.batched_bytes == (way == "batch" ? moved : 0));
      CHECK(account.kernel_bytes == (way == "kernel" ? moved : 0));
      CHECK(account.single_bytes == (way == "single" || way == "unlocked" ? moved : 0));
      CHECK(account.locked_bytes == (way == "unlocked" ? 0 : gpu.slots_size()));
    }
}

TEST_CASE("neighbours on the device that are neighbours in a slot travel as one") {
  Gpu gpu;
  fake_set_version(12040);
  gpu.start();
  const auto whole = std::make_shared<const Blocks>(
      std::vector<Region>{{reinterpret_cast<std::byte*>(gpu.device), 1024, 1024, 1, 1024}}, 12);
  std::vector<Copy> copies;
  for (std::size_t i : {0, 1, 2, 3, 8, 9}) copies.push_back({i, gpu.slots.get() + i * 1024, 0, false});
  const auto calls = fake_count("calls:cuMemcpyDtoHAsync");
  REQUIRE(all_are(gpu.results(gpu.engine->submit(kGather, whole, copies, 0, gpu.compute)), Status::kOk));
  CHECK(fake_count("calls:cuMemcpyDtoHAsync") - calls == 2);
}

TEST_CASE("a gather waits for the forward that wrote the blocks") {
  for (const std::int64_t below : {std::int64_t{0}, kAlwaysKernel}) {
    Gpu gpu(below);
    gpu.start();
    fake_hold(gpu.compute);
    gpu.fill(0x5a);
    const Ticket ticket = gpu.submit(kGather, gpu.everything());
    CHECK(!gpu.engine->wait(ticket, 50ms));
    fake_let_go(gpu.compute);
    CHECK(all_are(gpu.results(ticket), Status::kOk));
    CHECK(gpu.in_slot(3) == Bytes(gpu.blocks->bytes(), 0x5a));
  }
}

TEST_CASE("a scatter waits for the forward that still reads what the blocks held before") {
  for (const std::int64_t below : {std::int64_t{0}, kAlwaysKernel}) {
    Gpu gpu(below);
    gpu.start();
    std::memset(gpu.slots.get(), 0x77, gpu.slots_size());
    Bytes seen(gpu.content.size());
    fake_hold(gpu.compute);
    fake_read(gpu.compute, gpu.device, seen.size(), seen.data(), 0);
    const Ticket ticket = gpu.submit(kScatter, gpu.everything());
    CHECK(!gpu.engine->wait(ticket, 50ms));
    fake_let_go(gpu.compute);
    CHECK(all_are(gpu.results(ticket), Status::kOk));
    CHECK(seen == gpu.content);
    CHECK(gpu.in_block(3) == Bytes(gpu.blocks->bytes(), 0x77));
  }
}

TEST_CASE("a forward ordered behind a gather overwrites nothing that is not copied yet, and nobody waits") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    Gpu gpu(seed % 2 ? kAlwaysKernel : 0);
    gpu.start();
    fake_set_delay(2000, seed);
    fake_hold(gpu.compute);
    const Ticket ticket = gpu.submit(kGather, gpu.everything());
    // The stream stands still, so nothing has been copied when this returns.
    REQUIRE(gpu.engine->order(ticket, gpu.compute, kLong));
    gpu.fill(0x11);
    CHECK(!gpu.engine->poll(ticket));
    fake_let_go(gpu.compute);
    CHECK(all_are(gpu.results(ticket), Status::kOk));
    for (std::size_t block = 0; block < Gpu::kBlocks; ++block)
      for (std::size_t tensor = 0; tensor < Gpu::kTensors; ++tensor)
        REQUIRE(std::memcmp(gpu.slot(block) + tensor * Gpu::kSegment,
                            gpu.content.data() + (tensor * Gpu::kBlocks + block) * Gpu::kStride,
                            Gpu::kSegment) == 0);
  }
}

TEST_CASE("a forward ordered behind a scatter reads what it brought") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    Gpu gpu(seed % 2 ? kAlwaysKernel : 0);
    gpu.start();
    std::memset(gpu.slots.get(), 0x42, gpu.slots_size());
    fake_set_delay(2000, seed);
    const Ticket ticket = gpu.submit(kScatter, gpu.copies({6}));
    REQUIRE(gpu.engine->order(ticket, gpu.compute, kLong));
    Bytes seen(Gpu::kSegment);
    fake_read(gpu.compute, gpu.device + 6 * Gpu::kStride, seen.size(), seen.data(), 0);
    fake_synchronize(gpu.compute);
    CHECK(seen == Bytes(Gpu::kSegment, 0x42));
    CHECK(all_are(gpu.results(ticket), Status::kOk));
  }
}

TEST_CASE("a batch is done when its last byte has arrived, and no sooner") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Gpu gpu(seed % 2 ? kAlwaysKernel : 0);
    gpu.start();
    fake_set_delay(300, seed);
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < Gpu::kBlocks; ++i) tickets.push_back(gpu.submit(kGather, gpu.copies({i})));
    for (const std::size_t i : {7, 0, 3, 5, 1, 2, 4, 6}) {
      while (!gpu.engine->poll(tickets[i])) std::this_thread::yield();
      REQUIRE(gpu.in_slot(i) == gpu.in_block(i));
      REQUIRE(gpu.engine->take(tickets[i])[0].checksum == Gpu::checksum(gpu.in_block(i)));
    }
  }
}

TEST_CASE("the two directions do not wait for one another") {
  Gpu gpu;
  gpu.start();
  const std::uintptr_t other = fake_stream();
  fake_hold(gpu.compute);
  const Ticket held = gpu.submit(kGather, gpu.everything());
  CHECK(
      all_are(gpu.results(gpu.engine->submit(kScatter, gpu.blocks, gpu.copies({2}), 0, other)), Status::kOk));
  CHECK(!gpu.engine->poll(held));
  fake_let_go(gpu.compute);
  CHECK(all_are(gpu.results(held), Status::kOk));
  fake_stream_destroy(other);
}

TEST_CASE("a slot that rotted never reaches the device, and stops none of the others") {
  Gpu gpu;
  gpu.start();
  auto copies = gpu.everything();
  gpu.slot(2)[777] ^= 1;
  const auto results = gpu.run(kScatter, copies);
  for (std::size_t i = 0; i < copies.size(); ++i)
    CHECK(results[i].status == (i == 2 ? Status::kCorrupt : Status::kOk));
  for (std::size_t tensor = 0; tensor < Gpu::kTensors; ++tensor) {
    const std::size_t where = (tensor * Gpu::kBlocks + 2) * Gpu::kStride;
    CHECK(std::memcmp(gpu.at(where), gpu.content.data() + where, Gpu::kSegment) == 0);
  }
}

TEST_CASE("blocks that the engine does not have are rejected, and an empty batch is done") {
  Gpu gpu;
  gpu.start();
  auto copies = gpu.copies({0, 1, 2});
  copies[1].engine_block = Gpu::kBlocks;
  copies[2].engine_block = ~0ull;
  const auto results = gpu.run(kGather, copies);
  CHECK(results[0].status == Status::kOk);
  CHECK(results[1].status == Status::kRejected);
  CHECK(results[2].status == Status::kRejected);
  CHECK(gpu.in_slot(1) == Bytes(gpu.blocks->bytes(), 0));
  CHECK(gpu.run(kScatter, {}).empty());
}

TEST_CASE("an error on one stream fails what is on it, and nothing else") {
  Gpu gpu;
  gpu.start();
  fake_fail_copy(5, kDriverError);
  CHECK(all_are(gpu.run(kGather, gpu.everything()), Status::kTimedOut));
  CHECK(gpu.engine->account().errors > 0);
  CHECK(all_are(gpu.run(kScatter, gpu.everything()), Status::kOk));
}

TEST_CASE("whichever call of the driver fails, every block is answered for and the next batch is copied") {
  for (const char* function : {"cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyBatchAsync",
                               "cuEventSynchronize", "cuLaunchKernel", "cuMemAlloc"})
    for (const unsigned n : {1u, 2u})
      for (const Direction direction : {kGather, kScatter}) {
        CAPTURE(function);
        CAPTURE(n);
        Gpu gpu(std::string(function) == "cuLaunchKernel" || std::string(function) == "cuMemAlloc"
                    ? kAlwaysKernel
                    : 0);
        gpu.start();
        fake_fail(function, n, kDriverError);
        bool failed = false;
        for (int batch = 0; batch < 3; ++batch) {
          const Ticket ticket = gpu.submit(direction, gpu.everything());
          const bool ordered = gpu.engine->order(ticket, gpu.compute, kLong);
          const auto results = gpu.results(ticket);
          const bool ok = all_are(results, Status::kOk);
          CHECK((ok || all_are(results, Status::kTimedOut)));
          failed |= !ok || !ordered;
          if (ok && direction == kGather) CHECK(gpu.in_slot(4) == gpu.in_block(4));
        }
        CHECK((failed || n == 2));
        CHECK(all_are(gpu.run(direction, gpu.everything()), Status::kOk));
      }
}

TEST_CASE("what is answered as failed is not being copied any more") {
  // The tenth of 24 runs is refused, or the event behind them: what comes before is on the stream already.
  for (const auto& [function, n] : {std::pair("cuMemcpyDtoHAsync", 10u), std::pair("cuEventRecord", 2u)}) {
    CAPTURE(function);
    Gpu gpu;
    fake_set_version(12040);
    gpu.start();
    fake_set_delay(500, 3);
    fake_fail(function, n, kDriverError);
    CHECK(all_are(gpu.run(kGather, gpu.everything()), Status::kTimedOut));
    std::memset(gpu.slots.get(), 0x33, gpu.slots_size());
    fake_set_delay(0, 0);
    const auto next = gpu.run(kGather, gpu.copies({7}));  // whatever was on the stream has run when this has
    CHECK(all_are(next, Status::kOk));
    CHECK(gpu.in_slot(0) == Bytes(gpu.blocks->bytes(), 0x33));
    CHECK(gpu.in_slot(7) == gpu.in_block(7));
  }
}

TEST_CASE("a batch of many chunks is one batch, to whoever waits and to the engine's stream") {
  for (const std::int64_t below : {std::int64_t{0}, kAlwaysKernel})
    for (const Direction direction : {kGather, kScatter}) {
      Gpu gpu(below);
      constexpr std::size_t kCount = 9, kBlock = 3 << 20;  // one a chunk
      const std::uint64_t device = fake_alloc(kCount * kBlock);
      const auto big = std::make_shared<const Blocks>(
          std::vector<Region>{{reinterpret_cast<std::byte*>(device), kBlock, kBlock, 1, kBlock}}, kCount);
      const std::shared_ptr<std::byte> slots(
          static_cast<std::byte*>(::operator new(kCount * kBlock, std::align_val_t(4096))),
          [](std::byte* p) { ::operator delete(p, std::align_val_t(4096)); });
      std::memset(slots.get(), 0x21, kCount * kBlock);
      gpu.start();
      CHECK(gpu.engine->prepare({slots.get(), kCount * kBlock}, slots) == "");
      fake_set_delay(300, 5);
      std::vector<Copy> copies;
      const auto sum = Gpu::checksum(Bytes(kBlock, direction == kGather ? 0 : 0x21));
      for (std::size_t i = 0; i < kCount; ++i) copies.push_back({i, slots.get() + i * kBlock, sum, true});
      const Ticket ticket = gpu.engine->submit(direction, big, copies, 0, gpu.compute);
      REQUIRE(gpu.engine->order(ticket, gpu.compute, kLong));
      Bytes seen(kCount * kBlock);
      fake_read(gpu.compute, device, seen.size(), seen.data(), 0);
      fake_fill(gpu.compute, device, seen.size(), 0x77, 0);
      const auto results = gpu.results(ticket);
      CHECK(all_are(results, Status::kOk));
      for (const Result& result : results) CHECK(result.checksum == sum);
      fake_synchronize(gpu.compute);
      CHECK(seen == Bytes(seen.size(), direction == kGather ? 0 : 0x21));
      CHECK(std::memcmp(slots.get(), seen.data(), seen.size()) == 0);
    }
}

TEST_CASE("a driver that has batches, and not for this device, copies singly") {
  Gpu gpu;
  gpu.start();
  fake_fail("cuMemcpyBatchAsync", 1, 801);
  CHECK(all_are(gpu.run(kGather, gpu.everything()), Status::kOk));
  CHECK(gpu.in_slot(7) == gpu.in_block(7));
  CHECK(gpu.engine->account().single_bytes == gpu.slots_size());
}

TEST_CASE("a fence closes what is not begun, and returns when what is under way has ended") {
  Gpu gpu;
  gpu.start();
  fake_hold(gpu.compute);
  const Ticket begun = gpu.submit(kGather, gpu.copies({0}), 5);
  REQUIRE(gpu.engine->order(begun, gpu.compute, kLong));
  std::atomic<bool> returned{false};
  std::thread fencing([&] {
    gpu.engine->fence(5);
    returned = true;
  });
  Ticket late;
  do late = gpu.submit(kGather, gpu.copies({1}), 5);
  while (!gpu.engine->wait(late,
                           1ms));  // the fence has begun once one of them ends while the device stands still
  CHECK(gpu.engine->take(late)[0].status == Status::kClosed);
  CHECK(!returned);
  fake_let_go(gpu.compute);
  fencing.join();
  CHECK(gpu.engine->poll(begun));
  CHECK(gpu.results(gpu.submit(kGather, gpu.copies({2}), 6))[0].status == Status::kOk);
}

TEST_CASE("memory is locked once for a process, and let go of by the last engine") {
  Gpu gpu;
  gpu.start();
  {
    const auto second = Gpu::make(0), elsewhere = Gpu::make(0, 1);
    CHECK(gpu.prepare(*second) == "");
    CHECK(gpu.prepare(*elsewhere) == "");
    CHECK(gpu.prepare(*second) == "");
    CHECK(second->account().locked_bytes == gpu.slots_size());
    CHECK(fake_count("calls:cuMemHostRegister") == 1);
    gpu.engine.reset();
    CHECK(fake_count("locked") == gpu.slots_size());
  }
  CHECK(fake_count("locked") == 0);
  CHECK(gpu.slots.use_count() == 1);
}

TEST_CASE("memory that cannot be locked is copied all the same, and the refusal has numbers") {
  Gpu gpu;
  fake_set_lock_limit(1000);
  gpu.start(false);
  const std::string refused = gpu.prepare(*gpu.engine);
  CHECK(refused.starts_with(
      "page-locking 98304 bytes of the pool answered CUDA_ERROR_OUT_OF_MEMORY (2); ulimit -l"));
  CHECK(all_are(gpu.run(kGather, gpu.everything()), Status::kOk));
  CHECK(gpu.in_slot(6) == gpu.in_block(6));
  CHECK(gpu.engine->account().refused_bytes == gpu.slots_size());
  CHECK(gpu.engine->account().single_bytes == gpu.slots_size());
  fake_set_lock_limit(1 << 30);
  CHECK(gpu.prepare(*gpu.engine) == "");
  CHECK(gpu.engine->account().refused_bytes == 0);
}

TEST_CASE("a graph that the engine captures meanwhile is not broken off") {
  Gpu gpu(kAlwaysKernel);
  gpu.start(false);
  fake_set_capturing(1);
  CHECK(gpu.prepare(*gpu.engine) == "");
  CHECK(all_are(gpu.run(kGather, gpu.everything()), Status::kOk));
  CHECK(all_are(gpu.run(kScatter, gpu.everything()), Status::kOk));
  gpu.engine.reset();
  fake_set_capturing(0);
}

TEST_CASE("after sleep the tensors are elsewhere, and what was locked is locked still") {
  Gpu gpu(kAlwaysKernel);
  gpu.start();
  REQUIRE(all_are(gpu.run(kGather, gpu.everything()), Status::kOk));
  gpu.engine->fence(0);
  fake_free(gpu.device);
  gpu.device = fake_alloc(gpu.content.size());
  gpu.blocks = Gpu::blocks_at(gpu.device);
  const Ticket ticket = gpu.submit(kScatter, gpu.everything(), 1);
  CHECK(all_are(gpu.results(ticket), Status::kOk));
  for (std::size_t i = 0; i < Gpu::kBlocks; ++i) CHECK(gpu.in_slot(i) == gpu.in_block(i));
  CHECK(fake_count("calls:cuMemHostRegister") == 1);
}

TEST_CASE("drivers old and new are found, each function in the version that we call") {
  for (const bool old : {false, true}) {
    Gpu gpu;
    fake_set_version(old ? 11000 : 13000);
    fake_set_old(old);
    const auto driver = cuda_from(fake_driver::find);
    CHECK((driver->batch != nullptr) == !old);
    gpu.start();
    CHECK(all_are(gpu.run(kGather, gpu.everything()), Status::kOk));
    CHECK(gpu.in_slot(1) == gpu.in_block(1));
  }
  CHECK_THROWS_WITH_AS(cuda_from([](const char*) -> void* { return nullptr; }),
                       "the CUDA driver has no cuInit; one of CUDA 11 or later does: update it",
                       std::runtime_error);
}

TEST_CASE("a device or a driver that is not there is refused with what was found") {
  Gpu gpu;
  CHECK_THROWS_WITH_AS(Gpu::make(0, 2), "device 2 is asked for, and the driver has 2", std::runtime_error);
  CHECK_THROWS_WITH_AS(make_device_engine("fake", cuda_from(fake_driver::find), {0, "", 0, 0}),
                       "found 0 threads, expected at least 1", std::invalid_argument);
  fake_fail("cuStreamCreateWithPriority", 1, kDriverError);
  CHECK_THROWS_WITH_AS(Gpu::make(0), "creating a stream answered CUDA_ERROR_FAKE (999)", std::runtime_error);
  CHECK(find_cuda_driver("/nowhere/libcuda.so").missing.starts_with("no CUDA driver: /nowhere/libcuda.so"));
}

TEST_CASE("for which runs the kernel is faster is measured when the pool is prepared") {
  Gpu gpu(-1);
  fake_set_delay(100, 1);  // of each run that a copy engine copies, and of a launch
  gpu.start();
  const CopyAccount account = gpu.engine->account();
  for (const std::uint64_t below : {account.gather_kernel, account.scatter_kernel}) {
    CHECK(below >= 8192);
    CHECK((below & (below - 1)) == 0);
  }
  CHECK(account.batched_bytes + account.kernel_bytes == 0);
  CHECK(fake_count("locked") == gpu.slots_size());
  fake_set_delay(0, 0);
  CHECK(all_are(gpu.run(kGather, gpu.everything()), Status::kOk));
  CHECK(gpu.engine->account().kernel_bytes == gpu.slots_size());
}

TEST_CASE("runs that are not of whole words never go by kernel") {
  Gpu gpu(kAlwaysKernel);
  gpu.start();
  const auto odd = std::make_shared<const Blocks>(
      std::vector<Region>{{reinterpret_cast<std::byte*>(gpu.device), 1000, 999, 1, 999}}, 12);
  const Ticket ticket = gpu.engine->submit(kGather, odd, {{3, gpu.slots.get(), 0, true}}, 0, gpu.compute);
  CHECK(all_are(gpu.results(ticket), Status::kOk));
  CHECK(std::memcmp(gpu.slots.get(), gpu.content.data() + 3000, 999) == 0);
  CHECK(gpu.engine->account().kernel_bytes == 0);
}

TEST_CASE("an engine goes away with work queued: what is begun ends, the rest is never copied") {
  Gpu gpu;
  gpu.start();
  fake_hold(gpu.compute);
  const Ticket begun = gpu.submit(kGather, gpu.copies({0}));
  REQUIRE(gpu.engine->order(begun, gpu.compute, kLong));
  for (std::size_t i = 1; i < Gpu::kBlocks; ++i) gpu.submit(i % 2 ? kGather : kScatter, gpu.copies({i}));
  std::thread ending([&] { gpu.engine.reset(); });
  fake_let_go(gpu.compute);
  ending.join();
  CHECK(gpu.in_slot(0) == gpu.in_block(0));
}

TEST_CASE("many threads, both directions, every answer right") {
  Gpu gpu(8192);
  gpu.start();
  fake_set_delay(50, 11);
  REQUIRE(all_are(gpu.run(kGather, gpu.everything()), Status::kOk));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 30; ++round) {
        const Direction direction = (i + static_cast<std::size_t>(round)) % 2 ? kGather : kScatter;
        const std::size_t block = 2 * i + static_cast<std::size_t>(round % 2);
        const Ticket ticket = gpu.submit(direction, gpu.copies({block}));
        if (!gpu.engine->order(ticket, gpu.compute, kLong) || !gpu.engine->wait(ticket, kLong)) ++wrong;
        if (!all_are(gpu.engine->take(ticket), Status::kOk)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(std::memcmp(gpu.at(0), gpu.content.data(), gpu.content.size()) == 0);
}

}  // namespace kvarter
