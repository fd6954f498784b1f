#include "kvarter/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "copy/kernel.h"
#include "kvarter/hash.h"

namespace kvarter {

namespace {

using namespace std::chrono_literals;
using Memory = std::vector<std::byte>;

constexpr auto kLong = std::chrono::hours(1);

Memory noise(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Memory memory(size);
  for (auto& byte : memory) byte = static_cast<std::byte>(random());
  return memory;
}

std::uint64_t checksum(const std::byte* p, std::size_t size) {
  return xxh3_64({reinterpret_cast<const std::uint8_t*>(p), size});
}

std::vector<const CopyKernel*> kernels() {
  std::vector<const CopyKernel*> all{&kCopyScalar};
#if defined(__x86_64__)
  for (const CopyKernel* kernel : {&kCopyAvx2, &kCopyAvx512})
    if (kernel->supported()) all.push_back(kernel);
#endif
  return all;
}

// Engine memory with `num_blocks` blocks of two tensors, and slots for all of them.
struct Fixture {
  static constexpr std::size_t kBlocks = 8, kSegment = 512, kSegments = 3, kStride = 640;
  Memory engine = noise(2 * kBlocks * kSegments * kStride, 1);
  std::shared_ptr<const Blocks> blocks = std::make_shared<Blocks>(
      std::vector<Region>{region(0), region(engine.size() / 2)}, std::size_t{kBlocks});
  Memory slots = Memory(kBlocks * blocks->bytes());

  Region region(std::size_t offset) {
    return {engine.data() + offset, kSegments * kStride, kSegment, kSegments, kStride};
  }
  std::byte* slot(std::size_t i) { return slots.data() + i * blocks->bytes(); }
  std::vector<Copy> all() {
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < kBlocks; ++i) copies.push_back({i, slot(i), 0, true});
    return copies;
  }
  std::vector<Copy> with_checksums() {
    auto copies = all();
    for (Copy& copy : copies) copy.checksum = checksum(copy.slot, blocks->bytes());
    return copies;
  }
};

std::vector<Result> run(CopyEngine& engine, Direction direction, std::shared_ptr<const Blocks> blocks,
                        std::vector<Copy> copies, std::uint64_t epoch = 0) {
  const Ticket ticket = engine.submit(direction, std::move(blocks), std::move(copies), epoch);
  REQUIRE(engine.wait(ticket, kLong));
  return engine.take(ticket);
}

bool all_are(const std::vector<Result>& results, Status status) {
  return std::ranges::all_of(results, [status](const Result& r) { return r.status == status; });
}

}  // namespace

TEST_CASE("every kernel copies any geometry both ways, leaves padding alone and agrees on the checksum") {
  std::mt19937 random(3);
  const auto below = [&](std::size_t n) { return random() % n; };
  for (int round = 0; round < 150; ++round) {
    const std::size_t num_blocks = 1 + below(4), unit = below(2) ? 64 : 1;
    std::vector<Region> regions;
    std::vector<std::size_t> offsets;
    std::size_t end = 0;
    for (std::size_t i = 1 + below(3); i > 0; --i) {
      Region region;
      region.segment_bytes = unit * (1 + below(unit == 64 ? 60 : 5000));
      region.segments = 1 + below(4);
      region.segment_stride = region.segment_bytes + unit * below(3);
      region.block_stride = region.segments * region.segment_stride + unit * below(3);
      offsets.push_back(end += below(2) * unit);
      regions.push_back(region);
      end += num_blocks * region.block_stride;
    }
    const Memory original = noise(end + 64, static_cast<std::uint64_t>(round));
    for (const CopyKernel* kernel : kernels()) {
      CAPTURE(kernel->name());
      Memory engine = original;
      for (std::size_t i = 0; i < regions.size(); ++i) regions[i].base = engine.data() + offsets[i];
      const Blocks blocks(regions, num_blocks);
      const std::size_t block = below(num_blocks), shift = below(2) * below(65);
      Memory expected;
      for (const Region& region : regions)
        for (std::size_t s = 0; s < region.segments; ++s) {
          const std::byte* from = region.base + block * region.block_stride + s * region.segment_stride;
          expected.insert(expected.end(), from, from + region.segment_bytes);
        }
      REQUIRE(blocks.bytes() == expected.size());

      Memory around(expected.size() + 200, std::byte{0xee});
      Copy copy{block, around.data() + 64 + shift, 0, true};
      const Result gathered = copy_block(*kernel, Direction::kGather, blocks, copy, &copy);
      REQUIRE(gathered.status == Status::kOk);
      REQUIRE(gathered.checksum == checksum(expected.data(), expected.size()));
      REQUIRE(std::equal(expected.begin(), expected.end(), copy.slot));
      REQUIRE(std::all_of(around.data(), copy.slot, [](std::byte b) { return b == std::byte{0xee}; }));
      REQUIRE(std::all_of(copy.slot + expected.size(), around.data() + around.size(),
                          [](std::byte b) { return b == std::byte{0xee}; }));
      REQUIRE(engine == original);

      for (const bool verify : {true, false}) {
        for (const auto& segment : blocks.segments())
          std::memset(segment.base + block * segment.block_stride, 0, segment.bytes);
        copy.checksum = gathered.checksum;
        copy.verify = verify;
        REQUIRE(copy_block(*kernel, Direction::kScatter, blocks, copy, nullptr).status == Status::kOk);
        REQUIRE(engine == original);
      }
      copy.verify = true;
      copy.slot[below(expected.size())] ^= std::byte{1};
      REQUIRE(copy_block(*kernel, Direction::kScatter, blocks, copy, nullptr).status == Status::kCorrupt);
    }
  }
}

TEST_CASE("a block that the engine does not have is rejected and nothing is written") {
  Fixture f;
  const auto engine = make_host_copy_engine(0);
  auto copies = f.all();
  copies[3].engine_block = Fixture::kBlocks;
  copies[4].engine_block = ~0ull;
  const auto results = run(*engine, Direction::kGather, f.blocks, copies);
  for (std::size_t i = 0; i < copies.size(); ++i)
    CHECK(results[i].status == (i == 3 || i == 4 ? Status::kRejected : Status::kOk));
  CHECK(std::all_of(f.slot(3), f.slot(5), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE("a geometry that cannot be is refused") {
  std::byte memory[64];
  const auto make = [&](Region region, std::size_t num_blocks = 2) { Blocks({region}, num_blocks); };
  CHECK_THROWS_AS(Blocks({}, 1), std::invalid_argument);
  CHECK_THROWS_AS(make({memory, 8, 8, 1, 8}, 0), std::invalid_argument);
  CHECK_THROWS_AS(make({nullptr, 8, 8, 1, 8}), std::invalid_argument);
  CHECK_THROWS_AS(make({memory, 8, 0, 1, 8}), std::invalid_argument);
  CHECK_THROWS_AS(make({memory, 8, 8, 0, 8}), std::invalid_argument);
  CHECK_THROWS_AS(make({memory, 32, 8, 2, 7}), std::invalid_argument);
  CHECK_THROWS_WITH_AS(make({memory, 7, 8, 1, 8}),
                       "region 0 has a block stride of 7, expected at least a segment's 8 bytes",
                       std::invalid_argument);
}

TEST_CASE("segments without padding between them are one") {
  std::byte memory[64];
  CHECK(Blocks({{memory, 32, 8, 4, 8}}, 2).segments().size() == 1);
  CHECK(Blocks({{memory, 32, 8, 3, 10}}, 2).segments().size() == 3);
}

TEST_CASE("without threads a batch is done when submit returns") {
  Fixture f;
  const auto engine = make_host_copy_engine(0);
  const Ticket ticket = engine->submit(Direction::kGather, f.blocks, f.all(), 0);
  CHECK(engine->poll(ticket));
  CHECK(all_are(engine->take(ticket), Status::kOk));
}

TEST_CASE("one thread keeps batches in order") {
  Fixture f;
  const auto engine = make_host_copy_engine(1);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 100; ++i)
    tickets.push_back(
        engine->submit(Direction::kGather, f.blocks, {{i % Fixture::kBlocks, f.slot(0), 0, true}}, 0));
  REQUIRE(engine->wait(tickets.back(), kLong));
  for (const Ticket ticket : tickets) REQUIRE(engine->poll(ticket));
  CHECK(engine->take(tickets.back()).front().checksum == checksum(f.slot(0), f.blocks->bytes()));
}

TEST_CASE("a ticket ends when it is taken, and an unfinished batch cannot be") {
  Fixture f;
  const auto slow = make_faulty_copy_engine(make_host_copy_engine(0), {.delay = kLong});
  const Ticket ticket = slow->submit(Direction::kGather, f.blocks, f.all(), 5);
  CHECK(!slow->poll(ticket));
  CHECK(!slow->wait(ticket, 0ns));
  CHECK_THROWS_AS(slow->take(ticket), std::invalid_argument);
  slow->fence(5);
  CHECK(slow->poll(ticket));
  CHECK(all_are(slow->take(ticket), Status::kClosed));
  CHECK_THROWS_WITH_AS(slow->poll(ticket), "ticket 1 is unknown or was taken; the last is 1",
                       std::invalid_argument);
  CHECK_THROWS_AS(slow->wait(ticket, 0ns), std::invalid_argument);
  CHECK_THROWS_AS(slow->take(ticket), std::invalid_argument);
}

TEST_CASE("a fence ends the epochs up to its own, queued and to come, and no later one") {
  Fixture f;
  for (const unsigned threads : {0u, 1u, 2u}) {
    const auto engine = make_host_copy_engine(threads);
    engine->fence(3);
    CHECK(all_are(run(*engine, Direction::kGather, f.blocks, f.all(), 3), Status::kClosed));
    engine->fence(1);
    CHECK(all_are(run(*engine, Direction::kGather, f.blocks, f.all(), 2), Status::kClosed));
    CHECK(all_are(run(*engine, Direction::kGather, f.blocks, f.all(), 4), Status::kOk));
    CHECK_THROWS_AS(engine->fence(~0ull), std::invalid_argument);
    CHECK(all_are(run(*engine, Direction::kGather, f.blocks, f.all(), 4), Status::kOk));
  }
}

TEST_CASE("after a fence no slot of its epochs is written") {
  Fixture f;
  for (int round = 0; round < 50; ++round) {
    const auto engine = make_host_copy_engine(round % 3);
    std::atomic<bool> fenced{false};
    std::thread submitter([&] {
      while (!fenced) run(*engine, Direction::kGather, f.blocks, f.all(), 1);
    });
    std::this_thread::yield();
    engine->fence(1);
    // Were a copy still running, these plain writes would race with it: ThreadSanitizer watches.
    std::fill(f.slots.begin(), f.slots.end(), std::byte{0x77});
    fenced = true;
    submitter.join();
    CHECK(std::ranges::all_of(f.slots, [](std::byte b) { return b == std::byte{0x77}; }));
  }
}

TEST_CASE("an engine that is destroyed with work queued copies no more of it") {
  Fixture f;
  auto slow = make_faulty_copy_engine(make_host_copy_engine(1), {.delay = kLong});
  for (int i = 0; i < 10; ++i) slow->submit(Direction::kGather, f.blocks, f.all(), 0);
  slow.reset();
  CHECK(std::ranges::all_of(f.slots, [](std::byte b) { return b == std::byte{0}; }));
  auto busy = make_host_copy_engine(1);
  for (int i = 0; i < 200; ++i) busy->submit(Direction::kGather, f.blocks, f.all(), 0);
  busy.reset();
  std::ranges::fill(f.slots, std::byte{0x77});
}

TEST_CASE("many threads share one engine") {
  Fixture f;
  run(*make_host_copy_engine(0), Direction::kGather, f.blocks, f.all());
  const auto engine = make_host_copy_engine(2);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      Memory own(f.blocks->bytes());
      for (std::uint64_t i = 0; i < 100; ++i) {
        const Ticket ticket =
            engine->submit(Direction::kGather, f.blocks, {{i % Fixture::kBlocks, own.data()}}, 0);
        while (!engine->wait(ticket, 1ms)) continue;
        if (engine->take(ticket).front().checksum != checksum(f.slot(i % Fixture::kBlocks), own.size()))
          ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a faulty engine fails every n-th block and copies the others") {
  Fixture f;
  const auto engine =
      make_faulty_copy_engine(make_host_copy_engine(1), {.fail_every = 3, .fail_status = Status::kRejected});
  const auto results = run(*engine, Direction::kGather, f.blocks, f.all());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const bool failed = (i + 1) % 3 == 0;
    CHECK(results[i].status == (failed ? Status::kRejected : Status::kOk));
    CHECK(std::all_of(f.slot(i), f.slot(i + 1), [](std::byte b) { return b == std::byte{0}; }) == failed);
  }
}

TEST_CASE("a byte that a faulty engine flips is found by the checksum, in both directions") {
  Fixture f;
  const auto host = make_host_copy_engine(0);
  const auto rotten = run(*make_faulty_copy_engine(host, {.flip_every = 4, .seed = 9}), Direction::kGather,
                          f.blocks, f.all());
  auto copies = f.all();
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i].checksum = rotten[i].checksum;
  auto results = run(*host, Direction::kScatter, f.blocks, copies);
  for (std::size_t i = 0; i < results.size(); ++i)
    CHECK(results[i].status == ((i + 1) % 4 == 0 ? Status::kCorrupt : Status::kOk));

  results = run(*make_faulty_copy_engine(host, {.flip_every = 5}), Direction::kScatter, f.blocks,
                f.with_checksums());
  for (std::size_t i = 0; i < results.size(); ++i)
    CHECK(results[i].status == (i == 4 ? Status::kCorrupt : Status::kOk));
}

TEST_CASE("a faulty engine that makes no sense is refused") {
  const auto host = make_host_copy_engine(0);
  CHECK_THROWS_AS(make_faulty_copy_engine(nullptr, {}), std::invalid_argument);
  CHECK_THROWS_AS(make_faulty_copy_engine(host, {.delay = -1ns}), std::invalid_argument);
  CHECK_THROWS_WITH_AS(make_faulty_copy_engine(host, {.fail_status = Status::kOk}),
                       "fail_status is Ok, expected TimedOut or Rejected", std::invalid_argument);
}

}  // namespace kvarter
