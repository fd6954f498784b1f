// What sessions may ask, and what becomes of calls that are wrong: false, and nothing has happened.
#include "node/desk.h"

#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "index_words.h"

using namespace kvarter;

namespace {

constexpr Owner kMine = 1, kOthers = 2;

// Two sessions' memory is the same here: each call fills the inbox anew.
struct Desk : World {
  std::vector<std::byte> inbox, outbox;
  wire::Reply reply{};
  node::Latencies latencies{};

  explicit Desk(std::vector<GroupShape> groups = {{1, 1, true, {4096, 4096}}}, std::size_t room = 1 << 16)
      : World(2 << 20, std::move(groups)), inbox(room), outbox(room) {}

  void stored(std::span<const Digest> digests) {
    const Writing writing = reserve(digests, {0, 0, digests.size()});
    complete(writing, 0);
    complete(writing, 1);
  }
  bool ask(const wire::Call& call, Owner owner = kMine) {
    reply = {};
    return node::serve(index, nullptr, owner, call, inbox, outbox, reply, latencies);
  }
  Status status() const { return static_cast<Status>(reply.status); }

  wire::Call of(std::span<const Digest> digests, wire::Verb verb) {
    std::memset(inbox.data(), 0, sizeof(Digest));
    std::memcpy(inbox.data() + sizeof(Digest), digests.data(), digests.size_bytes());
    wire::Call call;
    call.verb = verb;
    call.ns = ns;
    call.units = digests.size();
    call.deadline = kForever;
    return call;
  }
  template <class T>
  std::uint64_t put(std::uint64_t at, const std::vector<T>& values) {
    std::memcpy(inbox.data() + at, values.data(), values.size() * sizeof(T));
    return at;
  }
  wire::Call leasing(std::span<const Digest> digests, const std::vector<wire::Wanted>& wanted,
                     LeaseKind kind = LeaseKind::kRead) {
    wire::Call call = of(digests, wire::kLease);
    call.at = put(inbox.size() / 2, wanted);
    call.count = wanted.size();
    call.kind = static_cast<std::uint32_t>(kind);
    return call;
  }
  wire::Call reserving(std::span<const Digest> digests, std::uint64_t count, std::uint32_t most_shards = 2) {
    wire::Call call = of(digests, wire::kReserve);
    call.count = count;
    call.kind = most_shards;
    return call;
  }
  wire::Call completing(const std::vector<Handle>& handles, std::uint32_t shard) {
    wire::Call call;
    call.verb = wire::kComplete;
    put(0, handles);
    put(8 * handles.size(), std::vector<std::uint64_t>(handles.size(), 7));
    put(16 * handles.size(), std::vector<std::uint8_t>(handles.size(), 1));
    call.count = handles.size();
    call.first_shard = shard;
    return call;
  }
  std::vector<Handle> made() const {
    std::vector<Handle> handles;
    const auto* blocks = reinterpret_cast<const wire::Made*>(outbox.data());
    for (std::uint64_t i = 0; i < reply.count; ++i) handles.push_back(blocks[i].handle);
    return handles;
  }
};

}  // namespace

TEST_CASE("a block that a session stored is found and leased by another") {
  Desk d;
  const auto a = text(1, 5);
  REQUIRE(d.ask(d.reserving(a, 5)));
  CHECK(d.reply.slots == 10);
  const auto handles = d.made();
  REQUIRE(d.ask(d.completing(handles, 0)));
  REQUIRE(d.ask(d.completing(handles, 1)));
  wire::Call look = d.of(a, wire::kLeading);
  look.count = 5;
  REQUIRE(d.ask(look, kOthers));
  CHECK(d.reply.count == 5);
  REQUIRE(d.ask(d.leasing(a, {{0, 1, 3}}), kOthers));
  CHECK(d.status() == Status::kOk);
  CHECK(d.reply.count == 6);
  CHECK(d.reply.slots == 6);
  CHECK(d.audit() == "");
}

TEST_CASE("what another session leased, reserved or shares an entry of cannot be ended") {
  Desk d;
  const auto a = text(1, 2), b = text(2, 2);
  d.stored(a);
  REQUIRE(d.ask(d.leasing(a, {{0, 0, 2}}), kOthers));
  wire::Call call;
  call.id = d.reply.id;
  for (const wire::Verb verb : {wire::kRelease, wire::kSlots, wire::kDropCorrupt}) {
    call.verb = verb;
    CHECK_FALSE(d.ask(call));
  }
  wire::Call half = d.reserving(b, 2);
  half.first_shard = 1;
  half.shards = 1;
  REQUIRE(d.ask(half, kOthers));
  const auto handles = d.made();
  CHECK_FALSE(d.ask(d.completing(handles, 1)));
  wire::Call give_up = d.completing(handles, 0);
  give_up.verb = wire::kAbort;
  CHECK_FALSE(d.ask(give_up));  // of all shards
  give_up.first_shard = 1;
  give_up.shards = 1;
  CHECK_FALSE(d.ask(give_up));
  give_up.first_shard = 0;  // that nobody writes, and one that there is not: the entry is theirs all the same
  CHECK_FALSE(d.ask(give_up));
  give_up.first_shard = 2;
  CHECK_FALSE(d.ask(give_up));
  CHECK(d.index.ledger().reserved == 2 * 8192);
  call.verb = wire::kRelease;
  CHECK(d.ask(call, kOthers));
  CHECK(d.ask(d.completing(handles, 1), kOthers));
  CHECK(d.audit() == "");
}

TEST_CASE("numbers that name nothing any more are answered, and end nothing") {
  Desk d;
  wire::Call call;
  call.verb = wire::kRelease;
  call.id = 123;
  REQUIRE(d.ask(call));
  CHECK(d.status() == Status::kNotFound);
  call.verb = wire::kSlots;
  call.first = ~std::uint64_t{0};
  REQUIRE(d.ask(call));
  CHECK(d.reply.slots == 0);
  CHECK(d.ask(d.completing({1, 2, 3, ~Handle{0}}, 7)));
  CHECK(d.audit() == "");
}

TEST_CASE("a run of step 0 is no question") {
  Desk d;
  const auto a = text(1, 4);
  d.stored(a);
  wire::Call call = d.of(a, wire::kLastRun);
  call.first = 4;
  call.count = 1;
  CHECK_FALSE(d.ask(call));
  call.bytes = 1;
  REQUIRE(d.ask(call));
  CHECK(d.reply.count == 4);
}

TEST_CASE("what is asked of a disk that is not there is refused") {
  Desk d;
  for (const wire::Verb verb : {wire::kBelowLeading, wire::kBelowLastRun, wire::kBelowContains})
    CHECK_FALSE(d.ask(d.of(text(1, 1), verb)));
}

TEST_CASE("arrays that lie outside of the inbox are refused, wherever their ends wrap around") {
  Desk d;
  const auto a = text(1, 2);
  d.stored(a);
  REQUIRE(d.ask(d.leasing(a, {{0, 0, 2}})));
  const LeaseId mine = d.reply.id;
  const std::uint64_t far[] = {d.inbox.size() - 8, d.inbox.size(), d.inbox.size() + 8, 1ull << 31,
                               1ull << 61,         1ull << 63,     ~0ull - 7,          ~0ull};
  for (const std::uint64_t at : far) {
    wire::Call lease = d.leasing(a, {{0, 0, 1}});
    lease.at = at;
    CHECK_FALSE(d.ask(lease));
    lease = d.leasing(a, {{0, 0, 1}});
    lease.count = at;
    CHECK_FALSE(d.ask(lease));
    wire::Call look = d.of(a, wire::kLeading);
    look.units = at;
    CHECK_FALSE(d.ask(look));
    wire::Call complete = d.completing({1}, 0);
    complete.at = at;
    CHECK_FALSE(d.ask(complete));
    complete = d.completing({1}, 0);
    complete.count = at;
    CHECK_FALSE(d.ask(complete));
    complete.verb = wire::kAbort;
    CHECK_FALSE(d.ask(complete));
    wire::Call corrupt;
    corrupt.verb = wire::kDropCorrupt;
    corrupt.id = mine;
    corrupt.at = at;
    corrupt.count = 3;
    CHECK_FALSE(d.ask(corrupt));
    wire::Call reserve = d.reserving(text(2, 2), at);
    CHECK_FALSE(d.ask(reserve));
  }
  wire::Call odd = d.completing({1}, 0);
  odd.at = 1;
  CHECK_FALSE(d.ask(odd));
  CHECK(d.index.ledger().reserved == 0);
  CHECK(d.audit() == "");
}

TEST_CASE("blocks, groups, namespaces, kinds and positions that there are not are refused") {
  Desk d;
  const auto a = text(1, 2);
  d.stored(a);
  for (const wire::Wanted wanted : {wire::Wanted{1, 0, 1},
                                    {1ull << 32, 0, 1},
                                    {0, 2, 1},
                                    {0, 1, 2},
                                    {0, 1ull << 30, 1ull << 30},
                                    {0, ~0ull, 1},
                                    {0, 0, ~0ull}})
    CHECK_FALSE(d.ask(d.leasing(a, {wanted})));
  wire::Call call = d.leasing(a, {{0, 0, 1}});
  call.kind = 9;
  CHECK_FALSE(d.ask(call));
  call = d.leasing(a, {{0, 0, 1}});
  call.ns = 77;
  CHECK_FALSE(d.ask(call));
  call.ns = ~0u;
  CHECK_FALSE(d.ask(call));
  REQUIRE(d.ask(d.leasing(a, {{0, 0, 2}})));
  wire::Call corrupt;
  corrupt.verb = wire::kDropCorrupt;
  corrupt.id = d.reply.id;
  corrupt.count = 1;
  d.put(0, std::vector<std::uint32_t>{2});
  CHECK_FALSE(d.ask(corrupt));
  CHECK(d.leading(a) == 2);
  for (const std::uint32_t shards : {3u, 0xffffu, ~0u}) {
    call = d.reserving(text(2, 2), 2);
    call.first_shard = 1;
    call.shards = shards;
    CHECK_FALSE(d.ask(call));
  }
  for (const std::uint32_t verb : {0u, 15u, ~0u}) {
    call = {};
    call.verb = verb;
    CHECK_FALSE(d.ask(call));
  }
  CHECK(d.index.ledger().reserved == 0);
  CHECK(d.audit() == "");
}

TEST_CASE("a reservation whose slots were said to be fewer than they are is none") {
  Desk d({{1, 1, true, {4096, 4096}}}, 1024);
  // 1024 bytes hold 18 blocks of one slot each, as the caller says, and not their 36 slots.
  CHECK_FALSE(d.ask(d.reserving(text(1, 18), 18, 1)));
  CHECK_FALSE(d.ask(d.reserving(text(1, 18), 18, 0)));
  CHECK(d.index.ledger().reserved == 0);
  CHECK(d.ask(d.reserving(text(1, 10), 10, 2)));
  CHECK(d.reply.slots == 20);
  CHECK(d.audit() == "");
}

TEST_CASE("slots that one answer cannot hold come in several") {
  Desk d({{1, 1, true, {4096, 4096}}}, 4096);
  const auto a = text(1, 60);
  d.stored(a);
  REQUIRE(d.ask(d.leasing(a, {{0, 0, 60}})));
  CHECK(d.reply.count == 120);
  wire::Call more;
  more.verb = wire::kSlots;
  more.id = d.reply.id;
  std::vector<std::uint32_t> records;
  while (records.size() < 120) {
    more.first = records.size();
    REQUIRE(d.ask(more));
    REQUIRE(d.reply.slots > 0);
    const auto* places = reinterpret_cast<const wire::Place*>(d.outbox.data());
    for (std::uint64_t i = 0; i < d.reply.slots; ++i) records.push_back(places[i].record);
  }
  std::sort(records.begin(), records.end());
  CHECK(std::unique(records.begin(), records.end()) == records.end());
}

TEST_CASE("whatever one session asks, the account agrees and another's leases and writes stand") {
  Desk d;
  const auto theirs = text(1, 4), writing = text(2, 4);
  d.stored(theirs);
  REQUIRE(d.ask(d.leasing(theirs, {{0, 0, 4}}), kOthers));
  const LeaseId lease = d.reply.id;
  REQUIRE(d.ask(d.reserving(writing, 4), kOthers));
  const auto handles = d.made();
  std::mt19937_64 random(7);
  const auto number = [&](std::uint64_t below) { return random() % below; };
  std::uint64_t answered = 0;
  for (int step = 0; step < 20000; ++step) {
    const auto chain = text(number(6), 1 + number(8));
    wire::Call call = d.of(chain, static_cast<wire::Verb>(number(16)));
    call.group = static_cast<std::uint32_t>(number(8) == 0);
    call.first = number(4);
    call.count = number(6);
    call.bytes = number(3);
    call.kind = static_cast<std::uint32_t>(number(5));
    call.first_shard = static_cast<std::uint32_t>(number(3));
    call.shards = static_cast<std::uint32_t>(number(3));
    call.id = lease + number(40) - 2;
    call.at = 1024 * number(4);
    const std::uint64_t what = number(4);
    for (std::uint64_t at = 1024; at < 1536; at += 8)
      d.put(at, std::vector<std::uint64_t>{what ? number(4) : handles[number(4)] + number(2)});
    if (number(8) == 0) {  // one field is anything
      auto* const words = reinterpret_cast<std::uint64_t*>(&call);
      words[2 + number(sizeof call / 8 - 2)] = random();
    }
    answered += d.ask(call);
    if (step % 500 == 0) {
      d.clock.advance(1);
      d.index.tick();
      REQUIRE(d.audit() == "");
    }
  }
  CHECK(answered > 2000);
  CHECK(d.index.slots(lease).size() == 8);
  d.index.owner_dead(kMine);
  d.index.fenced(kMine, d.index.epoch(kMine));
  CHECK(d.ask(d.completing(handles, 0), kOthers));
  CHECK(d.ask(d.completing(handles, 1), kOthers));
  CHECK(d.index.release(lease, Outcome::kLoaded));
  CHECK(d.leading(writing) == 4);
  CHECK(d.audit() == "");
}

TEST_CASE("the desk times the calls that it answers, by verb, and no others") {
  Desk desk;
  REQUIRE(desk.ask({.verb = wire::kLook}));
  REQUIRE_FALSE(desk.ask({.verb = wire::kRelease, .kind = 99}));
  REQUIRE_FALSE(desk.ask({.verb = wire::kVerbs}));
  for (std::uint32_t verb = 0; verb < wire::kVerbs; ++verb) {
    const auto buckets = desk.latencies[verb].read().buckets;
    CHECK(std::accumulate(buckets.begin(), buckets.end(), std::uint64_t{0}) == (verb == wire::kLook ? 1 : 0));
  }
}

TEST_CASE("a session that watches is told what everybody's blocks come to, and nobody else is") {
  Desk desk;
  CHECK_FALSE(desk.ask({.verb = wire::kChanges}));
  REQUIRE(desk.ask({.verb = wire::kWatch, .count = 100}));
  CHECK_FALSE(desk.ask({.verb = wire::kChanges}, kOthers));
  desk.stored(text(1, 3));
  REQUIRE(desk.ask({.verb = wire::kChanges}));
  CHECK((desk.reply.id == 1 && desk.reply.count == 3));
  std::vector<Handle> handles(3);
  std::memcpy(handles.data(), desk.outbox.data(), 3 * sizeof(Handle));
  handles.push_back(handles[0] + (Handle{1} << 40));
  desk.put(0, handles);
  REQUIRE(desk.ask({.verb = wire::kResident, .count = 4}));
  CHECK(desk.reply.count == 4);
  CHECK(std::to_integer<int>(desk.outbox[2]) == 1);
  CHECK(std::to_integer<int>(desk.outbox[3]) == 0);
  for (const std::uint64_t wrong : {0ul, 1ul << 20, ~0ul})
    CHECK_FALSE(desk.ask({.verb = wire::kWatch, .count = wrong}));
  REQUIRE(desk.ask({.verb = wire::kWatch, .count = 2}));
  desk.stored(text(2, 3));
  REQUIRE(desk.ask({.verb = wire::kChanges}));
  CHECK((desk.reply.id == 0 && desk.reply.count == 0));
}
