// A random walk against what a caller knows, with crashes, restarts and a failing device between the steps.
// KVARTER_DISK_STEPS: how many steps (10,000).
#include <cstdlib>
#include <random>
#include <set>

#include "disk_words.h"

using namespace kvarter;

namespace {

struct Walk {
  DiskWorld w{{{1, 1, true, {4096}}, {1, 2, false, {6000, 100}}}, 6, 64 << 10, 9};
  std::mt19937_64 random{4};
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>> written;  // may be there
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>> old;  // may be there only after a crash
  std::uint64_t hits = 0, crashes = 0;

  std::uint64_t below(std::uint64_t n) { return random() % n; }
  std::vector<Digest> some(std::uint64_t& id) {
    id = below(12);
    return text(id, 6, id % 4);
  }
  Range part(const GroupShape& s, std::uint32_t group) {
    const std::uint64_t first = s.chained ? 0 : below(3);
    return {group, first, 1 + below(6 * s.subs - first)};
  }
  // Blocks that texts share count for all of them.
  std::uint64_t owner(std::uint64_t id, std::uint64_t block, const GroupShape& s) const {
    return block / s.subs < id % 4 ? 0 : id;
  }

  void write(bool wait) {
    std::uint64_t id;
    const auto digests = some(id);
    const auto group = static_cast<std::uint32_t>(below(2));
    const Range range = part(w.groups[group], group);
    const Slots made = w.filled(digests, range);
    const DiskTicket ticket = w.log->write(w.chain(digests), {{range}}, made.spans);
    for (std::uint64_t b = 0; b < range.count; ++b)
      written.insert({owner(id, range.first + b, w.groups[group]), group, range.first + b});
    w.finish(ticket);
    if (wait) w.flush();
  }
  void read() {
    std::uint64_t id;
    const auto digests = some(id);
    const auto group = static_cast<std::uint32_t>(below(2));
    const Range range = part(w.groups[group], group);
    const DiskDone done = w.read(digests, range);  // compares the bytes
    for (std::uint64_t b = 0; b < range.count; ++b) {
      CHECK(done.statuses[b] != Status::kCorrupt);
      if (done.statuses[b] != Status::kOk) continue;
      ++hits;
      const auto block = std::tuple(owner(id, range.first + b, w.groups[group]), group, range.first + b);
      CHECK((written.contains(block) || old.contains(block)));
    }
  }
  void crash() {
    ++crashes;
    w.crash(random());
    written.insert(old.begin(), old.end());
    old.clear();
  }
  void step() {
    std::uint64_t id;
    const auto digests = some(id);
    switch (below(40)) {
      case 0:
        return crash();
      case 1:
        w.flush();
        w.disk->set({});
        return w.start();
      case 2: {
        const DiskTicket ticket = w.log->invalidate(w.ns);
        const bool sure = w.finish(ticket).statuses[0] == Status::kOk;
        if (sure) {
          old.clear();
        } else {
          old.insert(written.begin(), written.end());
        }
        written.clear();
        w.ns = w.log->open_namespace(space(1), w.groups);
        return;
      }
      case 3:
        w.log->remove(w.chain(digests), {0, below(6), 1});
        return;
      case 4:
        w.disk->set({.fail_reads_every = below(3) ? 0u : 40u,
                     .fail_writes_every = below(3) ? 0u : 20u,
                     .fail_syncs_every = below(3) ? 0u : 20u,
                     .short_every = below(2) ? 0u : 3u,
                     .hold = below(3)});
        return;
      case 5:
        w.disk->set({});
        w.clock.advance(10'000'000'000);
        return;
      case 6:
        w.clock.advance(below(2'000'000'000));
        return w.settle();
      case 7:
      case 8:
        return w.log->touch(w.chain(digests), {0, 0, 6});
      default:
        return below(2) ? write(below(8) == 0) : read();
    }
  }
};

}  // namespace

TEST_CASE("a random walk with crashes never meets a wrong byte, a lost byte, or an invalidated block") {
  const char* const asked = std::getenv("KVARTER_DISK_STEPS");
  const int steps = asked ? std::atoi(asked) : 100'000;
  Walk walk;
  for (int i = 0; i < steps; ++i) {
    walk.step();
    if (i % 4 == 0) {
      const std::string findings = walk.w.audit();
      INFO("step ", i);
      REQUIRE(findings == "");
    }
  }
  CHECK(walk.hits > static_cast<std::uint64_t>(steps) / 20);
  CHECK(walk.crashes > static_cast<std::uint64_t>(steps) / 100);
}
