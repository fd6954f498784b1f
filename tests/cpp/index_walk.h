#pragma once
// A random walk over everything the index can be asked, with writers and readers that keep touching their
// slots for as long as the rules let them: no resident block may ever hold a byte of another.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "index_words.h"

namespace kvarter {

class Walk {
 public:
  static constexpr std::size_t kUnits = 12;
  static constexpr std::uint32_t kSlots = 300;
  static const std::vector<GroupShape>& groups() {
    static const std::vector<GroupShape> shapes{
        {1, 1, true, {8192, 4000}}, {2, 1, true, {20000}},   {1, 2, true, {512}},
        {1, 1, false, {30000}},     {1, 1, false, {140000}},  // fits no hole for long: others move for it
    };
    return shapes;
  }
  static Digest space(std::uint64_t epoch) {
    Digest digest{};
    std::memcpy(digest.data(), &(++epoch), sizeof epoch);
    return digest;
  }
  static std::vector<Digest> digests(std::uint64_t id) { return text(id, kUnits, id % 3 * 3); }
  static std::size_t texts() { return 9; }

  explicit Walk(unsigned seed) : random_(seed), w_(2 << 20, groups(), kSlots) {
    w_.index.watch(kWatcher, 1 << 20);
  }
  // Goes on with what another walk's process left, in the namespace of `epoch`.
  Walk(unsigned seed, std::vector<Memfd> arenas, Memfd records, std::uint64_t epoch)
      : random_(seed),
        w_(std::move(arenas), std::move(records), space(epoch), groups(), kSlots),
        epoch_(epoch) {
    w_.index.watch(kWatcher, 1 << 20);
  }

  void step() {
    switch (pick(13)) {
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
      case 11:
        offer();
        break;
      default:
        rare();
        break;
    }
  }
  void audit() {
    const std::string findings = w_.audit();
    REQUIRE_MESSAGE(findings.empty(), findings);
    hear();
    REQUIRE(here_before_ + came_.size() - gone_before_ == w_.index.counters().resident_blocks);
    const std::vector<Handle> came(came_.begin(), came_.end());
    REQUIRE(std::ranges::count(w_.index.resident(came), true) == std::ssize(came));
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
  std::uint64_t evicted_offered() const { return w_.index.counters().evicted_offered; }
  std::uint64_t moved() const { return w_.index.counters().moved; }

 private:
  struct Writer {
    Owner owner = 0;
    std::uint64_t epoch = 0;
    Shards shards;
    World::Writing writing;
    std::vector<std::uint64_t> patterns;  // of each slot
    std::uint32_t reported = 0;           // shards
  };
  struct Reader {
    LeaseId id;
    std::uint64_t text;
    Range range;
    std::vector<Slot> slots{};  // as they were when it leased them
  };

  // What a watcher is told: each block comes at most once, and goes only when it was there.
  void hear() {
    std::vector<Change> changes;
    REQUIRE(w_.index.changes(kWatcher, changes));
    for (const Change& change : changes) {
      if (change.reason == Reason::kNone)
        REQUIRE(came_.insert(change.handle).second);
      else if (came_.erase(change.handle) == 0 && change.reason >= Reason::kEvicted)
        ++gone_before_;  // it was there when the walk began
    }
  }

  std::uint64_t pick(std::uint64_t n) { return random_() % n; }

  // What a block's bytes must be: a function of its key. Texts that share a prefix share its blocks.
  std::uint64_t pattern(std::uint64_t id, std::uint32_t group, std::uint64_t block,
                        std::uint32_t shard) const {
    const GroupShape& shape = groups()[group];
    const std::uint64_t unit = (block / shape.subs + 1) * shape.unit_stride - 1;
    return pattern_of(space(epoch_), digests(id)[unit], group, static_cast<std::uint32_t>(block % shape.subs),
                      shard);
  }
  void write(const Writer& writer) {
    for (std::size_t i = 0; i < writer.writing.slots.size(); ++i) {
      const Slot& slot = writer.writing.slots[i];
      fill(w_.bytes_of(slot), slot.length, writer.patterns[i]);
    }
  }
  void complete(Writer& writer, bool ok) {
    std::vector<std::uint64_t> sums;
    for (std::size_t i = writer.reported; i < writer.writing.slots.size(); i += writer.shards.count)
      sums.push_back(w_.checksum_of(writer.writing.slots[i]));
    w_.index.complete(writer.writing.handles, writer.shards.first + writer.reported++,
                      std::vector<std::uint8_t>(sums.size(), ok), sums);
  }

  void reserve() {
    Writer writer;
    writer.owner = static_cast<Owner>(1 + pick(3));
    const std::uint64_t id = pick(texts());
    const auto group = static_cast<std::uint32_t>(pick(groups().size()));
    const GroupShape& shape = groups()[group];
    const auto all = static_cast<std::uint32_t>(shape.shard_bytes.size());
    if (pick(3) == 0)  // one of several that write a shard each
      writer.shards = {static_cast<std::uint32_t>(pick(all)), 1};
    else
      writer.shards = {0, all};
    const std::uint64_t blocks = kUnits / shape.unit_stride * shape.subs;
    const std::uint64_t first = pick(2) ? 0 : pick(blocks);
    const Range range{group, first, 1 + pick(blocks - first)};
    writer.epoch = w_.index.epoch(writer.owner);
    writer.writing =
        w_.reserve(digests(id), range, writer.owner, w_.clock.now() + 50 + pick(200), writer.shards);
    for (std::size_t i = 0; i < writer.writing.blocks.size(); ++i)
      for (std::uint32_t shard = 0; shard < writer.shards.count; ++shard)
        if (writer.writing.blocks[i].status == Status::kOk)
          writer.patterns.push_back(pattern(id, group, range.first + i, writer.shards.first + shard));
    if (writer.writing.handles.empty()) return;
    write(writer);
    writers_.push_back(writer);
  }
  void report() {
    if (writers_.empty()) return;
    const std::size_t i = pick(writers_.size());
    Writer& writer = writers_[i];
    if (writer.reported == 0) write(writer);
    complete(writer, pick(12) != 0);
    if (writer.reported == writer.shards.count)
      writers_.erase(writers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void finish(std::size_t i) {
    for (Writer& writer = writers_[i]; writer.reported < writer.shards.count;) complete(writer, true);
    writers_.erase(writers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void abort() {
    if (writers_.empty()) return;
    const std::size_t i = pick(writers_.size());
    w_.index.abort(writers_[i].writing.handles, writers_[i].shards);
    writers_.erase(writers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // A writer that missed its deadline goes on writing until it is fenced. A shard that it has reported it
  // leaves.
  void write_late() {
    for (const Writer& writer : writers_)
      if (writer.reported == 0) write(writer);
  }
  void read() {
    Reader reader{0, pick(texts()), {static_cast<std::uint32_t>(pick(groups().size())), 0, 0}};
    const auto d = digests(reader.text);
    const Chain chain = w_.chain(d);
    const std::uint32_t group = reader.range.group;
    if (groups()[group].chained) {
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
    const std::size_t shards = groups()[reader.range.group].shard_bytes.size();
    for (std::size_t i = 0; i < reader.slots.size(); ++i, ++reads) {
      const Slot& slot = reader.slots[i];
      const auto shard = static_cast<std::uint32_t>(i % shards);
      const auto want = pattern(reader.text, reader.range.group, reader.range.first + i / shards, shard);
      const std::byte* bytes = w_.bytes_of(slot);
      const bool right = holds(bytes, 8, want) && holds(bytes + slot.length - 8, 8, want);
      const bool unchanged =
          w_.record(slot).word == SlotRecord::make_word(slot.generation, SlotState::kCommitted);
      if (leased || unchanged) REQUIRE(right);
      if (!leased && !unchanged && w_.record(slot).offset != slot.offset) ++moved_reads;
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
        for (std::uint32_t shard = writer.reported; shard < writer.shards.count; ++shard)
          w_.complete(writer.writing, writer.shards.first + shard, false);
        return true;
      });
      w_.index.fenced(owner, epoch);
    }
    fences_.clear();
  }
  // A policy that is right, late, or mad: any row, any generation, also of entries in use or that never were.
  void offer() {
    const View view = w_.index.view();
    std::vector<std::uint32_t> rows, generations;
    for (std::uint64_t i = pick(6); i-- > 0;) {
      const auto row = static_cast<std::uint32_t>(pick(2) ? pick(kSlots) : pick(8) ? pick(40) : random_());
      rows.push_back(row);
      generations.push_back(row < view.rows && pick(4) ? view.generation[row]
                                                       : static_cast<std::uint32_t>(pick(200)));
    }
    w_.index.offer_victims(rows, generations);
    const auto d = digests(pick(texts()));
    const auto group = static_cast<std::uint32_t>(pick(groups().size()));
    const std::uint64_t blocks = kUnits / groups()[group].unit_stride * groups()[group].subs;
    const std::uint64_t first = pick(blocks);
    w_.index.classify(
        w_.chain(d), group, first,
        std::vector<std::uint16_t>(1 + pick(blocks - first), static_cast<std::uint16_t>(pick(3))));
    if (pick(8) == 0)
      w_.index.set_share(w_.ns, pick(2) ? pick(1 << 20) : 0, pick(2) ? (1 << 20) + pick(1 << 20) : 0);
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
        w_.ns = w_.index.open_namespace(space(epoch_), groups());
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
        const auto d = digests(pick(texts()));
        const std::uint64_t blocks = w_.leading(d);
        LeaseId id = 0;
        const auto kind = pick(2) ? LeaseKind::kHold : LeaseKind::kPin;
        if (blocks) w_.lease(d, {0, 0, blocks}, id, kind, w_.clock.now() + pick(300), pick(1 << 18));
      }
    }
  }

  static constexpr Owner kWatcher = 9;  // which writes nothing, and lives
  std::mt19937_64 random_;
  World w_;
  std::vector<Writer> writers_;
  std::vector<Reader> readers_;
  std::map<Owner, std::uint64_t> fences_;
  std::uint64_t epoch_ = 0;
  std::uint64_t here_before_ = w_.index.counters().resident_blocks, gone_before_ = 0;
  std::set<Handle> came_;
};

}  // namespace kvarter
