// Open addressing with linear probing at half load, backward-shift deletion: no tombstones, so look-ups stay
// short however long the index runs. A cell carries 32 bits of the hash, which place it and spare most key
// comparisons.
#include "index/impl.h"

namespace kvarter {

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
    if (!moving) c.header->moves.fetch_add(1);
    moving = true;
    share(c.cells[hole], cell);
    hole = at;
  }
  share(c.cells[hole], std::uint64_t{0});
  if (moving) c.header->moves.fetch_add(1);
}

void Index::Impl::set_key(SlotRecord& slot, const Key& key) {
  for_key(slot, key, [](auto& field, auto value) { share(field, value); });
}

}  // namespace kvarter
