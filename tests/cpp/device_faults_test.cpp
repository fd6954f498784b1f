#include "device_words.h"

namespace kvarter {

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

}  // namespace kvarter
