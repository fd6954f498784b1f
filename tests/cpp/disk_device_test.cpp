// The real devices, with the log's own thread and several callers.
#include <thread>

#include "disk_words.h"
#include "temp_directory.h"

using namespace kvarter;

namespace {

// Tickets of several callers, whoever polls.
struct Callers {
  std::mutex mutex;
  std::map<DiskTicket, DiskDone> done;
  DiskDone finish(DiskLog& log, DiskTicket ticket) {
    for (;;) {
      {
        const std::lock_guard lock(mutex);
        for (DiskDone& d : log.poll()) done[d.ticket] = std::move(d);
        const auto found = done.find(ticket);
        if (found != done.end()) {
          DiskDone d = std::move(found->second);
          done.erase(found);
          return d;
        }
      }
      log.wait(std::chrono::milliseconds(1));
    }
  }
};

}  // namespace

TEST_CASE("callers on several threads write, read, touch and invalidate; every byte is right") {
  for (const char* kind : {"io_uring", "threads"}) {
    const TempDirectory directory;
    const DiskWorld words({{1, 1, true, {8192, 100}}});  // for its patterns alone
    const SteadyClock clock;
    DiskLog::Options options;
    options.segment_bytes = 512 << 10;
    options.capacity = 6 * options.segment_bytes + (256 << 10);
    options.sync_ns = 1'000'000;
    std::unique_ptr<Device> device;
    try {
      device = make_device(directory.path() + "/disk", kind, 4);
    } catch (const std::runtime_error& refused) {
      MESSAGE(refused.what());  // this kernel has no io_uring
      continue;
    }
    DiskLog log(options, std::move(device), clock);
    const std::uint32_t ns = log.open_namespace(space(1), words.groups);
    const std::uint32_t other = log.open_namespace(space(2), words.groups);
    Callers callers;
    std::atomic<std::uint64_t> hits{0}, wrong{0};
    const auto work = [&](std::uint64_t who) {
      for (std::uint64_t i = 0; i < 60; ++i) {
        const auto digests = text(who * 1000 + i, 8, 2);
        const Chain chain{ns, 0, {}, digests};
        const Range range{0, 0, 8};
        const Slots made = words.filled(digests, range);
        callers.finish(log, log.write(chain, {{range}}, made.spans));
        const Slots into = words.slots(range);
        const DiskDone read = callers.finish(log, log.read(chain, {{range}}, into.spans, kForever));
        for (std::uint64_t b = 0; b < 8; ++b)
          for (std::uint32_t s = 0; s < 2 && read.statuses[b] == Status::kOk; ++s, ++hits) {
            const Span& span = into.spans[b * 2 + s];
            wrong += !holds(span.address, span.length, words.pattern(digests, 0, b, s));
          }
        log.touch(chain, {0, 0, log.leading(chain, 0, 0, 8)});
        if (i % 20 == who) callers.finish(log, log.flush());
      }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t who = 0; who < 3; ++who) threads.emplace_back(work, who);
    callers.finish(log, log.invalidate(other));
    for (int i = 0; i < 50; ++i) CHECK(joined(log.audit()) == "");
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(hits > 1000);
    CHECK(joined(log.audit()) == "");
  }
}

TEST_CASE("closing in the middle of writes and reads leaves slots alone afterwards") {
  const TempDirectory directory;
  const DiskWorld words;
  const SteadyClock clock;
  DiskLog::Options options;
  options.segment_bytes = 512 << 10;
  options.capacity = 6 * options.segment_bytes + (256 << 10);
  for (std::uint64_t round = 0; round < 10; ++round) {
    const auto digests = text(round, 40);
    const Range range{0, 0, 40};
    const Slots made = words.filled(digests, range), into = words.slots(range);
    DiskLog log(options, make_device(directory.path(), "auto", 4), clock);
    const Chain chain{log.open_namespace(space(1), words.groups), 0, {}, digests};
    log.write(chain, {{range}}, made.spans);
    log.read(chain, {{range}}, into.spans, kForever);
  }
}

TEST_CASE("a directory has one owner, and both devices read what the other wrote") {
  const TempDirectory directory;
  const SteadyClock clock;
  const DiskWorld words;
  DiskLog::Options options;
  options.segment_bytes = 512 << 10;
  options.capacity = 3 * options.segment_bytes + (256 << 10);
  const auto digests = text(1, 8);
  const Range range{0, 0, 8};
  const Slots made = words.filled(digests, range);
  Callers callers;
  for (const char* kind : {"threads", "auto", "threads"}) {
    DiskLog log(options, make_device(directory.path(), kind, 4), clock);
    const Chain chain{log.open_namespace(space(1), words.groups), 0, {}, digests};
    callers.done.clear();
    const DiskDone written = callers.finish(log, log.write(chain, {{range}}, made.spans));
    CHECK(written.statuses[0] != Status::kRejected);
    CHECK(callers.finish(log, log.flush()).statuses[0] == Status::kOk);
    CHECK(log.leading(chain, 0, 0, 8) == 8);
    CHECK_THROWS_WITH(DiskLog(options, make_device(directory.path(), kind, 4), clock),
                      doctest::Contains(std::to_string(getpid()).c_str()));
  }
  CHECK(disk_verify(directory.path()).verified == 8);
  CHECK(disk_inspect(directory.path()).blocks == 8);
  CHECK(disk_clear(directory.path(), true) > options.segment_bytes);
}
