// Open addressing with linear probing at half load, backward-shift deletion: no tombstones, so look-ups stay
// short however long the index runs. A cell carries 32 bits of the hash, which place it and spare most key
// comparisons.
#include <cstring>

#include "index/impl.h"

namespace kvarter {
namespace {

std::uint32_t hash_of(const Key& key) {
  std::uint64_t x;
  std::memcpy(&x, key.digest.data(), sizeof x);  // a digest is uniform: only the rest needs mixing in
  x ^= (std::uint64_t{key.ns} << 32 | std::uint64_t{key.group} << 16 | key.sub) * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return static_cast<std::uint32_t>(x >> 32);
}

// The words of a record's key.
template <class F>
void for_key(SlotRecord& slot, const Key& key, F&& each) {
  std::uint64_t words[4];
  std::memcpy(words, key.digest.data(), sizeof words);
  auto* digest = reinterpret_cast<std::uint64_t*>(slot.digest.data());
  for (int i = 0; i < 4; ++i) each(digest[i], words[i]);
  each(slot.ns, key.ns);
  each(slot.group, key.group);
  each(slot.sub, key.sub);
}

}  // namespace

Key Index::Impl::key_of(std::uint32_t row) const {
  const SlotRecord& slot = records[c.slot[row]];
  return {slot.ns, slot.group, slot.sub, slot.digest};
}

std::uint32_t Index::Impl::find(const Key& key) const {
  const std::uint32_t hash = hash_of(key);
  for (std::uint64_t at = hash;; ++at) {
    const std::uint64_t cell = c.cells[at & (c.buckets - 1)];
    if (cell == 0) return kNoRow;
    if (cell >> 32 != hash) continue;
    const auto row = static_cast<std::uint32_t>(cell) - 1;
    const SlotRecord& slot = records[c.slot[row]];
    if (slot.digest == key.digest && slot.ns == key.ns && slot.group == key.group && slot.sub == key.sub)
      return row;
  }
}

void Index::Impl::table_insert(const Key& key, std::uint32_t row) {
  const std::uint32_t hash = hash_of(key);
  std::uint64_t at = hash & (c.buckets - 1);
  while (c.cells[at]) at = (at + 1) & (c.buckets - 1);
  share(c.cells[at], std::uint64_t{hash} << 32 | (row + 1));
}

void Index::Impl::table_erase(std::uint32_t row) {
  const std::uint64_t mask = c.buckets - 1;
  std::uint64_t hole = hash_of(key_of(row)) & mask;
  bool moving = false;
  while (static_cast<std::uint32_t>(c.cells[hole]) != row + 1) hole = (hole + 1) & mask;
  for (std::uint64_t at = hole;;) {
    at = (at + 1) & mask;
    const std::uint64_t cell = c.cells[at];
    if (cell == 0) break;
    const std::uint64_t home = (cell >> 32) & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;  // it would move before its home
    if (!moving) moves.fetch_add(1);
    moving = true;
    share(c.cells[hole], cell);
    hole = at;
  }
  share(c.cells[hole], std::uint64_t{0});
  if (moving) moves.fetch_add(1);
}

void Index::Impl::set_key(SlotRecord& slot, const Key& key) {
  for_key(slot, key, [](auto& field, auto value) { share(field, value); });
}

bool Index::Impl::committed(const Key& key) const {
  constexpr int kTries = 8;  // a reader that is always overtaken answers with a miss
  const std::uint32_t hash = hash_of(key);
  const std::uint64_t mask = c.buckets - 1;
  for (int tries = 0; tries < kTries; ++tries) {
    const std::uint64_t before = moves.load(std::memory_order_acquire);
    for (std::uint64_t at = hash;; ++at) {
      const std::uint64_t cell = shared(c.cells[at & mask]);
      if (cell == 0 || at > hash + mask) break;
      if (cell >> 32 != hash) continue;
      SlotRecord& slot = records[shared(c.slot[static_cast<std::uint32_t>(cell) - 1])];
      const std::uint64_t word = slot.word.load(std::memory_order_acquire);
      const auto state = static_cast<SlotState>(word & 0xff);
      if (state != SlotState::kCommitted && state != SlotState::kMoving) continue;
      bool same = true;
      for_key(slot, key, [&](auto& field, auto value) { same &= shared(field) == value; });
      // The key belongs to the word if the word is still there: a record's word changes before its key does.
      if (same && slot.word.load(std::memory_order_acquire) == word) return true;
    }
    if (before % 2 == 0 && moves.load(std::memory_order_acquire) == before) return false;
  }
  return false;
}

}  // namespace kvarter
