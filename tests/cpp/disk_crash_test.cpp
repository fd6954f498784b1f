// Power is lost at every write, sync and change of the directory that a workload makes.
#include <set>

#include "disk_words.h"

using namespace kvarter;

namespace {

using Block = std::pair<std::uint64_t, std::uint64_t>;  // text, number

// What a caller knows while it works: which blocks it was told are safe, and what it has invalidated for
// good.
struct Knowing {
  DiskWorld w{{{1, 1, true, {4096, 5000}}}, 5, 64 << 10};
  std::map<std::uint64_t, std::vector<Digest>> texts;
  std::map<Block, std::uint64_t> sequences;
  std::set<Block> safe, forbidden;
  bool alive() const { return !w.disk->crashed(); }

  void look() {
    if (!alive()) return;
    safe.clear();
    const std::uint64_t durable = w.log->durable_sequence();
    for (const auto& [block, sequence] : sequences)
      if (sequence <= durable && w.log->contains(w.chain(texts[block.first]), 0, block.second))
        safe.insert(block);
  }
  DiskDone finish(DiskTicket ticket) {
    for (int i = 0; i < 10'000; ++i) {
      w.collect();
      if (w.done.contains(ticket)) return w.done.at(ticket);
      w.log->step();
      look();
      if (i > 1000) w.clock.advance(1'000'000);
    }
    FAIL("the ticket never ends");
    return {};
  }
  void write(std::uint64_t id, std::size_t units, std::size_t shared) {
    if (!alive()) return;
    texts[id] = text(id, units, shared);
    const Range range{0, 0, units};
    const Slots made = w.filled(texts[id], range);
    const DiskTicket ticket = w.log->write(w.chain(texts[id]), {{range}}, made.spans);
    const DiskDone done = finish(ticket);
    for (std::uint64_t b = 0; b < units; ++b)
      if (done.statuses[b] == Status::kOk) {
        sequences[{id, b}] = done.sequences[b];
        forbidden.erase({id, b});
      }
    look();
  }
  void flush() {
    if (alive()) finish(w.log->flush());
  }
  void invalidate() {
    if (!alive()) return;
    const DiskTicket ticket = w.log->invalidate(w.ns);
    safe.clear();
    const auto before = std::exchange(sequences, {});
    const DiskDone done = finish(ticket);
    if (done.statuses[0] == Status::kOk)
      for (const auto& [block, sequence] : before) forbidden.insert(block);
    if (alive()) w.ns = w.log->open_namespace(space(1), w.groups);
  }
  void work() {
    for (std::uint64_t id = 1; id <= 6; ++id) write(id, 3, 1);
    flush();
    invalidate();
    for (std::uint64_t id = 1; id <= 3; ++id) write(id, 3, 1);
    flush();
    for (std::uint64_t id = 10; id <= 22; ++id) {
      write(id, 3, 1);
      if (id % 5 == 0) flush();
    }
  }
  void check() {
    for (const Block& block : safe) {
      INFO("text ", block.first, " block ", block.second);
      CHECK(w.log->contains(w.chain(texts[block.first]), 0, block.second));
    }
    for (const auto& [id, digests] : texts)
      for (std::uint64_t b = 0; b < digests.size(); ++b) {
        if (!w.log->contains(w.chain(digests), 0, b)) continue;
        CHECK(!forbidden.contains({id, b}));
        const DiskDone read = w.read(digests, {0, b, 1});  // compares the bytes
        CHECK(read.statuses[0] == Status::kOk);
      }
    CHECK(w.audit() == "");
  }
};

}  // namespace

TEST_CASE(
    "wherever power is lost, what is served verifies, what was durable is there, what was invalidated is "
    "not") {
  std::uint64_t points;
  {
    Knowing calm;
    calm.work();
    points = calm.w.disk->points();
    CHECK(calm.w.log->counters().cleaned_segments > 0);
    calm.check();
  }
  CHECK(points > 150);
  for (std::uint64_t point = 1; point <= points; ++point) {
    INFO("point ", point);
    Knowing k;
    const std::uint64_t before = k.w.disk->points();
    if (point <= before) continue;
    k.w.disk->set({.crash_at = point - before});
    k.work();
    CHECK(!k.alive());
    k.w.crash(point * 31 + 1);
    k.check();
    // And the log goes on from there, through another crash.
    k.forbidden.clear();
    for (std::uint64_t id = 30; id < 34; ++id) k.write(id, 3, 1);
    k.flush();
    k.w.crash(point * 31 + 2);
    k.check();
  }
}

TEST_CASE("power lost while a directory is begun leaves one that can be begun again") {
  for (std::uint64_t point = 1; point <= 12; ++point) {
    auto disk = std::make_shared<FaultyDisk>(point);
    disk->set({.crash_at = point});
    DiskWorld w;
    w.log.reset();
    w.disk = disk;
    try {
      w.start();
      w.settle();
    } catch (const std::runtime_error&) {
    }
    w.crash(point + 100);
    CHECK(count(w.write(text(1, 3)), Status::kOk) == 3);
    CHECK(w.audit() == "");
  }
}
