#include <doctest/doctest.h>

#include "index_words.h"

using namespace kvarter;

namespace {

std::vector<Reason> reasons(Index& index, Owner watcher) {
  std::vector<Change> changes;
  REQUIRE(index.changes(watcher, changes));
  std::vector<Reason> result;
  for (const Change& change : changes) result.push_back(change.reason);
  return result;
}

}  // namespace

TEST_CASE("a watcher is told what came, parents first, and why it went, leaves first") {
  World w(2 << 20, {{1, 1, true, {4096}}});
  const Owner watcher = 1;
  w.index.watch(watcher, 100);
  const auto a = text(1, 3);
  const auto writing = w.reserve(a, {0, 0, 3});
  CHECK(reasons(w.index, watcher).empty());
  // The children first: they wait for their parent.
  w.index.complete(std::span(writing.handles).subspan(1), 0, std::vector<std::uint8_t>{1, 1},
                   std::vector<std::uint64_t>{0, 0});
  CHECK(reasons(w.index, watcher).empty());
  w.index.complete(std::span(writing.handles).first(1), 0, std::vector<std::uint8_t>{1},
                   std::vector<std::uint64_t>{0});
  std::vector<Change> came;
  CHECK(w.index.changes(watcher, came));
  REQUIRE(came.size() == 3);
  CHECK(came[0].handle == writing.handles[0]);
  LeaseId lease = 0;
  REQUIRE(w.lease(a, {0, 0, 3}, lease) == Status::kOk);
  const std::uint32_t bad = 1;
  w.index.drop_corrupt(lease, std::span(&bad, 1));
  CHECK(reasons(w.index, watcher) == std::vector{Reason::kOrphaned, Reason::kCorrupt});
}

TEST_CASE("a watcher is told of blocks that were given up in flight") {
  World w(2 << 20, {{1, 1, true, {4096}}});
  const Owner watcher = 1;
  w.index.watch(watcher, 100);
  const auto writing = w.reserve(text(1, 2), {0, 0, 2});
  w.index.abort(std::span(writing.handles).first(1));
  CHECK(reasons(w.index, watcher) == std::vector{Reason::kNoParent, Reason::kAborted});
}

TEST_CASE("a watcher that was told too much learns that it was not all, and goes on from there") {
  World w(2 << 20, {{1, 1, true, {4096}}});
  const Owner few = 1, many = 2;
  w.index.watch(few, 2);
  w.index.watch(many, 100);
  w.store(text(1, 3));
  std::vector<Change> changes;
  CHECK_FALSE(w.index.changes(few, changes));
  CHECK(changes.empty());
  w.store(text(2, 1));
  CHECK(reasons(w.index, few).size() == 1);
  CHECK(reasons(w.index, many).size() == 4);
  CHECK_THROWS_AS(w.index.changes(7, changes), std::invalid_argument);
}

TEST_CASE("a watcher that died is remembered nothing for") {
  World w(2 << 20, {{1, 1, true, {4096}}});
  w.index.watch(1, 100);
  w.index.owner_dead(1);
  w.store(text(1, 3));
  std::vector<Change> changes;
  CHECK_THROWS_AS(w.index.changes(1, changes), std::invalid_argument);
}
