#include "disk_words.h"

using namespace kvarter;

TEST_CASE("a block written to disk is found and read with its bytes") {
  DiskWorld w;
  const auto a = text(1, 5);
  CHECK(w.leading(a) == 0);
  const DiskDone written = w.write(a);
  CHECK(count(written, Status::kOk) == 5);
  CHECK(w.leading(a) == 5);
  const DiskDone read = w.read(a, {0, 0, 5});
  CHECK(count(read, Status::kOk) == 5);
  CHECK(read.checksums.size() == 5);
  CHECK(w.audit() == "");
}

TEST_CASE("a block is durable when the sequence number says so, and survives a crash then") {
  DiskWorld w;
  const auto a = text(1, 5);
  const DiskDone written = w.write(a);
  CHECK(w.log->durable_sequence() < written.sequences[0]);
  CHECK(w.flush() == Status::kOk);
  CHECK(w.log->durable_sequence() >= written.sequences[4]);
  w.crash(7);
  CHECK(w.leading(a) == 5);
  CHECK(count(w.read(a, {0, 0, 5}), Status::kOk) == 5);
  CHECK(w.audit() == "");
}

TEST_CASE("blocks of several shards, subs and strides keep their shards apart") {
  DiskWorld w({{1, 1, true, {8192, 100, 4096}}, {4, 1, true, {5000}}, {1, 2, false, {4096}}}, 8, 256 << 10);
  const auto a = text(3, 8);
  for (const Range& range : {Range{0, 0, 8}, Range{1, 0, 2}, Range{2, 3, 10}}) {
    CHECK(count(w.write(a, range), Status::kOk) == range.count);
    CHECK(count(w.read(a, range), Status::kOk) == range.count);
  }
  CHECK(w.log->last_run(w.chain(a), 2, 16, 10, 1) == 13);
  CHECK(w.log->last_run(w.chain(a), 2, 16, 10, 2) == 0);
  CHECK(!w.log->contains(w.chain(a), 2, 2));
  CHECK(w.flush() == Status::kOk);
  w.start();
  CHECK(w.log->leading(w.chain(a), 1, 0, 2) == 2);
  CHECK(count(w.read(a, {2, 3, 10}), Status::kOk) == 10);
  CHECK(w.audit() == "");
}

TEST_CASE("a chained block whose parent is not on disk is refused") {
  DiskWorld w;
  const auto a = text(1, 4);
  const DiskDone written = w.write(a, {0, 2, 2});
  CHECK(written.statuses[0] == Status::kRejected);
  CHECK(written.reasons[1] == DiskReason::kNoParent);
  CHECK(w.audit() == "");
}

TEST_CASE("a block that is there already, or on its way, is busy") {
  DiskWorld w;
  const auto a = text(1, 2);
  const Slots made = w.filled(a, {0, 0, 2});
  const Range range{0, 0, 2};
  const DiskTicket first = w.log->write(w.chain(a), {{range}}, made.spans);
  CHECK(w.finish(w.log->write(w.chain(a), {{range}}, made.spans)).reasons[0] == DiskReason::kAlreadyInFlight);
  CHECK(count(w.finish(first), Status::kOk) == 2);
  CHECK(w.write(a).reasons[0] == DiskReason::kAlreadyResident);
  CHECK(w.audit() == "");
}

TEST_CASE("the write queue is bounded in bytes") {
  DiskWorld w;
  w.options.write_queue_bytes = 3 * 8192;
  w.start();
  const auto a = text(1, 5);
  const DiskDone written = w.write(a);
  CHECK(count(written, Status::kOk) == 3);
  CHECK(written.reasons[3] == DiskReason::kQueueFull);
  CHECK(written.reasons[4] == DiskReason::kNoParent);
  CHECK(w.log->counters().queued_bytes == 0);
  CHECK(w.audit() == "");
}

TEST_CASE("a full disk drops what was used least recently, leaf first, and takes new blocks for ever") {
  DiskWorld w;
  std::vector<std::vector<Digest>> texts;
  for (std::uint64_t id = 0; id < 200; ++id) {
    texts.push_back(text(id + 1, 6, 2));
    CHECK(count(w.write(texts.back()), Status::kRejected) == 0);
    w.log->touch(w.chain(texts[0]), {0, 0, 6});
    CHECK(w.audit() == "");
  }
  CHECK(w.leading(texts[0]) == 6);  // always young
  CHECK(w.leading(texts.back()) == 6);
  CHECK(w.leading(texts[1]) == 2);  // what it shares with the others
  CHECK(w.reason(DiskReason::kEvicted) > 500);
  const DiskCounters n = w.log->counters();
  CHECK(n.cleaned_segments > 0);
  CHECK(n.reinserted_bytes < n.stored_bytes / 2);
  CHECK(count(w.read(texts[0], {0, 0, 6}), Status::kOk) == 6);
  std::uint64_t bytes = 0;
  for (const std::string& file : w.disk->files()) bytes += w.disk->content(file).size();
  CHECK(bytes <= w.options.capacity);
}

TEST_CASE("among blocks used at the same time those that a tier above has go first") {
  World above(2 << 20, {{1, 1, false, {4096}}});
  DiskWorld w({{1, 1, false, {8192}}});
  w.options.above = &above.index;
  w.start();
  w.ns = w.log->open_namespace(space(1), w.groups, above.ns);
  const auto a = text(1, 60);
  w.write(a);
  w.log->touch(w.chain(a), {0, 0, 60});
  above.complete(above.reserve(a, {0, 10, 20}));
  std::uint64_t next = 100;
  while (w.reason(DiskReason::kEvicted) < 15) w.write(text(next++, 3));
  for (std::uint64_t block = 0; block < 60; ++block)
    if (block < 10 || block >= 30) CHECK(w.log->contains(w.chain(a), 0, block));
  w.log.reset();  // it asks the index for as long as it lives
}

TEST_CASE("whether a tier above has a block never outweighs when it was used") {
  World above(2 << 20, {{1, 1, false, {4096}}});
  DiskWorld w({{1, 1, false, {8192}}});
  w.options.above = &above.index;
  w.start();
  w.ns = w.log->open_namespace(space(1), w.groups, above.ns);
  const auto older = text(1, 30), younger = text(2, 30);
  w.write(older);
  w.write(younger);
  above.complete(above.reserve(younger, {0, 0, 30}));
  std::uint64_t next = 100;
  while (w.reason(DiskReason::kEvicted) < 15) w.write(text(next++, 3));
  for (std::uint64_t block = 0; block < 30; ++block) CHECK(w.log->contains(w.chain(younger), 0, block));
  w.log.reset();
}

TEST_CASE("a capacity of two segments works") {
  DiskWorld w({{1, 1, true, {8192}}}, 2);
  for (std::uint64_t id = 0; id < 60; ++id) {
    const auto a = text(id, 4);
    CHECK(count(w.write(a), Status::kOk) == 4);
    CHECK(count(w.read(a, {0, 0, 4}), Status::kOk) == 4);
    CHECK(w.audit() == "");
  }
}

TEST_CASE("an invalidated namespace does not come back") {
  DiskWorld w;
  const auto a = text(1, 5);
  w.write(a);
  CHECK(w.flush() == Status::kOk);
  const DiskTicket ticket = w.log->invalidate(w.ns);
  CHECK(w.leading(a) == 0);
  CHECK(w.finish(ticket).statuses[0] == Status::kOk);
  w.settle();
  CHECK(w.reason(DiskReason::kInvalidated) == 5);
  CHECK(w.audit() == "");
  w.crash(3);
  CHECK(w.leading(a) == 0);
  CHECK(w.log->counters().recovered == 0);
  CHECK(count(w.write(a), Status::kOk) == 5);  // the same digest, written later, lives
  CHECK(w.flush() == Status::kOk);
  w.crash(4);
  CHECK(w.leading(a) == 5);
}

TEST_CASE("blocks queued or in flight when their namespace is invalidated are refused") {
  DiskWorld w;
  w.disk->set({.hold = 3});
  const auto a = text(1, 40);
  const Range range{0, 0, 40};
  const Slots made = w.filled(a, range);
  const DiskTicket writing = w.log->write(w.chain(a), {{range}}, made.spans);
  for (int i = 0; i < 8; ++i) w.log->step();
  const DiskTicket gone = w.log->invalidate(w.ns);
  w.ns = w.log->open_namespace(space(1), w.groups);
  CHECK(w.finish(gone).statuses[0] == Status::kOk);
  const DiskDone written = w.finish(writing);
  CHECK(w.leading(a) == 0);
  w.settle();
  CHECK(w.audit() == "");
  CHECK(w.flush() == Status::kOk);
  w.crash(5);
  CHECK(w.leading(a) == 0);
}

TEST_CASE("a read past its deadline is timed out, at once when the device has not begun it") {
  DiskWorld w;
  const auto a = text(1, 40);
  w.write(a);
  w.disk->set({.hold = 50});
  const Slots into = w.slots({0, 0, 40});
  std::vector<DiskTicket> tickets;
  for (std::uint64_t b = 0; b < 40; ++b) {
    const Range range{0, 39 - b, 1};  // backwards: no two are read together
    tickets.push_back(w.log->read(w.chain(a), {{range}}, {{into.spans[b]}}, w.clock.now() + 1000));
  }
  w.log->step();
  CHECK(!w.log->expired(tickets[0]));
  w.clock.advance(2000);
  CHECK(w.log->expired(tickets[0]));
  w.log->step();
  w.collect();
  CHECK(!w.done.contains(tickets[0]));  // the device may still write into its slot
  CHECK(w.done.contains(tickets[39]));
  CHECK(w.finish(tickets[0]).statuses[0] == Status::kTimedOut);
  w.settle();
  CHECK(w.log->ledger().leased == 0);
  CHECK(w.audit() == "");
}

TEST_CASE("a block whose bytes rot is corrupt, goes with its descendants, and is healed by the next write") {
  DiskWorld w;
  const auto a = text(1, 5);
  w.write(a);
  CHECK(w.flush() == Status::kOk);
  for (const std::string& file : w.disk->files()) {
    auto content = w.disk->content(file);
    std::uint64_t word = w.pattern(a, 0, 2, 0);
    for (std::size_t at = 0; at + 8 <= content.size(); at += 4096)
      if (std::memcmp(content.data() + at, &word, 8) == 0) content[at + 77] ^= std::byte{1};
    w.disk->put(file, content);
  }
  w.crash(1);
  CHECK(w.leading(a) == 2);  // the tail was not sealed: its payloads were looked at
  CHECK(w.write(a).statuses[2] == Status::kOk);
  CHECK(count(w.read(a, {0, 0, 5}), Status::kOk) == 5);
  CHECK(w.audit() == "");
}

TEST_CASE("a corrupt block of a sealed segment is found when it is read") {
  DiskWorld w;
  const auto a = text(1, 30);
  w.write(a);
  CHECK(w.flush() == Status::kOk);
  const std::string name = "segment-00000000";
  auto content = w.disk->content(name);
  const std::uint64_t word = w.pattern(a, 0, 2, 0);
  for (std::size_t at = 0; at + 8 <= content.size(); at += 4096)
    if (std::memcmp(content.data() + at, &word, 8) == 0) content[at + 77] ^= std::byte{1};
  w.disk->put(name, content);
  w.start();
  CHECK(w.leading(a) == 30);
  const DiskDone read = w.read(a, {0, 0, 30});
  CHECK(read.statuses[1] == Status::kOk);
  CHECK(read.statuses[2] == Status::kCorrupt);
  CHECK(read.statuses[3] == Status::kNotFound);
  CHECK(w.leading(a) == 2);
  CHECK(w.reason(DiskReason::kCorrupt) == 1);
  CHECK(w.reason(DiskReason::kOrphaned) == 27);
  CHECK(w.audit() == "");
  CHECK(w.write(a).statuses[2] == Status::kOk);
  CHECK(count(w.read(a, {0, 0, 30}), Status::kOk) == 30);
}

TEST_CASE("a wrong checksum given to write is never a hit") {
  DiskWorld w;
  const auto a = text(1, 1);
  Slots made = w.filled(a, {0, 0, 1});
  made.spans[0].checksum ^= 1;
  const Range range{0, 0, 1};
  w.finish(w.log->write(w.chain(a), {{range}}, made.spans));
  CHECK(w.read(a, range).statuses[0] == Status::kCorrupt);
  CHECK(w.leading(a) == 0);
}

TEST_CASE("a smaller capacity removes files at the next start") {
  DiskWorld w;
  for (std::uint64_t id = 0; id < 30; ++id) w.write(text(id, 4));
  CHECK(w.flush() == Status::kOk);
  w.options.capacity = 3 * w.options.segment_bytes + (256 << 10);
  w.start();
  CHECK(w.log->counters().segments == 3);
  CHECK(w.audit() == "");
  for (std::uint64_t id = 100; id < 130; ++id) CHECK(count(w.write(text(id, 4)), Status::kOk) == 4);
  CHECK(w.audit() == "");
}

TEST_CASE("capacities and indexes that cannot work are refused with the numbers") {
  DiskWorld w;
  w.log.reset();
  const auto refused = [&](const char* part) {
    try {
      w.start();
    } catch (const std::invalid_argument& e) {
      CHECK(std::string(e.what()).find(part) != std::string::npos);
      return true;
    }
    return false;
  };
  const auto capacity = std::exchange(w.options.capacity, 2 * w.options.segment_bytes);
  CHECK(refused("at least 2 segments"));
  w.options.capacity = capacity;
  w.options.max_index_bytes = 100;
  CHECK(refused("capacity / block_bytes * 192"));
}

TEST_CASE("removing a block takes what leans on it") {
  DiskWorld w;
  const auto a = text(1, 5, 3), b = text(2, 5, 3);
  w.write(a);
  w.write(b, {0, 3, 2});
  w.log->remove(w.chain(a), {0, 2, 1});
  CHECK(w.leading(a) == 2);
  CHECK(w.leading(b) == 2);
  CHECK(w.reason(DiskReason::kOrphaned) == 4);
  CHECK(w.audit() == "");
}
