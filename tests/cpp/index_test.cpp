#include <doctest/doctest.h>

#include "index_words.h"

using namespace kvarter;

TEST_CASE("a block is found when every shard has reported, and not before") {
  World w(2 << 20, {{1, 1, true, {4096, 4096}}});
  const auto a = text(1, 3);
  const auto writing = w.reserve(a, {0, 0, 3});
  CHECK(writing.slots.size() == 6);
  CHECK(w.leading(a) == 0);
  w.complete(writing, 0);
  CHECK(w.leading(a) == 0);
  w.complete(writing, 1);
  CHECK(w.leading(a) == 3);
  CHECK(w.audit() == "");
}

TEST_CASE("one failed shard gives the block up when the last writer has reported") {
  World w(2 << 20, {{1, 1, true, {4096, 4096}}});
  const auto a = text(1, 1);
  const auto writing = w.reserve(a, {0, 0, 1});
  w.complete(writing, 0, false);
  CHECK(w.index.ledger().reserved == 8192);
  w.complete(writing, 1, true);
  CHECK(w.index.ledger().reserved == 0);
  CHECK(w.leading(a) == 0);
  CHECK(w.reason(Reason::kFailed) == 1);
  CHECK(w.audit() == "");
}

TEST_CASE("owners of single shards join one entry") {
  World w(2 << 20, {{1, 1, true, {4096, 8192}}});
  const auto a = text(1, 2);
  const auto first = w.reserve(a, {0, 0, 2}, 1, kForever, {0, 1});
  const auto again = w.reserve(a, {0, 0, 2}, 3, kForever, {0, 1});
  const auto second = w.reserve(a, {0, 0, 2}, 2, kForever, {1, 1});
  CHECK(again.handles.empty());
  CHECK(second.handles == first.handles);
  CHECK(second.slots[0].length == 8192);
  w.complete(first, 0);
  CHECK(w.leading(a) == 0);
  w.complete(second, 1);
  CHECK(w.leading(a) == 2);
  CHECK(w.audit() == "");
}

TEST_CASE("a block whose parent is neither resident nor in flight is refused") {
  World w;
  const auto a = text(1, 4);
  CHECK(w.reserve(a, {0, 2, 1}).blocks[0].reason == Reason::kNoParent);
  CHECK(w.audit() == "");
}

TEST_CASE("a block written before its parent waits for it") {
  World w;
  const auto a = text(1, 2);
  const auto parent = w.reserve(a, {0, 0, 1});
  const auto child = w.reserve(a, {0, 1, 1});
  w.complete(child);
  CHECK(w.index.ledger().reserved == 2 * (64 << 10));
  CHECK(w.audit() == "");
  w.complete(parent);
  CHECK(w.leading(a) == 2);
}

TEST_CASE("a block whose parent is aborted goes with it") {
  World w;
  const auto a = text(1, 3);
  const auto parent = w.reserve(a, {0, 0, 1});
  const auto written = w.reserve(a, {0, 1, 1});
  const auto writing = w.reserve(a, {0, 2, 1});
  w.complete(written);
  w.index.abort(parent.handles);
  CHECK(w.reason(Reason::kNoParent) == 2);
  CHECK(w.index.ledger().reserved == 64 << 10);  // its writer has not reported
  CHECK(w.audit() == "");
  w.complete(writing);
  CHECK(w.index.ledger().reserved == 0);
  CHECK(w.leading(a) == 0);
  CHECK(w.store(a) == 3);
}

TEST_CASE("eviction takes leaves, oldest first, and never a block that another one leans on") {
  World w;  // 32 slots of 64 KiB
  const auto a = text(1, 16), b = text(2, 16), c = text(3, 8);
  w.store(a);
  w.clock.advance(1);
  w.store(b);
  w.clock.advance(1);
  CHECK(w.store(c) == 8);
  CHECK(w.leading(a) == 8);
  CHECK(w.leading(b) == 16);
  CHECK(w.reason(Reason::kEvicted) == 8);
  CHECK(w.audit() == "");
}

TEST_CASE("a chain that was used again outlives a younger one") {
  World w;
  const auto a = text(1, 16), b = text(2, 16), c = text(3, 8);
  w.store(a);
  w.clock.advance(1);
  w.store(b);
  w.clock.advance(1);
  LeaseId id = 0;
  CHECK(w.lease(a, {0, 0, 16}, id) == Status::kOk);
  w.index.release(id, Outcome::kLoaded);
  w.store(c);
  CHECK(w.leading(a) == 16);
  CHECK(w.leading(b) == 8);
}

TEST_CASE("a put larger than what may go is refused and evicts no leased or pinned block") {
  World w;
  const auto a = text(1, 16), b = text(2, 16), c = text(3, 32);
  w.store(a);
  w.store(b);
  LeaseId leased = 0, pinned = 0;
  CHECK(w.lease(a, {0, 15, 1}, leased) == Status::kOk);
  CHECK(w.lease(b, {0, 7, 1}, pinned, LeaseKind::kPin) == Status::kOk);
  const std::uint64_t evictable = w.index.evictable();
  CHECK(evictable == 8 * (64 << 10));
  const auto writing = w.reserve(c, {0, 0, 32});
  CHECK(writing.handles.size() == 8);
  CHECK(writing.blocks[8].reason == Reason::kNoSpace);
  CHECK(w.leading(a) == 16);
  CHECK(w.leading(b) == 8);
  CHECK(w.audit() == "");
}

TEST_CASE("making room for a block never evicts its own parent") {
  World w;
  const auto a = text(1, 40);
  const auto writing = w.reserve(a, {0, 0, 32});
  w.complete(writing);
  CHECK(w.reserve(a, {0, 32, 1}).blocks[0].reason == Reason::kNoSpace);
  CHECK(w.leading(a) == 32);
}

TEST_CASE("a hold keeps a chain from eviction until its deadline") {
  World w;
  const auto a = text(1, 16), b = text(2, 32);
  w.store(a);
  LeaseId id = 0;
  CHECK(w.lease(a, {0, 0, 16}, id, LeaseKind::kHold, 100, 1 << 20) == Status::kOk);
  LeaseId other = 0;
  CHECK(w.lease(a, {0, 0, 16}, other, LeaseKind::kHold, 100, 1) ==
        Status::kRejected);  // over half of the pool
  w.clock.advance(1);
  CHECK(w.store(b) == 16);
  CHECK(w.leading(a) == 16);
  w.clock.advance(200);
  w.index.tick();
  CHECK_FALSE(w.index.release(id, Outcome::kUnused));
  CHECK(w.store(b) == 16);
  CHECK(w.leading(a) == 0);
  CHECK(w.audit() == "");
}

TEST_CASE("a long range is leased block by block under its own keys, or not at all") {
  const std::vector<GroupShape> shapes{{1, 1, true, {4096}}, {2, 1, true, {4096}}, {1, 3, true, {4096, 100}}};
  World w(8 << 20, shapes, 2048);
  const auto a = text(1, 200);
  for (std::uint32_t group = 0; group < 3; ++group) {
    const std::uint64_t blocks = a.size() / shapes[group].unit_stride * shapes[group].subs;
    const std::size_t shards = shapes[group].shard_bytes.size();
    const World::Writing written = w.reserve(a, {group, 0, blocks});
    CHECK(written.handles.size() == blocks);
    LeaseId id = 0;
    CHECK(w.lease(a, {group, 0, blocks}, id) == Status::kNotFound);  // in flight
    for (std::uint32_t shard = 0; shard < shards; ++shard) w.complete(written, shard);
    for (const auto& [first, count] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
             {0, blocks}, {0, 1}, {5, 15}, {5, 16}, {4, 17}, {3, 47}, {blocks - 33, 33}, {7, 0}}) {
      CHECK(w.lease(a, {group, first, count}, id) == Status::kOk);
      const auto slots = w.index.slots(id);
      REQUIRE(slots.size() == count * shards);
      for (std::size_t i = 0; i < slots.size(); ++i)
        CHECK(slots[i].offset == written.slots[first * shards + i].offset);
      CHECK(w.index.release(id, Outcome::kLoaded));
    }
    for (std::size_t foreign = 0; foreign < a.size(); foreign += 33) {
      auto other = a;
      other[foreign / shapes[group].unit_stride * shapes[group].unit_stride + shapes[group].unit_stride - 1] =
          digest_of(2, foreign);
      CHECK(w.lease(other, {group, 0, blocks}, id) == Status::kNotFound);
    }
    CHECK_THROWS_AS((void)w.lease(a, {group, 0, blocks + 1}, id), std::invalid_argument);
    CHECK_THROWS_AS((void)w.lease(a, {group, 0, std::uint64_t{1} << 60}, id), std::invalid_argument);
  }
  CHECK(w.index.ledger().leased == 0);
  CHECK(w.audit() == "");
}

TEST_CASE("a block that fails its check goes at once with its descendants, and the next store heals it") {
  World w;
  const auto a = text(1, 8, 4), fork = text(2, 8, 4);
  w.store(a);
  w.store(fork);
  LeaseId id = 0;
  CHECK(w.lease(a, {0, 0, 8}, id) == Status::kOk);
  const auto slots = w.index.slots(id);
  const std::uint32_t bad = 2;
  w.index.drop_corrupt(id, std::span(&bad, 1));
  CHECK(w.leading(a) == 2);
  CHECK(w.leading(fork) == 2);
  CHECK(w.reason(Reason::kCorrupt) == 1);
  CHECK(w.reason(Reason::kOrphaned) == 9);
  CHECK(w.index.ledger().dead == 6 * (64 << 10));
  CHECK(w.index.slots(id)[3].generation != slots[3].generation);
  CHECK(w.audit() == "");
  w.index.release(id, Outcome::kFailed);
  CHECK(w.index.ledger().dead == 0);
  CHECK(w.store(a) == 6);
}

TEST_CASE("a writer past its deadline keeps its slot in quarantine until a fence is acknowledged") {
  World w;
  const auto a = text(1, 2);
  const auto writing = w.reserve(a, {0, 0, 2}, 5, 100);
  w.clock.advance(200);
  const auto fences = w.index.tick();
  REQUIRE(fences.size() == 1);
  CHECK(fences[0].owner == 5);
  CHECK(w.index.tick().empty());
  CHECK(w.index.ledger().quarantined == 2 * (64 << 10));
  CHECK(w.store(a) == 2);  // the key is free, the slots are not
  CHECK(w.index.epoch(5) == fences[0].epoch + 1);
  w.index.fenced(5, fences[0].epoch);
  CHECK(w.index.ledger().quarantined == 0);
  CHECK(w.leading(a) == 2);
  w.complete(writing);  // the late report of a writer whose slots are someone else's by now
  CHECK(w.audit() == "");
}

TEST_CASE("a late report ends the quarantine and never makes the block visible") {
  World w;
  const auto a = text(1, 1);
  const auto writing = w.reserve(a, {0, 0, 1}, 5, 100);
  w.clock.advance(200);
  w.index.tick();
  w.complete(writing);
  CHECK(w.index.ledger().quarantined == 0);
  CHECK(w.leading(a) == 0);
  CHECK(w.audit() == "");
}

TEST_CASE("a dead owner's reservations and leases end") {
  World w;
  const auto a = text(1, 4), b = text(2, 4);
  w.store(a);
  LeaseId id = 0;
  CHECK(w.lease(a, {0, 0, 4}, id) == Status::kOk);
  w.reserve(b, {0, 0, 4});
  w.index.owner_dead(1);
  CHECK(w.index.ledger().reserved == 0);
  CHECK(w.index.ledger().leased == 0);
  CHECK(w.reason(Reason::kOwnerDead) + w.reason(Reason::kNoParent) == 4);
  CHECK(w.index.counters().load_expired == 4);
  CHECK(w.audit() == "");
}

TEST_CASE("an invalidated namespace serves nothing at once and gives its memory back") {
  World w;
  const auto a = text(1, 8), b = text(2, 4);
  w.store(a);
  const auto writing = w.reserve(b, {0, 0, 4});
  w.index.invalidate(w.ns);
  CHECK(w.leading(a) == 0);
  CHECK(w.reserve(a, {0, 0, 1}).blocks[0].reason == Reason::kNamespaceClosed);
  w.index.tick();
  CHECK(w.audit() == "");
  w.complete(writing);
  CHECK(w.index.ledger().resident == 0);
  CHECK(w.index.ledger().reserved == 0);
  w.index.tick();
  const GroupShape shape{1, 1, true, {64 << 10}};
  w.ns = w.index.open_namespace({1}, std::span(&shape, 1));
  CHECK(w.leading(a) == 0);
  CHECK(w.store(a) == 8);
  CHECK(w.audit() == "");
}

TEST_CASE("blocks of several units and several blocks of a unit are found by their own geometry") {
  World w(4 << 20, {{2, 1, true, {4096}}, {1, 4, true, {4096}}, {1, 1, false, {4096}}});
  const auto a = text(1, 6);
  w.complete(w.reserve(a, {0, 0, 3}));
  w.complete(w.reserve(a, {1, 0, 24}));
  w.complete(w.reserve(a, {2, 3, 2}));
  CHECK(w.index.leading(w.chain(a), 0, 99) == 3);
  CHECK(w.index.leading(w.chain(a), 1, 99) == 24);
  CHECK(w.index.last_run(w.chain(a), 2, 6, 2, 1) == 5);
  CHECK(w.index.last_run(w.chain(a), 2, 6, 3, 1) == 0);
  CHECK(w.index.last_run(w.chain(a), 2, 6, 1, 2) == 4);
  const Chain tail{w.ns, 4, a[3], std::span(a).subspan(4)};
  CHECK(w.index.leading(tail, 0, 99) == 3);
  CHECK(w.audit() == "");
}

TEST_CASE("what an index held can be rebuilt from its records") {
  World w(2 << 20, {{1, 1, true, {4096, 8192}}, {1, 1, false, {4096}}});
  const auto a = text(1, 8), b = text(2, 8, 4), c = text(3, 4);
  for (const auto* t : {&a, &b}) {
    const auto writing = w.reserve(*t, {0, 0, 8});
    w.complete(writing, 0);
    w.complete(writing, 1);
  }
  w.complete(w.reserve(a, {1, 7, 1}));
  const auto half = w.reserve(c, {0, 0, 4}, 9);
  w.complete(half, 0);
  const std::uint64_t resident = w.index.ledger().resident;
  Pool pool(again(w.pool.arenas()));
  Index index({256, 0.5}, pool, w.clock, again(w.index.records()));
  const std::vector<GroupShape> shapes{{1, 1, true, {4096, 8192}}, {1, 1, false, {4096}}};
  CHECK(index.open_namespace({1}, shapes) == w.ns);
  CHECK(index.leading(w.chain(a), 0, 8) == 8);
  CHECK(index.leading(w.chain(b), 0, 8) == 8);
  CHECK(index.contains(w.chain(a), 1, 7));
  CHECK(index.leading(w.chain(c), 0, 4) == 0);
  CHECK(index.ledger().quarantined == 4 * 12288);
  index.owner_dead(9);
  CHECK(index.ledger().quarantined == 0);
  CHECK(index.ledger().resident == resident);
  for (const auto& line : index.audit()) CHECK(line == "");
}

TEST_CASE("rebuild drops a block whose parent did not survive") {
  World w;
  const auto a = text(1, 4);
  w.store(a);
  auto* records = reinterpret_cast<SlotRecord*>(w.index.records().data() + 4096 + 128 * kMaxNamespaces);
  for (int i = 0; i < 256; ++i)
    if (records[i].state() == SlotState::kCommitted && records[i].depth == 1) records[i].word = 0;
  Pool pool(again(w.pool.arenas()));
  Index index({256, 0.5}, pool, w.clock, again(w.index.records()));
  const GroupShape shape{1, 1, true, {64 << 10}};
  index.open_namespace({1}, std::span(&shape, 1));
  CHECK(index.leading(w.chain(a), 0, 4) == 1);
  CHECK(index.ledger().resident == 64 << 10);
  for (const auto& line : index.audit()) CHECK(line == "");
}

TEST_CASE("no fence, handle or lease of the index before means anything to the one after it") {
  World w;
  const auto a = text(1, 4), b = text(2, 1), c = text(3, 1);
  w.store(a);
  LeaseId old_lease = 0, lease = 0;
  CHECK(w.lease(a, {0, 0, 4}, old_lease) == Status::kOk);
  const auto writing = w.reserve(b, {0, 0, 1}, 5);
  World next(again(w.pool.arenas()), again(w.index.records()), {1}, {{1, 1, true, {64 << 10}}}, 256);
  CHECK(next.index.ledger().quarantined == 64 << 10);
  CHECK(next.index.tick().empty());
  next.index.fenced(5, 1000);
  CHECK(next.index.ledger().quarantined == 64 << 10);  // its copies carry an epoch that nobody remembers
  const auto reserved = next.reserve(c, {0, 0, 1});
  next.complete(writing);
  CHECK(next.leading(c) == 0);
  CHECK(next.lease(a, {0, 0, 4}, lease) == Status::kOk);
  CHECK_FALSE(next.index.release(old_lease, Outcome::kLoaded));
  next.index.owner_dead(5);
  CHECK(next.index.ledger().quarantined == 0);
  CHECK(next.audit() == "");
}

TEST_CASE("records of another size, version or pool are refused with the numbers") {
  World w;
  const Index::Options options{128, 0.5};
  Pool pool(again(w.pool.arenas())), two(4 << 20, 2 << 20, false);
  CHECK_THROWS_WITH(
      Index(options, pool, w.clock, again(w.index.records())),
      doctest::Contains("records of 256 slots in 1 arenas and 167936 bytes; expected 128 slots"));
  CHECK_THROWS_WITH(Index({256, 0.5}, two, w.clock, again(w.index.records())),
                    doctest::Contains("expected 256 slots in 2 arenas"));
  reinterpret_cast<RecordsHeader*>(w.index.records().data())->layout_version = 9;
  CHECK_THROWS_WITH(Index({256, 0.5}, pool, w.clock, again(w.index.records())),
                    doctest::Contains("layout version 9; this build reads version 2"));
}

TEST_CASE("many blocks are looked up at once, and none of a closed namespace is there") {
  World w;
  const auto a = text(1, 6);
  w.store(std::span(a).first(4));
  std::vector<Key> keys;
  for (const Digest& digest : a) keys.push_back({w.ns, 0, 0, digest});
  std::vector<std::uint8_t> there(6);
  w.index.contains(keys, there);
  CHECK(there == std::vector<std::uint8_t>{1, 1, 1, 1, 0, 0});
  w.index.invalidate(w.ns);
  w.index.contains(keys, there);
  CHECK(there == std::vector<std::uint8_t>(6));
  keys[0].ns = kMaxNamespaces;
  CHECK_THROWS_AS(w.index.contains(keys, there), std::invalid_argument);
}

TEST_CASE("a resident block knows where in its sequence it is") {
  World w(2 << 20, {{1, 1, true, {4096}}, {2, 1, true, {4096}}, {1, 2, true, {4096}}, {2, 1, false, {4096}}});
  const auto a = text(1, 6);
  for (std::uint32_t group = 0; group < 4; ++group)
    w.complete(w.reserve(a, {group, 0, group == 2 ? 12u : group == 0 ? 6u : 3u}));
  const auto of = [&](std::uint32_t group, std::uint64_t unit, std::uint16_t sub = 0) {
    return *w.index.lineage({w.ns, static_cast<std::uint16_t>(group), sub, a[unit]});
  };
  CHECK(of(0, 4).block == 4);
  CHECK(of(0, 4).digests == std::vector<Digest>(a.begin(), a.begin() + 5));
  CHECK(of(1, 3).block == 1);
  CHECK(of(1, 3).digests == std::vector<Digest>{{}, a[1], {}, a[3]});
  CHECK(of(2, 2, 1).block == 5);
  CHECK(of(2, 2, 1).digests == std::vector<Digest>(a.begin(), a.begin() + 3));
  CHECK(of(3, 5).block == 2);
  CHECK(of(3, 5).first_unit == 5);
  CHECK(of(3, 5).digests == std::vector<Digest>{a[5]});
  CHECK_FALSE(w.index.lineage({w.ns, 0, 0, text(2, 1)[0]}));
  CHECK_FALSE(w.index.lineage({w.ns, 1, 0, a[0]}));
}

TEST_CASE("who still asks for a namespace that was closed is told so, also when nothing of it is left") {
  World w;
  const auto a = text(1, 2);
  w.store(a);
  w.index.invalidate(w.ns);
  for (int ticks = 0; ticks < 3; ++ticks) {
    LeaseId id = 0;
    CHECK(w.lease(a, {0, 0, 2}, id) == Status::kNotFound);
    const auto writing = w.reserve(a, {0, 0, 2});
    CHECK(writing.blocks[1].status == Status::kClosed);
    CHECK(writing.blocks[1].reason == Reason::kNamespaceClosed);
    w.index.tick();
  }
  CHECK(w.index.ledger().resident == 0);
  CHECK(w.reason(Reason::kNamespaceClosed) == 6);
  CHECK(w.audit() == "");
}
