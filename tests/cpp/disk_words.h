#pragma once
// The language of the disk tests: a log on a disk in memory, texts of blocks whose bytes tell who they are.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>

#include "disk/format.h"
#include "index_words.h"
#include "kvarter/disk.h"

namespace kvarter {

inline std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "; ";
  return all;
}

inline Digest space(std::uint8_t id) {
  Digest digest{};
  digest[0] = id;
  return digest;
}

// Page-aligned memory for the shards of some blocks.
struct Slots {
  std::vector<disk::Aligned> memory;
  std::vector<Span> spans;
  void add(std::uint64_t length) {
    memory.push_back(disk::aligned(length));
    spans.push_back({memory.back().get(), length, 0});
  }
};

struct DiskWorld {
  std::shared_ptr<FaultyDisk> disk;
  SteppedClock clock;
  DiskLog::Options options;
  std::vector<GroupShape> groups;
  std::unique_ptr<DiskLog> log;
  std::map<DiskTicket, DiskDone> done;
  std::uint32_t ns = 0;

  explicit DiskWorld(std::vector<GroupShape> shapes = {{1, 1, true, {8192}}}, std::uint32_t segments = 8,
                     std::uint64_t segment_bytes = 128 << 10, std::uint64_t seed = 1)
      : disk(std::make_shared<FaultyDisk>(seed)), groups(std::move(shapes)) {
    options.segment_bytes = segment_bytes;
    options.capacity = segments * segment_bytes + (256 << 10);
    options.background = false;
    options.queue_depth = 4;
    start();
  }
  void start() {
    log.reset();
    log = std::make_unique<DiskLog>(options, make_faulty_device(disk), clock);
    ns = log->open_namespace(space(1), groups);
  }
  void crash(std::uint64_t seed) {
    disk->crash(seed);
    done.clear();
    start();
  }
  Chain chain(const std::vector<Digest>& digests) const { return {ns, 0, {}, digests}; }

  void settle(int steps = 100'000) {
    while (log->step() && steps-- > 0) {
    }
    CHECK(steps > 0);
  }
  void collect() {
    for (DiskDone& d : log->poll()) done[d.ticket] = std::move(d);
  }
  // Steps until the ticket is done.
  DiskDone finish(DiskTicket ticket) {
    for (int i = 0; i < 100'000; ++i) {
      collect();
      const auto found = done.find(ticket);
      if (found != done.end()) {
        DiskDone d = std::move(found->second);
        done.erase(found);
        return d;
      }
      log->step();
      if (i > 1000) clock.advance(1'000'000);  // it waits until the device is asked again
    }
    FAIL("the ticket never ends");
    return {};
  }

  std::uint64_t pattern(const std::vector<Digest>& digests, std::uint32_t group, std::uint64_t block,
                        std::uint32_t shard) const {
    const GroupShape& s = groups[group];
    const std::uint64_t unit = (block / s.subs + 1) * s.unit_stride - 1;
    return pattern_of(space(1), digests[unit], group, static_cast<std::uint32_t>(block % s.subs), shard);
  }
  Slots slots(const Range& range) const {
    Slots slots;
    for (std::uint64_t b = 0; b < range.count; ++b)
      for (const std::uint64_t length : groups[range.group].shard_bytes) slots.add(length);
    return slots;
  }
  Slots filled(const std::vector<Digest>& digests, const Range& range) const {
    Slots made = slots(range);
    std::size_t at = 0;
    for (std::uint64_t b = 0; b < range.count; ++b)
      for (std::uint32_t s = 0; s < groups[range.group].shard_bytes.size(); ++s, ++at) {
        Span& span = made.spans[at];
        fill(span.address, span.length, pattern(digests, range.group, range.first + b, s));
        span.checksum = disk::checksum(span.address, span.length);
      }
    return made;
  }
  DiskDone write(const std::vector<Digest>& digests, const Range& range) {
    const Slots made = filled(digests, range);
    return finish(log->write(chain(digests), {{range}}, made.spans));
  }
  DiskDone write(const std::vector<Digest>& digests) { return write(digests, {0, 0, digests.size()}); }
  // Reads the range, and checks the bytes of every block that is Ok.
  DiskDone read(const std::vector<Digest>& digests, const Range& range, std::uint64_t deadline = kForever) {
    const Slots into = slots(range);
    DiskDone d = finish(log->read(chain(digests), {{range}}, into.spans, deadline));
    check_bytes(digests, range, into, d);
    return d;
  }
  void check_bytes(const std::vector<Digest>& digests, const Range& range, const Slots& into,
                   const DiskDone& d) {
    std::size_t at = 0;
    for (std::uint64_t b = 0; b < range.count; ++b)
      for (std::uint32_t s = 0; s < groups[range.group].shard_bytes.size(); ++s, ++at)
        if (d.statuses[b] == Status::kOk)
          CHECK(holds(into.spans[at].address, into.spans[at].length,
                      pattern(digests, range.group, range.first + b, s)));
  }
  Status flush() { return finish(log->flush()).statuses.at(0); }
  std::uint64_t leading(const std::vector<Digest>& digests) const {
    return log->leading(chain(digests), 0, 0, digests.size());
  }
  std::uint64_t reason(DiskReason r) const { return log->counters().reasons[static_cast<int>(r)]; }
  std::string audit() const { return joined(log->audit()); }
};

inline std::size_t count(const DiskDone& done, Status status) {
  return static_cast<std::size_t>(std::count(done.statuses.begin(), done.statuses.end(), status));
}

}  // namespace kvarter
