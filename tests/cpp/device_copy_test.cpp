#include "device_words.h"

namespace kvarter {

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
