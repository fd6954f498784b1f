// Two engines of one process, through UCX: that its callbacks, our thread and the callers' agree.
#include "kvarter/ucx/engine.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <cstring>
#include <random>
#include <thread>

#include "kvarter/hash.h"

using namespace kvarter;
using namespace kvarter::ucx;

namespace {

constexpr std::size_t kBlock = 100'000, kBlocks = 40;
constexpr std::chrono::seconds kHang{60};

struct Side {
  std::vector<std::byte> memory = std::vector<std::byte>(kBlock * kBlocks);
  Engine engine;
  std::deque<Event> seen{};

  explicit Side(const std::string& transports, unsigned seed, std::size_t queued_bytes = 64 << 20)
      : engine(memory, Options{.settings = {.transports = transports, .devices = {"lo"}},
                               .queued_bytes = queued_bytes}) {
    std::mt19937 random(seed);
    for (auto& byte : memory) byte = static_cast<std::byte>(random());
  }

  template <class T>
  T wait() {
    const auto deadline = std::chrono::steady_clock::now() + kHang;
    while (std::chrono::steady_clock::now() < deadline) {
      for (Event& event : engine.take(100)) seen.push_back(std::move(event));
      for (auto it = seen.begin(); it != seen.end(); ++it)
        if (T* found = std::get_if<T>(&*it)) {
          T copy = std::move(*found);
          seen.erase(it);
          return copy;
        }
      pollfd fd{engine.event_fd(), POLLIN, 0};
      ::poll(&fd, 1, 1000);
    }
    FAIL("an event did not come");
    return T{};
  }
  Block block(std::size_t i) const {
    const std::span bytes(memory.data() + i * kBlock, kBlock);
    return {i * kBlock, kBlock, Status::kOk,
            xxh3_64({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()})};
  }
};

struct Pair {
  Side owner, client;
  PeerId to_client, to_owner;

  explicit Pair(const std::string& transports) : owner(transports, 1), client(transports, 2) {
    const auto of_owner = owner.engine.invite(), of_client = client.engine.invite();
    to_client = owner.engine.connect(of_client, of_owner);
    to_owner = client.engine.connect(of_owner, of_client);
  }
  std::uint64_t expect(std::uint64_t request) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> slots;
    for (std::size_t i = 0; i < kBlocks; ++i) slots.emplace_back((kBlocks - 1 - i) * kBlock, kBlock);
    return client.engine.expect(to_owner, request, slots);
  }
  std::vector<Block> blocks() const {
    std::vector<Block> all;
    for (std::size_t i = 0; i < kBlocks; ++i) all.push_back(owner.block(i));
    return all;
  }
};

}  // namespace

TEST_CASE("blocks travel between engines, and end up where they were expected") {
  for (const char* transports : {"tcp", "posix"}) {
    CAPTURE(transports);
    Pair pair(transports);
    for (std::uint64_t request = 1; request <= 3; ++request) {
      const std::uint64_t generation = pair.expect(request);
      REQUIRE(pair.owner.engine.send(pair.to_client, request, generation, pair.blocks()) == Status::kOk);
      const auto received = pair.client.wait<Received>();
      CHECK(received.statuses == std::vector(kBlocks, Status::kOk));
      CHECK(pair.owner.wait<Sent>().status == Status::kOk);
      for (std::size_t i = 0; i < kBlocks; ++i)
        CHECK(std::memcmp(pair.client.memory.data() + (kBlocks - 1 - i) * kBlock,
                          pair.owner.memory.data() + i * kBlock, kBlock) == 0);
      std::ranges::fill(pair.client.memory, std::byte{});
    }
  }
}

TEST_CASE("messages arrive in order, both ways at once") {
  Pair pair("tcp");
  const auto talk = [](Engine& engine, PeerId peer) {
    for (unsigned i = 0; i < 500; ++i) {
      std::vector<std::byte> data(1 + i % 3000);
      std::memcpy(data.data(), &i, std::min(data.size(), sizeof i));
      REQUIRE(engine.message(peer, std::move(data)) == Status::kOk);
    }
  };
  std::thread other(talk, std::ref(pair.owner.engine), pair.to_client);
  talk(pair.client.engine, pair.to_owner);
  other.join();
  for (unsigned i = 0; i < 500; ++i) {
    CHECK(pair.client.wait<Message>().data.size() == 1 + i % 3000);
    CHECK(pair.owner.wait<Message>().data.size() == 1 + i % 3000);
  }
}

TEST_CASE("any thread may call, and every request that is not forgotten ends once") {
  Pair pair("tcp");
  std::vector<std::thread> callers;
  std::atomic<unsigned> forgotten{0};
  const std::vector<Block> one{pair.owner.block(0)};
  for (unsigned caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, caller] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        const std::uint64_t request = caller * 1000 + i, slot = 1 + caller;
        const std::uint64_t generation =
            pair.client.engine.expect(pair.to_owner, request, {{slot * kBlock, kBlock}});
        REQUIRE(pair.owner.engine.send(pair.to_client, request, generation, one) == Status::kOk);
        if (i % 3 == 0) forgotten += pair.client.engine.forget(request);
        if (i % 5 == 0) pair.owner.engine.cancel(pair.to_client, request);
      }
    });
  for (auto& caller : callers) caller.join();
  for (unsigned i = 0; i < 200; ++i) pair.owner.wait<Sent>();
  for (unsigned i = 0; i < 200 - forgotten; ++i) pair.client.wait<Received>();
}

// The other side is not told: UCX may leave it waiting for ever, and our caller's own connection says it.
TEST_CASE("closing a peer answers what it owed") {
  Pair pair("tcp");
  pair.expect(1);
  pair.client.engine.close_peer(pair.to_owner);
  CHECK(pair.client.wait<Received>().statuses == std::vector(kBlocks, Status::kClosed));
  CHECK(pair.client.wait<Closed>().peer == pair.to_owner);
  CHECK(pair.client.engine.message(pair.to_owner, {}) == Status::kClosed);
}

TEST_CASE("an engine that is closed answers Closed") {
  Pair pair("tcp");
  pair.expect(1);
  pair.client.engine.close();
  CHECK(pair.client.wait<Received>().statuses == std::vector(kBlocks, Status::kClosed));
  CHECK(pair.client.engine.message(pair.to_owner, {}) == Status::kClosed);
  CHECK_THROWS_AS(pair.expect(2), std::runtime_error);
  CHECK(!pair.client.engine.forget(1));
}

TEST_CASE("every call that was taken is answered, however close the end") {
  Pair pair("tcp");
  std::atomic<unsigned> taken{0};
  std::thread caller([&] {
    const std::vector<Block> one{pair.owner.block(0)};
    while (pair.owner.engine.send(pair.to_client, 1, 1, one) == Status::kOk) ++taken;
  });
  while (taken < 10) std::this_thread::yield();
  pair.owner.engine.close();
  caller.join();
  for (unsigned i = 0; i < taken; ++i) pair.owner.wait<Sent>();
}

TEST_CASE("more than may be queued is Busy, but for the first") {
  Side owner("tcp", 1, 1000), client("tcp", 2);
  const auto of_owner = owner.engine.invite(), of_client = client.engine.invite();
  const PeerId peer = owner.engine.connect(of_client, of_owner);
  std::vector<Block> all;
  for (std::size_t i = 0; i < kBlocks; ++i) all.push_back(owner.block(i));
  REQUIRE(owner.engine.send(peer, 1, 1, all) == Status::kOk);
  Status second = owner.engine.send(peer, 2, 1, all);
  CHECK((second == Status::kBusy || std::get<Sent>(owner.engine.take(1).at(0)).request == 1));
  CHECK(owner.wait<Sent>().request == 1);
}

TEST_CASE("what cannot be is refused with the numbers") {
  Side side("tcp", 1);
  CHECK_THROWS_AS(side.engine.expect(1, 1, {}), std::invalid_argument);
  CHECK_THROWS_AS(side.engine.expect(1, 1, {{kBlock * kBlocks - 1, 2}}), std::invalid_argument);
  CHECK_THROWS_AS(side.engine.expect(1, 1, {{~0ull, 2}}), std::invalid_argument);
  CHECK_THROWS_AS(side.engine.expect(1, 1, {{0, 10}, {9, 10}}), std::invalid_argument);
  CHECK_THROWS_AS(side.engine.connect({}, {}), std::invalid_argument);
  CHECK_THROWS_AS(Side("nothing-of-the-kind", 1), std::runtime_error);
  CHECK_THROWS_AS(Engine(side.memory, Options{.settings = {.transports = "tcp", .devices = {}}}),
                  std::invalid_argument);
}
