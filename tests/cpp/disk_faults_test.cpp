// Devices that fail, and files that are not what they were.
#include <random>

#include "disk/manifest.h"
#include "disk_words.h"

using namespace kvarter;

namespace {

// A log with a few sealed segments and a tail.
void fill_up(DiskWorld& w) {
  for (std::uint64_t id = 0; id < 12; ++id) w.write(text(id, 6, 2));
  w.flush();
  w.log.reset();
}
// Everything that is found verifies, and the account adds up.
void check_all(DiskWorld& w) {
  for (std::uint64_t id = 0; id < 12; ++id) w.read(text(id, 6, 2), {0, 0, 6});
  CHECK(w.audit() == "");
}

using Content = std::vector<std::byte>;

}  // namespace

TEST_CASE("short transfers are resumed") {
  DiskWorld w({{1, 1, true, {8192, 4096, 12288}}}, 8, 256 << 10);
  w.disk->set({.short_every = 2});
  const auto a = text(1, 6);
  CHECK(count(w.write(a), Status::kOk) == 6);
  CHECK(count(w.read(a, {0, 0, 6}), Status::kOk) == 6);
}

TEST_CASE("a write that fails seals its segment off, is refused, and does not stop the next one") {
  DiskWorld w;
  w.write(text(1, 2));
  w.disk->set({.fail_writes_every = 1});
  const DiskDone failed = w.write(text(2, 2));
  CHECK(failed.reasons[0] == DiskReason::kWriteFailed);
  CHECK(failed.statuses[1] == Status::kRejected);
  w.disk->set({});
  CHECK(w.write(text(3, 2)).reasons[0] == DiskReason::kWriteFailed);  // not yet
  w.clock.advance(6'000'000'000);
  CHECK(count(w.write(text(4, 2)), Status::kOk) == 2);
  CHECK(count(w.read(text(1, 2), {0, 0, 2}), Status::kOk) == 2);
  CHECK(w.flush() == Status::kOk);
  w.crash(1);
  CHECK(w.leading(text(1, 2)) == 2);
  CHECK(w.leading(text(4, 2)) == 2);
  CHECK(w.audit() == "");
}

TEST_CASE("a read that fails is not found, and the block goes") {
  DiskWorld w;
  const auto a = text(1, 2);
  w.write(a);
  w.disk->set({.fail_reads_every = 1});
  CHECK(w.read(a, {0, 0, 2}).statuses[0] == Status::kNotFound);
  CHECK(w.leading(a) == 0);
  CHECK(w.log->counters().not_loaded[static_cast<int>(DiskReason::kReadFailed)] == 2);
  CHECK(w.audit() == "");
}

TEST_CASE("a sync that fails promises nothing") {
  DiskWorld w;
  const auto a = text(1, 2);
  const DiskDone written = w.write(a);
  w.disk->set({.fail_syncs_every = 1});
  w.flush();
  CHECK(w.leading(a) == 0);
  CHECK(w.reason(DiskReason::kUnsynced) + w.reason(DiskReason::kOrphaned) == 2);
  CHECK(w.audit() == "");
}

TEST_CASE("a disk that is full stops growth and nothing else") {
  DiskWorld w;
  w.log.reset();
  w.disk = std::make_shared<FaultyDisk>();
  w.disk->set({.bytes = 3 * w.options.segment_bytes + (200 << 10)});
  w.start();
  for (std::uint64_t id = 0; id < 60; ++id) {
    CHECK(count(w.write(text(id, 4)), Status::kOk) == 4);
    CHECK(w.audit() == "");
  }
  CHECK(w.log->counters().segments == 3);
  CHECK(w.log->ledger().capacity < w.options.capacity);
  w.disk->set({});
  w.clock.advance(6'000'000'000);
  for (std::uint64_t id = 60; id < 120; ++id) w.write(text(id, 4));
  CHECK(w.log->counters().segments == 8);
  CHECK(w.audit() == "");
}

TEST_CASE("a disk with room for not even one segment refuses blocks, and serves on") {
  DiskWorld w;
  w.log.reset();
  w.disk = std::make_shared<FaultyDisk>();
  w.disk->set({.bytes = 200 << 10});
  w.start();
  CHECK(w.write(text(1, 2)).reasons[0] == DiskReason::kNoSpace);
  CHECK(w.audit() == "");
}

TEST_CASE("segments cut short, grown, swapped, doubled, zeroed or with a stale header serve nothing wrong") {
  for (int damage = 0; damage < 8; ++damage) {
    INFO("damage ", damage);
    DiskWorld w;
    fill_up(w);
    const std::string one = "segment-00000000", two = "segment-00000001";
    Content a = w.disk->content(one), b = w.disk->content(two);
    if (damage == 0) w.disk->put(one, Content(a.begin(), a.begin() + 50'000));
    if (damage == 1) {
      a.resize(a.size() + 4096);
      w.disk->put(one, a);
    }
    if (damage == 2) {
      w.disk->put(one, b);
      w.disk->put(two, a);
    }
    if (damage == 3) w.disk->put(two, a);
    if (damage == 4) w.disk->put(one, Content(a.size()));
    if (damage == 5) {  // one segment's header before another's groups
      std::copy_n(b.begin(), 4096, a.begin());
      w.disk->put(one, a);
    }
    if (damage == 6) {  // the index says where other blocks lie
      std::copy(b.end() - 16384, b.end(), a.end() - 16384);
      w.disk->put(one, a);
    }
    if (damage == 7) w.disk->erase(one);
    w.start();
    check_all(w);
    CHECK(count(w.write(text(40, 5)), Status::kOk) == 5);
  }
}

TEST_CASE("a header that carries other blocks' keys is not there, nor is what follows it") {
  DiskWorld w({{1, 1, false, {8192}}});
  for (std::uint64_t id = 0; id < 4; ++id)
    w.write(text(id, 1));  // a group each: a header page, two of payload
  w.flush();
  const std::string tail = "segment-00000000";
  Content a = w.disk->content(tail);
  const auto header = [&](int group) { return a.begin() + 4096 + group * 3 * 4096; };
  std::swap_ranges(header(1), header(1) + 4096, header(2));
  w.disk->put(tail, a);
  w.crash(1);
  CHECK(w.log->contains(w.chain(text(0, 1)), 0, 0));
  for (std::uint64_t id = 1; id < 4; ++id) CHECK_FALSE(w.log->contains(w.chain(text(id, 1)), 0, 0));
  CHECK(count(w.read(text(0, 1), {0, 0, 1}), Status::kOk) == 1);
  CHECK(w.audit() == "");
}

TEST_CASE("a clock that jumps ends what has a deadline, and nothing else") {
  DiskWorld w;
  const auto a = text(1, 5), b = text(2, 5);
  w.write(a);
  const Slots into = w.slots({0, 0, 5}), from = w.filled(b, {0, 0, 5});
  const DiskTicket reading =
      w.log->read(w.chain(a), {{Range{0, 0, 5}}}, into.spans, w.clock.now() + 1'000'000'000);
  const DiskTicket writing = w.log->write(w.chain(b), {{Range{0, 0, 5}}}, from.spans);
  w.clock.advance(100ull * 365 * 86'400 * 1'000'000'000);  // a century
  CHECK(count(w.finish(reading), Status::kTimedOut) == 5);
  CHECK(count(w.finish(writing), Status::kOk) == 5);
  w.clock.advance(2'000'000'000);
  w.settle();
  CHECK(w.log->durable_sequence() == w.log->counters().last_sequence);
  CHECK(count(w.read(a, {0, 0, 5}), Status::kOk) == 5);
  CHECK(w.audit() == "");
}

TEST_CASE("headers of an earlier epoch behind the tail are not there") {
  DiskWorld w({{1, 1, false, {8192}}}, 3, 128 << 10);
  for (std::uint64_t id = 0; id < 30; ++id) w.write(text(id, 4));  // every segment has been recycled
  w.flush();
  std::vector<std::uint64_t> there;
  for (std::uint64_t id = 0; id < 30; ++id)
    if (w.log->contains(w.chain(text(id, 4)), 0, 3)) there.push_back(id);
  w.crash(1);
  for (std::uint64_t id = 0; id < 20; ++id)
    CHECK(count(w.read(text(id, 4), {0, 0, 4}), Status::kCorrupt) == 0);
  for (const std::uint64_t id : there) CHECK(w.log->contains(w.chain(text(id, 4)), 0, 3));
}

TEST_CASE("a directory that is not ours, or newer, is refused and left untouched") {
  for (const char* name : {"notes.txt", "MANIFEST", "segment-00000000"}) {
    auto disk = std::make_shared<FaultyDisk>();
    disk->put(name, Content(8192, std::byte{7}));
    DiskWorld w;
    w.log.reset();
    w.disk = disk;
    CHECK_THROWS_AS(w.start(), std::runtime_error);
    CHECK(disk->files() == std::vector<std::string>{name});
    CHECK(disk->content(name) == Content(8192, std::byte{7}));
  }
  DiskWorld w;
  fill_up(w);
  Content manifest = w.disk->content("MANIFEST");
  manifest[8] = manifest[disk::kSlotBytes + 8] = std::byte{2};  // the version
  w.disk->put("MANIFEST", manifest);
  CHECK_THROWS_WITH(w.start(), doctest::Contains("format version 2"));
  CHECK(w.disk->content("MANIFEST") == manifest);
}

TEST_CASE("either slot of the manifest alone remembers an invalidation; without both nothing is served") {
  for (int slot = 0; slot < 3; ++slot) {
    DiskWorld w;
    w.write(text(1, 4));
    w.flush();
    CHECK(w.finish(w.log->invalidate(w.ns)).statuses[0] == Status::kOk);
    w.ns = w.log->open_namespace(space(1), w.groups);
    w.write(text(2, 4));
    w.flush();
    w.log.reset();
    Content manifest = w.disk->content("MANIFEST");
    for (int i = 0; i < 2; ++i)
      if (slot == i || slot == 2)
        manifest[static_cast<std::size_t>(i) * disk::kSlotBytes + 40] ^= std::byte{4};
    w.disk->put("MANIFEST", manifest);
    w.start();
    CHECK(w.leading(text(1, 4)) == 0);
    CHECK(w.leading(text(2, 4)) == (slot == 2 ? 0 : 4));
    CHECK(w.audit() == "");
  }
}

TEST_CASE("recovery of mutated images: no crash, no wrong byte, and the account adds up") {
  std::mt19937_64 random{12};
  const auto begun = std::chrono::steady_clock::now();
  DiskWorld w({{1, 1, true, {4096}}}, 5, 64 << 10);
  fill_up(w);
  std::map<std::string, Content> image;
  for (const std::string& name : w.disk->files()) image[name] = w.disk->content(name);
  std::uint64_t served = 0, rounds = 0;
  while (std::chrono::steady_clock::now() - begun < std::chrono::seconds(4)) {
    ++rounds;
    w.log.reset();
    w.disk = std::make_shared<FaultyDisk>(rounds);
    bool forged = false;
    for (auto [name, content] : image) {
      for (std::uint64_t n = random() % 4; n > 0 && !content.empty(); --n) {
        // Headers are where it hurts: most of the damage is at the beginning of a page.
        std::size_t at = random() % content.size();
        if (random() % 4) at = at / 4096 * 4096 + random() % 256 % (content.size() - at / 4096 * 4096);
        const std::size_t length =
            std::min<std::size_t>(content.size() - at, 1 + random() % (random() % 8 ? 8 : 9000));
        for (std::size_t i = 0; i < length; ++i)
          content[at + i] = random() % 3 ? std::byte(random()) : std::byte{0};
      }
      if (random() % 3 == 0) {  // a header that verifies and says something else
        const std::size_t page = random() % (content.size() / 4096) * 4096;
        disk::GroupHeader group;
        std::memcpy(&group, content.data() + page, sizeof group);
        if (group.magic == disk::kGroupMagic && group.pages == 1) {
          forged = true;
          content[page + 64 + random() % 600] = std::byte(random());
          group.checksum = 0;
          std::memcpy(content.data() + page, &group, sizeof group);
          group.checksum = disk::checksum(content.data() + page, 4096);
          std::memcpy(content.data() + page, &group, sizeof group);
        }
        disk::Footer footer;
        std::memcpy(&footer, content.data() + content.size() - 4096, sizeof footer);
        if (footer.magic == disk::kFooterMagic && footer.index_offset + footer.index_bytes < content.size() &&
            footer.index_bytes > 0) {
          forged = true;
          for (int i = 0; i < 3; ++i)
            content[footer.index_offset + random() % footer.index_bytes] = std::byte(random());
          footer.index_checksum = disk::checksum(content.data() + footer.index_offset, footer.index_bytes);
          disk::seal(footer);
          std::memcpy(content.data() + content.size() - 4096, &footer, sizeof footer);
        }
      }
      if (random() % 20 == 0)
        content.resize(random() % 3 ? random() % content.size() : content.size() + 5000);
      w.disk->put(name, content);
    }
    try {
      w.start();
    } catch (const std::runtime_error&) {
      continue;  // a manifest that is nobody's
    }
    for (std::uint64_t id = 0; id < 12; ++id) {
      const auto digests = text(id, 6, 2);
      const Slots into = w.slots({0, 0, 6});
      const Range range{0, 0, 6};
      const DiskDone d = w.finish(w.log->read(w.chain(digests), {{range}}, into.spans, kForever));
      served += count(d, Status::kOk);
      if (!forged) w.check_bytes(digests, range, into, d);
    }
    for (std::uint64_t id = 50; id < 53; ++id) w.write(text(id, 4));
    const std::string findings = w.audit();
    INFO("round ", rounds);
    REQUIRE(findings == "");
  }
  CHECK(served > rounds);
}
