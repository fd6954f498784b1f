// A random walk over everything the index can be asked, audited at each step, with writers and readers that
// keep touching their slots for as long as the rules let them: no resident block may ever hold a byte of
// another.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "index_words.h"

using namespace kvarter;

namespace {

constexpr std::size_t kUnits = 12;
const std::vector<GroupShape> kGroups{
    {1, 1, true, {8192, 4000}}, {2, 1, true, {20000}},   {1, 2, true, {512}},
    {1, 1, false, {30000}},     {1, 1, false, {140000}},  // fits no hole for long: others move for it
};

struct Writer {
  Owner owner;
  std::uint64_t epoch, text;
  std::uint32_t group, shards;
  World::Writing writing;
  std::vector<std::uint64_t> blocks;  // of each handle
  std::uint32_t reported = 0;
};
struct Reader {
  LeaseId id;
  std::uint64_t text;
  Range range;
  std::vector<Slot> slots{};  // as they were when it leased them
};

class Walk {
 public:
  explicit Walk(unsigned seed) : random_(seed), w_(2 << 20, kGroups, 300) {}

  void step() {
    switch (pick(12)) {
      case 0:
      case 1:
      case 2:
        reserve();
        break;
      case 3:
      case 4:
      case 5:
        report();
        break;
      case 6:
        abort();
        break;
      case 7:
        read();
        break;
      case 8:
        release();
        break;
      case 9:
        pass_time();
        break;
      case 10:
        write_late();
        break;
      default:
        rare();
        break;
    }
    const std::string findings = w_.audit();
    REQUIRE_MESSAGE(findings.empty(), findings);
  }

  void settle() {
    while (!readers_.empty()) release();
    while (!writers_.empty()) finish(writers_.size() - 1);
    pass_time(1 << 20);
    acknowledge();
    pass_time(1 << 20);
    const Ledger ledger = w_.index.ledger();
    CHECK(ledger.reserved + ledger.leased + ledger.quarantined + ledger.dead == 0);
    CHECK(w_.audit() == "");
  }
  std::uint64_t reads = 0, moved_reads = 0;
  std::uint64_t moved() const { return w_.index.counters().moved; }

 private:
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  std::vector<Digest> digests(std::uint64_t id) { return text(id, kUnits, id % 3 * 3); }

  // What the block's bytes must be: a function of its key. Texts that share a prefix share its blocks.
  std::uint8_t pattern(std::uint64_t id, std::uint32_t group, std::uint64_t block) {
    const GroupShape& shape = kGroups[group];
    const std::uint64_t unit = (block / shape.subs + 1) * shape.unit_stride - 1;
    return static_cast<std::uint8_t>(digests(id)[unit][0] ^ (group * 31) ^ (block % shape.subs * 101) ^
                                     epoch_ * 7);
  }
  void write(const Writer& writer) {
    for (std::size_t i = 0; i < writer.writing.slots.size(); ++i) {
      const Slot& slot = writer.writing.slots[i];
      std::memset(w_.bytes_of(slot), pattern(writer.text, writer.group, writer.blocks[i / writer.shards]),
                  slot.length);
    }
  }

  void reserve() {
    Writer writer{static_cast<Owner>(1 + pick(3)),
                  0,
                  pick(9),
                  static_cast<std::uint32_t>(pick(kGroups.size())),
                  0,
                  {},
                  {},
                  0};
    const GroupShape& shape = kGroups[writer.group];
    const std::uint64_t blocks = kUnits / shape.unit_stride * shape.subs;
    const std::uint64_t first = pick(2) ? 0 : pick(blocks);
    const Range range{writer.group, first, 1 + pick(blocks - first)};
    writer.epoch = w_.index.epoch(writer.owner);
    writer.shards = static_cast<std::uint32_t>(shape.shard_bytes.size());
    writer.writing = w_.reserve(digests(writer.text), range, writer.owner, w_.clock.now() + 50 + pick(200));
    for (std::size_t i = 0; i < writer.writing.blocks.size(); ++i)
      if (writer.writing.blocks[i].status == Status::kOk) writer.blocks.push_back(range.first + i);
    if (writer.writing.handles.empty()) return;
    write(writer);
    writers_.push_back(writer);
  }
  void report() {
    if (writers_.empty()) return;
    const std::size_t i = pick(writers_.size());
    Writer& writer = writers_[i];
    write(writer);
    w_.complete(writer.writing, writer.reported++, pick(12) != 0);
    if (writer.reported == writer.shards) writers_.erase(writers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void finish(std::size_t i) {
    for (Writer& writer = writers_[i]; writer.reported < writer.shards;)
      w_.complete(writer.writing, writer.reported++);
    writers_.erase(writers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void abort() {
    if (writers_.empty()) return;
    const std::size_t i = pick(writers_.size());
    w_.index.abort(writers_[i].writing.handles);
    writers_.erase(writers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // A writer that missed its deadline goes on writing until it is fenced. A shard that it has reported it
  // leaves.
  void write_late() {
    for (const Writer& writer : writers_)
      if (writer.reported == 0) write(writer);
  }
  void read() {
    Reader reader{0, pick(9), {static_cast<std::uint32_t>(pick(kGroups.size())), 0, 0}};
    const auto d = digests(reader.text);
    const Chain chain = w_.chain(d);
    const std::uint32_t group = reader.range.group;
    if (kGroups[group].chained) {
      reader.range.count = w_.index.leading(chain, group, 99);
    } else {
      const std::uint64_t end = w_.index.last_run(chain, group, 99, 2, 1);
      reader.range = {group, end - std::min<std::uint64_t>(end, 2), std::min<std::uint64_t>(end, 2)};
    }
    if (reader.range.count == 0) return;
    REQUIRE(w_.lease(d, reader.range, reader.id, LeaseKind::kRead, w_.clock.now() + 30 + pick(200)) ==
            Status::kOk);
    reader.slots = w_.index.slots(reader.id);
    readers_.push_back(reader);
    check(reader);
  }
  // A reader whose lease has ended goes on copying from where its slots were, and believes what it copied if
  // the record says that nothing has changed.
  void check(const Reader& reader) {
    const bool leased = !w_.index.slots(reader.id).empty();
    const std::size_t shards = kGroups[reader.range.group].shard_bytes.size();
    for (std::size_t i = 0; i < reader.slots.size(); ++i) {
      const Slot& slot = reader.slots[i];
      const auto want = std::byte{pattern(reader.text, reader.range.group, reader.range.first + i / shards)};
      const std::byte* bytes = w_.bytes_of(slot);
      const bool right = std::all_of(bytes, bytes + slot.length, [=](std::byte b) { return b == want; });
      const bool unchanged =
          w_.record(slot).word == SlotRecord::make_word(slot.generation, SlotState::kCommitted);
      if (leased || unchanged) REQUIRE(right);
      if (!leased && !unchanged && w_.record(slot).offset != slot.offset) ++moved_reads;
      ++reads;
    }
  }
  void release() {
    if (readers_.empty()) return;
    const std::size_t i = pick(readers_.size());
    check(readers_[i]);
    w_.index.release(readers_[i].id, Outcome::kLoaded);
    readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void pass_time(std::uint64_t by = 0) {
    w_.clock.advance(by ? by : pick(80));
    for (const FenceRequest& fence : w_.index.tick()) fences_[fence.owner] = fence.epoch;
    if (pick(2)) acknowledge();
  }
  void acknowledge() {
    for (const auto& [owner, epoch] : fences_) {
      // A worker that has acknowledged a fence refuses every copy of its epochs: these writers write no more.
      std::erase_if(writers_, [&](const Writer& writer) {
        if (writer.owner != owner || writer.epoch > epoch) return false;
        for (std::uint32_t shard = writer.reported; shard < writer.shards; ++shard)
          w_.complete(writer.writing, shard, false);
        return true;
      });
      w_.index.fenced(owner, epoch);
    }
    fences_.clear();
  }
  void rare() {
    switch (pick(24)) {
      case 0: {
        w_.index.invalidate(w_.ns);
        ++epoch_;  // blocks of the next namespace have other bytes: none of the old may be served
        // Whoever still writes or reads belongs to the old one.
        while (!writers_.empty()) finish(writers_.size() - 1);
        for (const Reader& reader : readers_) w_.index.release(reader.id, Outcome::kFailed);
        readers_.clear();
        w_.ns = w_.index.open_namespace({static_cast<std::uint8_t>(epoch_ + 1)}, kGroups);
        break;
      }
      case 1:
      case 2: {
        const auto owner = static_cast<Owner>(1 + pick(3));
        std::erase_if(writers_, [&](const Writer& writer) { return writer.owner == owner; });
        w_.index.owner_dead(owner);
        fences_.erase(owner);
        break;
      }
      case 3:
      case 4:
      case 5:
      case 6: {
        if (readers_.empty()) break;
        const Reader& reader = readers_[pick(readers_.size())];
        const auto bad = static_cast<std::uint32_t>(pick(reader.range.count));
        w_.index.drop_corrupt(reader.id, std::span(&bad, 1));
        break;
      }
      default: {
        const auto d = digests(pick(9));
        const std::uint64_t blocks = w_.leading(d);
        LeaseId id = 0;
        const auto kind = pick(2) ? LeaseKind::kHold : LeaseKind::kPin;
        if (blocks) w_.lease(d, {0, 0, blocks}, id, kind, w_.clock.now() + pick(300), pick(1 << 18));
      }
    }
  }

  std::mt19937_64 random_;
  World w_;
  std::vector<Writer> writers_;
  std::vector<Reader> readers_;
  std::map<Owner, std::uint64_t> fences_;
  std::uint64_t epoch_ = 0;
};

}  // namespace

TEST_CASE(
    "the ledger agrees at every step of a random walk, no byte is foreign, and nothing is held when idle") {
  const char* steps = std::getenv("KVARTER_WALK_STEPS");
  const long total = steps ? std::atol(steps) : 10000;
  std::uint64_t reads = 0, moved_reads = 0, moved = 0;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    Walk walk(seed);
    for (long i = 0; i < total / 5; ++i) walk.step();
    walk.settle();
    reads += walk.reads;
    moved_reads += walk.moved_reads;
    moved += walk.moved();
  }
  MESSAGE(reads, " reads, ", moved, " slots moved, ", moved_reads, " reads of a place that a block has left");
  CHECK(moved > static_cast<std::uint64_t>(total) / 100);
  CHECK(moved_reads > 0);
  CHECK(reads > static_cast<std::uint64_t>(total) / 10);
}
