// Whose turn it is, what a message holds, and that every job and every account is settled once.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "ucx/sender.h"

using namespace kvarter;
using namespace kvarter::ucx;

namespace {

constexpr std::size_t kSegment = 1000, kWindow = 4;

// A transport that keeps what it is given until it is told otherwise.
struct Wire final : Transmit {
  std::deque<Operation*> under_way;
  std::vector<std::pair<Header, std::vector<std::byte>>> sent;
  bool at_once = false, broken = false;

  Outcome transmit(Operation& operation) override {
    if (broken) return Outcome::kFailed;
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < operation.count; ++i) {
      const auto* begin = static_cast<const std::byte*>(operation.pieces[i].iov_base);
      bytes.insert(bytes.end(), begin, begin + operation.pieces[i].iov_len);
    }
    sent.emplace_back(operation.header, std::move(bytes));
    if (at_once) return Outcome::kDone;
    under_way.push_back(&operation);
    return Outcome::kUnderWay;
  }
  void finish(bool ok = true) {
    while (!under_way.empty()) {
      Operation* operation = under_way.front();
      under_way.pop_front();
      operation->done(ok);
    }
  }
  std::size_t bytes() const {
    return std::accumulate(sent.begin(), sent.end(), std::size_t{0},
                           [](std::size_t all, const auto& message) {
                             return all + (message.first.kind == Kind::kData ? message.second.size() : 0);
                           });
  }
};

struct Side {
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  Events events;
  Counters counters;
  Sender sender{kSegment, kWindow, events, counters};
  std::map<PeerId, Wire> wires;
  std::map<PeerId, Queued> accounts;

  Side() {
    std::mt19937 random(1);
    for (auto& byte : memory) byte = static_cast<std::byte>(random());
  }
  Wire& peer(PeerId id) {
    accounts[id] = std::make_shared<std::atomic<std::size_t>>(0);
    sender.add(id, 100 + id, wires[id], accounts[id]);
    return wires[id];
  }
  void send(PeerId id, std::uint64_t request, const std::vector<std::size_t>& lengths) {
    Job job;
    job.request = request;
    std::size_t at = 0;
    for (const std::size_t length : lengths) {
      job.pieces.push_back({memory.data() + at, length});
      job.verdicts.push_back({});
      job.total += length;
      at += 2 * length;
    }
    *accounts[id] += job.total + kCallCost;
    sender.send(id, std::move(job));
  }
  void message(PeerId id, std::size_t size) {
    *accounts[id] += size + kCallCost;
    sender.message(id, std::vector<std::byte>(size));
  }
  // The statuses of the jobs that have ended, by request.
  std::map<std::uint64_t, Status> ended() {
    std::map<std::uint64_t, Status> found;
    for (const Event& event : events.take(1000)) {
      const Sent& sent = std::get<Sent>(event);
      CHECK(found.emplace(sent.request, sent.status).second);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("a job is its verdicts, then its bytes in order, in messages of a segment") {
  Side side;
  Wire& wire = side.peer(1);
  wire.at_once = true;
  side.send(1, 7, {2500, 10, 10, 1000});
  while (side.sender.pump()) {
  }
  REQUIRE(wire.sent.size() == 5);
  CHECK(wire.sent[0].first.kind == Kind::kBegin);
  CHECK(wire.sent[0].first.offset == 3520);
  CHECK(wire.sent[0].second.size() == 4 * sizeof(Verdict));
  std::vector<std::byte> all;
  for (std::size_t i = 1; i < wire.sent.size(); ++i) {
    CHECK(wire.sent[i].first.offset == all.size());
    CHECK(wire.sent[i].first.token == 101);
    CHECK(wire.sent[i].second.size() <= kSegment);
    all.insert(all.end(), wire.sent[i].second.begin(), wire.sent[i].second.end());
  }
  CHECK(std::equal(all.begin(), all.begin() + 2500, side.memory.begin()));
  CHECK(std::equal(all.begin() + 2500, all.begin() + 2510, side.memory.begin() + 5000));
  CHECK(side.ended() == std::map<std::uint64_t, Status>{{7, Status::kOk}});
  CHECK(*side.accounts[1] == 0);
}

TEST_CASE("no more than a window is under way, and a job ends when its last message is done") {
  Side side;
  Wire& wire = side.peer(1);
  side.send(1, 7, {10'000});
  for (int i = 0; i < 20; ++i) side.sender.pump();
  CHECK(wire.under_way.size() == kWindow);
  CHECK(side.ended().empty());
  for (int i = 0; i < 20; ++i) {
    wire.finish();
    side.sender.pump();
  }
  CHECK(wire.bytes() == 10'000);
  CHECK(side.ended().size() == 1);
}

TEST_CASE("peers take turns by bytes, whatever the size of their blocks") {
  Side side;
  for (const PeerId id : {1u, 2u, 3u}) side.peer(id).at_once = true;
  side.send(1, 1, std::vector<std::size_t>(500, 200));
  side.send(2, 2, {100'000});
  side.send(3, 3, std::vector<std::size_t>(30, 3333));
  for (int turn = 0; turn < 50; ++turn) side.sender.pump();
  for (const PeerId id : {1u, 2u, 3u}) {
    CHECK(side.wires[id].bytes() > 40'000);
    CHECK(side.wires[id].bytes() < 60'000);
  }
}

TEST_CASE("a peer whose window is full delays nobody") {
  Side side;
  side.peer(1);
  side.peer(2).at_once = true;
  side.send(1, 1, {100'000});
  side.send(2, 2, {100'000});
  while (side.sender.pump()) {
  }
  CHECK(side.wires[2].bytes() == 100'000);
  CHECK(side.counters.get(static_cast<std::size_t>(Count::kStalls)) > 0);
}

TEST_CASE("messages are in order and overtake blocks") {
  Side side;
  Wire& wire = side.peer(1);
  wire.at_once = true;
  side.send(1, 1, {50'000});
  side.sender.pump();
  side.message(1, 5);
  side.message(1, 6);
  side.sender.pump();
  std::vector<std::size_t> sizes;
  for (const auto& [header, bytes] : wire.sent)
    if (header.kind == Kind::kMessage) sizes.push_back(bytes.size());
  CHECK(sizes == std::vector<std::size_t>{5, 6});
  CHECK(wire.bytes() < 50'000);
}

TEST_CASE("a cancelled job sends nothing more, and says so to the other side") {
  Side side;
  Wire& wire = side.peer(1);
  side.send(1, 1, {50'000});
  side.send(1, 2, {500});
  side.send(1, 3, {500});
  side.sender.pump();
  side.sender.cancel(1, 1);
  side.sender.cancel(1, 3);
  CHECK(side.ended() == std::map<std::uint64_t, Status>{{3, Status::kClosed}});  // 1 is still read
  for (int i = 0; i < 20; ++i) {
    wire.finish();
    side.sender.pump();
  }
  CHECK(side.ended() == std::map<std::uint64_t, Status>{{1, Status::kClosed}, {2, Status::kOk}});
  CHECK(wire.bytes() < 5'000);
  CHECK(std::ranges::count_if(wire.sent, [](const auto& m) { return m.first.kind == Kind::kEnd; }) == 2);
  CHECK(*side.accounts[1] == 0);
}

TEST_CASE("a lost peer's jobs end when nothing of them is read any more") {
  Side side;
  Wire& wire = side.peer(1);
  side.send(1, 1, {50'000});
  side.send(1, 2, {500});
  side.sender.pump();
  side.sender.lose(1);
  CHECK(side.ended() == std::map<std::uint64_t, Status>{{2, Status::kClosed}});
  CHECK(!side.sender.idle(1));
  wire.finish(false);
  CHECK(side.ended() == std::map<std::uint64_t, Status>{{1, Status::kClosed}});
  CHECK(side.sender.idle(1));
  CHECK(!side.sender.pump());
  side.sender.remove(1);
  side.send(1, 3, {500});
  CHECK(side.ended() == std::map<std::uint64_t, Status>{{3, Status::kClosed}});
}

TEST_CASE("a transport that refuses ends the job, once") {
  Side side;
  side.peer(1).broken = true;
  side.send(1, 1, {50'000});
  side.send(1, 2, {500});
  for (int i = 0; i < 20; ++i) side.sender.pump();
  CHECK(side.ended() == std::map<std::uint64_t, Status>{{1, Status::kClosed}, {2, Status::kClosed}});
  CHECK(*side.accounts[1] == 0);
}

TEST_CASE("whatever happens in whatever order, every job ends once and every byte is accounted for") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Side side;
    for (const PeerId id : {1u, 2u}) side.peer(id);
    std::map<std::uint64_t, Status> ended;
    std::uint64_t request = 0;
    for (int step = 0; step < 300; ++step) {
      const PeerId id = 1 + random() % 2;
      switch (random() % 6) {
        case 0:
          side.send(id, ++request, std::vector<std::size_t>(1 + random() % 20, 1 + random() % 3000));
          break;
        case 1:
          side.message(id, random() % 2000);
          break;
        case 2:
          side.sender.cancel(id, 1 + random() % (request + 1));
          break;
        case 3:
          side.wires[id].finish(random() % 20 != 0);
          break;
        default:
          side.sender.pump();
      }
    }
    if (round % 2) side.sender.lose(1);
    for (int i = 0; i < 2000; ++i) {
      for (auto& [id, wire] : side.wires) wire.finish(!(round % 2 && id == 1));
      side.sender.pump();
    }
    CHECK(side.ended().size() == request);
    CHECK(*side.accounts[2] == 0);
  }
}
