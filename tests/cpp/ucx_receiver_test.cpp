// What a message may do to memory: fill, in order, the slots of a request that is open, and nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "ucx/receiver.h"

using namespace kvarter;
using namespace kvarter::ucx;

namespace {

constexpr std::uint64_t kToken = 11, kRequest = 5, kGeneration = 99;
constexpr PeerId kPeer = 1;
using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return xxh3_64({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

struct Side {
  Bytes memory = Bytes(1 << 20, std::byte{0xee});
  Events events;
  Counters counters;
  Receiver receiver{memory, events, counters};
  Bytes content;  // of the Ok blocks, one after the other

  Side() { receiver.admit(kToken, kPeer); }

  // Asks for blocks of these lengths, which lie apart from one another.
  void expect(const std::vector<std::uint64_t>& lengths) {
    std::vector<Extent> slots;
    std::uint64_t at = 4096;
    for (const std::uint64_t length : lengths) {
      slots.push_back({at, length});
      at += length + 4096;
    }
    receiver.expect(kPeer, kRequest, kGeneration, slots);
    content = pattern(std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}), 1);
  }

  std::optional<PeerId> say(Header header, std::span<const std::byte> payload = {}) {
    return receiver.arrive(std::as_bytes(std::span(&header, 1)), payload);
  }
  static Header header(Kind kind, std::uint64_t offset = 0) {
    return {.kind = kind, .token = kToken, .request = kRequest, .generation = kGeneration, .offset = offset};
  }
  void begin(const std::vector<Verdict>& verdicts, std::uint64_t total) {
    say(header(Kind::kBegin, total), std::as_bytes(std::span(verdicts)));
  }
  void data(std::size_t at, std::size_t size) {
    say(header(Kind::kData, at), std::span(content).subspan(at, size));
  }
  // Each block in messages of `piece` bytes of it.
  void data_in_pieces(const std::vector<std::size_t>& lengths, std::size_t piece) {
    std::size_t begin = 0;
    for (const std::size_t length : lengths) {
      for (std::size_t at = 0; at < length; at += piece) data(begin + at, std::min(piece, length - at));
      begin += length;
    }
  }
  std::uint64_t sum(std::size_t at, std::size_t size) const {
    return checksum(std::span(content).subspan(at, size));
  }
  std::uint64_t count(Count what) const { return counters.get(static_cast<std::size_t>(what)); }
  bool untouched() const {
    return std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0xee}; });
  }
  // The answer, if there is one.
  std::optional<Received> answer() {
    for (Event& event : events.take(100))
      if (auto* received = std::get_if<Received>(&event)) return std::move(*received);
    return {};
  }
};

}  // namespace

TEST_CASE("blocks land in their slots, whatever the messages are cut into") {
  for (const std::size_t piece : {64u, 128u, 4096u, 100'000u}) {
    Side side;
    side.expect({10'000, 64, 4096, 3});
    side.begin({{side.sum(0, 10'000), 0},
                {side.sum(10'000, 64), 0},
                {side.sum(10'064, 4096), 0},
                {side.sum(14'160, 3), 0}},
               14'163);
    side.data_in_pieces({10'000, 64, 4096, 3}, piece);
    const auto answer = side.answer();
    REQUIRE(answer);
    CHECK(answer->statuses == std::vector<Status>(4, Status::kOk));
    CHECK(std::memcmp(side.memory.data() + 4096, side.content.data(), 10'000) == 0);
    CHECK(std::memcmp(side.memory.data() + 4096 + 10'000 + 4096, side.content.data() + 10'000, 64) == 0);
    CHECK(side.memory[4096 + 10'000] == std::byte{0xee});
    CHECK(!side.receiver.open(kRequest));
  }
}

TEST_CASE("a block that the owner does not have gets no byte, and its status") {
  Side side;
  side.expect({100, 100, 100});
  side.begin({{0, static_cast<std::uint64_t>(Status::kNotFound)},
              {side.sum(0, 100), 0},
              {0, static_cast<std::uint64_t>(Status::kBusy)}},
             100);
  side.data(0, 100);
  const auto answer = side.answer();
  REQUIRE(answer);
  CHECK(answer->statuses == std::vector{Status::kNotFound, Status::kOk, Status::kBusy});
  CHECK(side.memory[4096] == std::byte{0xee});
}

TEST_CASE("a request of which the owner has nothing is answered by its verdicts alone") {
  Side side;
  side.expect({100, 100});
  side.begin({{0, 1}, {0, 1}}, 0);
  const auto answer = side.answer();
  REQUIRE(answer);
  CHECK(answer->statuses == std::vector(2, Status::kNotFound));
}

TEST_CASE("bytes with another checksum are corrupt, and only they") {
  Side side;
  side.expect({100, 100});
  side.begin({{side.sum(0, 100) + 1, 0}, {side.sum(100, 100), 0}}, 200);
  side.data(0, 200);
  const auto answer = side.answer();
  REQUIRE(answer);
  CHECK(answer->statuses == std::vector{Status::kCorrupt, Status::kOk});
  CHECK(side.count(Count::kBlocksCorrupt) == 1);
}

TEST_CASE("an owner whose blocks have other lengths fills nothing") {
  Side side;
  side.expect({100, 100});
  side.begin({{0, 0}, {0, 0}}, 300);
  const auto answer = side.answer();
  REQUIRE(answer);
  CHECK(answer->statuses == std::vector(2, Status::kCorrupt));
  side.data(0, 200);
  CHECK(side.untouched());
}

TEST_CASE("what comes after forget is dropped, also when the slot is someone else's") {
  Side side;
  side.expect({1000});
  side.begin({{side.sum(0, 1000), 0}}, 1000);
  side.data(0, 512);
  CHECK(side.receiver.forget(kRequest));
  std::ranges::fill(side.memory, std::byte{0xee});
  side.data(512, 488);
  CHECK(side.untouched());
  CHECK(side.count(Count::kDropUnasked) == 1);
  CHECK(!side.answer());

  SUBCASE("and when the number is asked for again") {
    side.receiver.expect(kPeer, kRequest, kGeneration + 1, {{4096, 1000}});
    side.begin({{side.sum(0, 1000), 0}}, 1000);
    side.data(0, 1000);
    CHECK(side.untouched());
    CHECK(side.receiver.open(kRequest));
  }
}

TEST_CASE("nobody but the peer that was asked may answer") {
  Side side;
  side.receiver.admit(kToken + 1, kPeer + 1);
  side.expect({100});
  Header other = Side::header(Kind::kBegin, 100);
  const Verdict verdict{side.sum(0, 100), 0};
  other.token = kToken + 1;
  side.say(other, std::as_bytes(std::span(&verdict, 1)));
  CHECK(side.count(Count::kDropUnasked) == 1);
  other.token = kToken + 2;
  side.say(other, std::as_bytes(std::span(&verdict, 1)));
  CHECK(side.count(Count::kDropStranger) == 1);
  CHECK(side.receiver.open(kRequest));
}

TEST_CASE("bytes that are not the next ones are dropped") {
  Side side;
  side.expect({1000});
  side.data(0, 100);  // before its beginning
  side.begin({{side.sum(0, 1000), 0}}, 1000);
  side.data(100, 100);
  side.data(0, 0);
  side.data(0, 384);
  side.data(0, 384);
  side.begin({{0, 0}}, 1000);
  CHECK(side.count(Count::kDropDisordered) == 5);
  side.say(Side::header(Kind::kData, 384), pattern(617, 2));  // one byte too many
  CHECK(side.count(Count::kDropDisordered) == 6);
  side.data(384, 616);
  const auto answer = side.answer();
  REQUIRE(answer);
  CHECK(answer->statuses == std::vector{Status::kOk});
}

TEST_CASE("a message may end only with a block or after whole stripes of one") {
  Side side;
  side.expect({1000, 3, 1000});
  side.begin({{side.sum(0, 1000), 0}, {0, 1}, {side.sum(1000, 1000), 0}}, 2000);
  side.data(0, 100);
  side.data(0, 1100);
  CHECK(side.count(Count::kDropMalformed) == 2);
  CHECK(side.untouched());
  side.data(0, 1128);
  side.data(1128, 872);
  CHECK(side.answer()->statuses == std::vector{Status::kOk, Status::kNotFound, Status::kOk});
}

TEST_CASE("an end gives its status to what is not complete") {
  Side side;
  side.expect({100, 100, 100});
  side.begin({{side.sum(0, 100), 0}, {0, 1}, {side.sum(100, 100), 0}}, 200);
  side.data(0, 164);
  Header end = Side::header(Kind::kEnd);
  end.status = Status::kClosed;
  side.say(end);
  const auto answer = side.answer();
  REQUIRE(answer);
  CHECK(answer->statuses == std::vector{Status::kOk, Status::kNotFound, Status::kClosed});
}

TEST_CASE("a peer that is dismissed owes nothing any more") {
  Side side;
  side.expect({100});
  side.receiver.dismiss(kPeer);
  const auto answer = side.answer();
  REQUIRE(answer);
  CHECK(answer->statuses == std::vector{Status::kClosed});
  side.expect({100});  // it is too late to ask
  CHECK(side.answer()->statuses == std::vector{Status::kClosed});
  side.say(Side::header(Kind::kMessage));
  CHECK(side.count(Count::kDropStranger) == 1);
}

TEST_CASE("a peer whose messages nobody takes is to be closed, and others are heard") {
  Side side;
  side.receiver.admit(kToken + 1, kPeer + 1);
  const Bytes message = pattern(kMostMessage, 3);
  std::optional<PeerId> flooding;
  for (int i = 0; i < 100 && !flooding; ++i) flooding = side.say(Side::header(Kind::kMessage), message);
  CHECK(flooding == kPeer);
  Header other = Side::header(Kind::kMessage);
  other.token = kToken + 1;
  CHECK(!side.say(other, message));
  CHECK(side.events.take(1000).size() == kMostUnread / (kMostMessage + 1) + 1);
  CHECK(!side.say(Side::header(Kind::kMessage), message));
}

TEST_CASE("no bytes from anywhere write outside the slots of a request, or end badly") {
  std::mt19937 random(7);
  Side side;
  for (int round = 0; round < 20'000; ++round) {
    if (!side.receiver.open(kRequest)) side.expect({300, 200});
    Bytes payload = pattern(random() % 40 == 0 ? random() % 600 : 64, random());
    if (random() % 4 == 0) {
      const Bytes garbage = pattern(random() % 64, random());
      side.receiver.arrive(garbage, payload);
      continue;
    }
    Header header;
    header.kind = static_cast<Kind>(random() % 6);
    header.status = static_cast<Status>(random() % 9);
    header.token = kToken + (random() % 8 == 0);
    header.request = kRequest + (random() % 8 == 0);
    header.generation = kGeneration + (random() % 8 == 0);
    header.offset = random() % 2 ? 64 * (random() % 4) : random();
    if (header.kind == Kind::kEnd && random() % 8) continue;
    if (header.kind == Kind::kBegin && random() % 2) {
      const Verdict verdicts[2] = {{0, 0}, {0, random() % 2 * (random() % 9)}};
      payload.resize(sizeof verdicts);
      std::memcpy(payload.data(), verdicts, sizeof verdicts);
      header.offset = verdicts[1].status == 0 ? 500 : 300;
    }
    side.say(header, payload);
    side.events.take(10);
  }
  for (std::size_t i = 0; i < side.memory.size(); ++i)
    if (i < 4096 || (i >= 4396 && i < 8492) || i >= 8692) REQUIRE(side.memory[i] == std::byte{0xee});
  CHECK(side.count(Count::kDropMalformed) > 0);
  CHECK(side.count(Count::kBytesReceived) > 0);
}
