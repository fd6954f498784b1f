// Look-ups beside a writer: they take no lock, miss at worst what is being moved, and never find what is not
// there. Under ThreadSanitizer the second test is the proof that nothing they read is a race.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>

#include "index_words.h"
#include "sync_points.h"

using namespace kvarter;

namespace {

const std::vector<GroupShape> kGroups{{1, 1, true, {4096, 4096}}, {1, 1, false, {4096}}};
constexpr std::uint32_t kSlots = 700;

World* world = nullptr;
std::uint64_t looked = 0;

// Called in the middle of a change, with the index's mutex held: a look-up that took it would wait for
// itself.
void look(const char*) {
  const auto a = text(1, 8), never = text(99, 8);
  const Chain chain = world->chain(a);
  const std::uint64_t leading = world->index.leading(chain, 0, 8);
  for (std::uint64_t block = 0; block < 8; ++block)
    REQUIRE(world->index.contains(chain, 0, block) == (block < leading));
  const std::uint64_t run = world->index.last_run(chain, 1, 8, 1, 1);
  if (run > 0) REQUIRE(world->index.contains(chain, 1, run - 1));
  REQUIRE(world->index.leading(world->chain(never), 0, 8) == 0);
  REQUIRE(world->index.version() > 0);
  ++looked;
}

}  // namespace

TEST_CASE("a look-up in the middle of any change answers at once, and a prefix has no holes") {
  World w(2 << 20, kGroups, 32);
  const auto a = text(1, 8);
  world = &w;
  looked = 0;
  sync_hook = look;
  w.write(w.reserve(a, {0, 0, 8}), 2);
  CHECK(w.leading(a) == 8);
  w.write(w.reserve(a, {1, 7, 1}), 1);
  LeaseId id = 0;
  CHECK(w.lease(a, {0, 4, 1}, id) == Status::kOk);
  const std::uint32_t bad = 0;
  w.index.drop_corrupt(id, std::span(&bad, 1));
  CHECK(w.leading(a) == 4);
  w.index.release(id, Outcome::kFailed);
  for (std::uint64_t i = 0; i < 12; ++i) {  // 12 blocks in 2 slots each: evicts
    w.clock.advance(1);
    w.write(w.reserve(text(20 + i, 1), {0, 0, 1}), 2);
  }
  CHECK(w.reason(Reason::kEvicted) > 0);
  w.write(w.reserve(a, {0, 0, 4}), 2);
  w.index.invalidate(w.ns);
  CHECK(w.leading(a) == 0);
  w.index.tick();
  sync_hook = nullptr;
  CHECK(looked > 100);
  CHECK(w.audit() == "");
}

TEST_CASE("a number of a namespace that is gone finds nothing, whatever was opened since") {
  World w;
  const auto a = text(1, 4);
  w.store(a);
  const std::uint32_t gone = w.ns;
  const GroupShape shape{1, 1, true, {64 << 10}};
  for (std::uint8_t next = 2; next < 5; ++next) {
    w.index.invalidate(w.ns);
    w.index.tick();
    w.ns = w.index.open_namespace({next}, std::span(&shape, 1));
    CHECK(w.store(a) == 4);
    CHECK(w.index.leading({gone, 0, {}, a}, 0, 4) == 0);
    CHECK(w.leading(a) == 4);
  }
  CHECK_THROWS_AS(w.index.leading({77, 0, {}, a}, 0, 4), std::invalid_argument);
}

TEST_CASE(
    "readers beside writers that store, evict, abort and corrupt find what is kept and nothing foreign") {
  World w(4 << 20, kGroups, kSlots);
  const auto kept = text(1, 16), never = text(2, 16);
  w.write(w.reserve(kept, {0, 0, 16}), 2);
  LeaseId pin = 0;
  REQUIRE(w.lease(kept, {0, 0, 16}, pin, LeaseKind::kPin) == Status::kOk);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> foreign{0}, torn{0}, found{0}, rounds{0};

  const auto churn = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 3000; ++i) {
      const auto d = text(10 + random() % 40, 24, random() % 2 * 6);
      const auto writing = w.reserve(d, {0, 0, 1 + random() % 24}, seed);
      if (random() % 8 == 0)
        w.index.abort(writing.handles);
      else
        w.write(writing, 2);
      LeaseId id = 0;
      const std::uint64_t leading = w.leading(d);
      if (leading == 0 || w.lease(d, {0, 0, leading}, id) != Status::kOk) continue;
      const auto bad = static_cast<std::uint32_t>(random() % leading);
      if (random() % 4 == 0) w.index.drop_corrupt(id, std::span(&bad, 1));
      w.index.release(id, Outcome::kLoaded);
    }
  };
  const auto read = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (!stop) {
      rounds.fetch_add(1);
      found += w.index.leading(w.chain(kept), 0, 16) == 16;
      foreign += w.index.leading(w.chain(never), 0, 16) + w.index.last_run(w.chain(never), 1, 16, 1, 1);
      foreign += w.index.contains(w.chain(kept), 1, random() % 16);
      const auto d = text(10 + random() % 40, 24);
      const std::uint64_t leading = w.index.leading(w.chain(d), 0, 24);
      LeaseId id = 0;
      if (leading == 0 || w.lease(d, {0, 0, leading}, id) != Status::kOk) continue;
      for (const Slot& slot : w.index.slots(id)) torn += w.checksum_of(slot) != slot.checksum;
      w.index.release(id, Outcome::kLoaded);
    }
  };
  std::vector<std::thread> readers, writers;
  for (unsigned seed = 1; seed <= 2; ++seed) writers.emplace_back(churn, seed);
  for (unsigned seed = 11; seed <= 12; ++seed) readers.emplace_back(read, seed);
  for (std::thread& thread : writers) thread.join();
  stop = true;
  for (std::thread& thread : readers) thread.join();
  CHECK(foreign == 0);
  CHECK(torn == 0);
  CHECK(found > 0);
  CHECK(w.index.counters().reasons[static_cast<int>(Reason::kEvicted)] > 0);
  CHECK(w.leading(kept) == 16);
  CHECK(w.audit() == "");
}
