#include "kvarter/finder.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "index/cells.h"
#include "index/columns.h"

namespace kvarter {

// Look-ups of one group of one chain, by block number. Nothing here takes the mutex.
class Probe {
 public:
  Probe(const Finder& finder, const Chain& chain, std::uint32_t group)
      : finder_(finder), chain_(chain), group_(group) {
    if (chain.ns >= kMaxNamespaces) refuse("is not open");
    gate_ = &finder.gates_[chain.ns];
    word_ = gate_->word.load(std::memory_order_acquire);
    if (word_ == 0) refuse("is not open");
    const std::uint64_t groups = word_ >> 2 & 0x3fff;
    if (group >= groups)
      refuse("has " + std::to_string(groups) + " groups, and none of number " + std::to_string(group));
    const std::uint64_t stride = gate_->strides[group].load(std::memory_order_acquire);
    shape_.unit_stride = static_cast<std::uint32_t>(stride >> 32);
    shape_.subs = static_cast<std::uint32_t>(stride);
  }
  // False when nothing of the namespace is served, or when it is not the one any more that these look-ups
  // began in.
  bool open() const { return (word_ & Gate::kOpen) && gate_->word.load(std::memory_order_acquire) == word_; }
  std::uint64_t blocks() const { return blocks_of(chain_, shape_); }
  std::uint64_t begin() const { return first_block(chain_, shape_); }
  bool operator()(std::uint64_t block) const {
    return finder_.committed(key_at(chain_, shape_, group_, block));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::invalid_argument("namespace " + std::to_string(chain_.ns) + " " + what);
  }

  const Finder& finder_;
  const Chain& chain_;
  const std::uint32_t group_;
  const Gate* gate_;
  std::uint64_t word_;
  GroupShape shape_;
};

namespace {

std::uint64_t leading_of(const Probe& there, std::uint64_t limit) {
  limit = std::min(limit, there.blocks());
  const std::uint64_t begin = there.begin();  // below: resident if this one is (R7)
  if (limit <= begin) return 0;
  if (there(limit - 1)) return limit;
  if (!there(begin)) return 0;
  return gallop(begin, limit - 1, there);  // the one was resident a moment ago, the other was not
}

}  // namespace

Finder::Finder(std::span<const std::byte> records, std::span<const std::byte> columns) {
  of_records_ = reinterpret_cast<const RecordsHeader*>(records.data());
  header_ = reinterpret_cast<ColumnsHeader*>(const_cast<std::byte*>(columns.data()));
  if (records.size() < sizeof *of_records_ || columns.size() < sizeof *header_)
    throw std::invalid_argument("an index of " + std::to_string(records.size()) + " and " +
                                std::to_string(columns.size()) + " bytes");
  if (header_->magic != kColumnsMagic || header_->layout_version != kLayoutVersion)
    throw std::runtime_error("an index of layout version " + std::to_string(header_->layout_version) +
                             "; this build reads version " + std::to_string(kLayoutVersion));
  const std::uint32_t rows = header_->max_rows;
  if (of_records_->max_slots != rows || records.size() < records_bytes(rows) ||
      columns.size() < columns_bytes(rows))
    throw std::invalid_argument("an index of " + std::to_string(rows) + " rows in " +
                                std::to_string(records.size()) + " and " + std::to_string(columns.size()) +
                                " bytes");
  const Columns c = columns_at(const_cast<std::byte*>(columns.data()), rows);
  records_ = reinterpret_cast<SlotRecord*>(const_cast<std::byte*>(records.data() + records_bytes(0)));
  slots_ = c.slot;
  cells_ = c.cells;
  mask_ = c.buckets - 1;
  gates_ = c.gates;
}

std::uint64_t Finder::leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const {
  const Probe probe(*this, chain, group);
  const std::uint64_t blocks = probe.open() ? leading_of(probe, limit) : 0;
  return probe.open() ? blocks : 0;
}

std::uint64_t Finder::last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                               std::uint64_t step) const {
  const Probe probe(*this, chain, group);
  const std::uint64_t found =
      probe.open() ? last_run_of(probe.begin(), std::min(end, probe.blocks()), run, step, probe) : 0;
  return probe.open() ? found : 0;
}

bool Finder::contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const {
  const Probe probe(*this, chain, group);
  return probe.open() && probe(block) && probe.open();
}

void Finder::contains(std::span<const Key> keys, std::span<std::uint8_t> there) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].ns >= kMaxNamespaces)
      throw std::invalid_argument("namespace " + std::to_string(keys[i].ns) + " is not open");
    const std::atomic<std::uint64_t>& gate = gates_[keys[i].ns].word;
    const std::uint64_t word = gate.load(std::memory_order_acquire);
    there[i] = (word & Gate::kOpen) && committed(keys[i]) && gate.load(std::memory_order_acquire) == word;
  }
}

std::uint64_t Finder::gate(std::uint32_t ns) const {
  return ns < kMaxNamespaces ? gates_[ns].word.load(std::memory_order_acquire) : 0;
}

std::uint64_t Finder::version() const { return header_->version.load(std::memory_order_acquire); }

std::span<const std::uint8_t, 16> Finder::pool_id() const { return of_records_->pool_id; }

// Whether a committed record has this key: an answer true at some moment of the call, but for a miss when the
// table did nothing but move cells meanwhile.
bool Finder::committed(const Key& key) const {
  constexpr int kTries = 8;  // a reader that is always overtaken answers with a miss
  const std::uint32_t hash = hash_of(key);
  for (int tries = 0; tries < kTries; ++tries) {
    const std::uint64_t before = header_->moves.load(std::memory_order_acquire);
    for (std::uint64_t at = hash;; ++at) {
      const std::uint64_t cell = shared(cells_[at & mask_]);
      if (cell == 0 || at > hash + mask_) break;
      if (cell >> 32 != hash) continue;
      SlotRecord& slot = records_[shared(slots_[static_cast<std::uint32_t>(cell) - 1])];
      const std::uint64_t word = slot.word.load(std::memory_order_acquire);
      const auto state = static_cast<SlotState>(word & 0xff);
      if (state != SlotState::kCommitted && state != SlotState::kMoving) continue;
      bool same = true;
      for_key(slot, key, [&](auto& field, auto value) { same &= shared(field) == value; });
      // The key belongs to the word if the word is still there: a record's word changes before its key does.
      if (same && slot.word.load(std::memory_order_acquire) == word) return true;
    }
    if (before % 2 == 0 && header_->moves.load(std::memory_order_acquire) == before) return false;
  }
  return false;
}

}  // namespace kvarter
