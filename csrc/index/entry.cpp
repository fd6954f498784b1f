#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {

const Namespace& Index::Impl::space(std::uint32_t ns, std::uint32_t group) const {
  if (ns >= namespaces.size() || (namespaces[ns].groups.empty() && !namespaces[ns].closed))  // never was
    throw std::invalid_argument("namespace " + std::to_string(ns) + " is not open");
  if (group >= namespaces[ns].groups.size())
    throw std::invalid_argument("group " + std::to_string(group) + " of namespace " + std::to_string(ns) +
                                ", which has " + std::to_string(namespaces[ns].groups.size()) + " groups");
  return namespaces[ns];
}

std::uint32_t Index::Impl::row_of(Handle handle) const {
  const auto row = static_cast<std::uint32_t>(handle);
  if (handle == 0 || row >= options.max_slots || c.generation[row] != handle >> 32 ||
      state(row) == RowState::kFree)
    return kNoRow;
  return row;
}

SlotRecord& Index::Impl::record(std::uint32_t row, std::uint32_t shard) const {
  std::uint32_t at = c.slot[row];
  while (shard--) at = c.next_shard[at];
  return records[at];
}

void Index::Impl::mark(SlotRecord& slot, SlotState to, bool next_generation) {
  const std::uint64_t generation = slot.word.load(std::memory_order_relaxed) >> 8;
  slot.word.store(SlotRecord::make_word(generation + next_generation, to), std::memory_order_release);
}

void Index::Impl::set_state(std::uint32_t row, RowState to) {
  if (std::uint64_t* from = category(row)) *from -= c.bytes[row];
  c.state[row] = static_cast<std::uint8_t>(to);
  if (std::uint64_t* now = category(row)) *now += c.bytes[row];
}

void Index::Impl::link(std::uint32_t row, std::uint32_t parent) {
  c.parent[row] = parent;
  c.previous_sibling[row] = kNoRow;
  c.next_sibling[row] = kNoRow;
  if (parent == kNoRow) return;
  const std::uint32_t next = c.first_child[parent];
  c.next_sibling[row] = next;
  if (next != kNoRow) c.previous_sibling[next] = row;
  c.first_child[parent] = row;
  ++c.children[parent];
}

void Index::Impl::unlink(std::uint32_t row) {
  const std::uint32_t parent = c.parent[row];
  if (parent == kNoRow) return;
  const std::uint32_t previous = c.previous_sibling[row], next = c.next_sibling[row];
  if (previous == kNoRow)
    c.first_child[parent] = next;
  else
    c.next_sibling[previous] = next;
  if (next != kNoRow) c.previous_sibling[next] = previous;
  c.parent[row] = kNoRow;
  --c.children[parent];
  // A parent scores at least its best child, so a chain is peeled from its end and at its own age.
  c.last_use[parent] = std::max(c.last_use[parent], c.last_use[row]);
  offer_victim(parent);
}

std::uint32_t Index::Impl::make_entry(const Key& key, const GroupShape& shape, std::uint32_t parent,
                                      std::uint32_t depth, Reason& refusal) {
  const auto shards = static_cast<std::uint16_t>(shape.shard_bytes.size());
  // Making room must not evict the very parent this entry leans on: count the child before it exists.
  // If there is no room, the parent may be a leaf again, and eviction has passed it over meanwhile.
  struct Guard {
    Impl& index;
    std::uint32_t parent;
    Guard(Impl& i, std::uint32_t p) : index(i), parent(p) {
      if (parent != kNoRow) ++index.c.children[parent];
    }
    ~Guard() {
      if (parent == kNoRow) return;
      --index.c.children[parent];
      index.offer_victim(parent);
    }
  } guard{*this, parent};
  struct Asking {
    std::uint32_t& who;
    Asking(std::uint32_t& w, std::uint32_t ns) : who(w) { who = ns; }
    ~Asking() { who = kNobody; }
  } for_ns{asking, key.ns};
  const std::uint64_t need =
      std::accumulate(shape.shard_bytes.begin(), shape.shard_bytes.end(), std::uint64_t{0});
  if (!keep_quota(namespaces[key.ns], need)) {
    refusal = Reason::kNoSpace;
    return kNoRow;
  }
  while (free_rows.empty() || free_records.size() < shards)
    if (!evict_one()) {
      refusal = Reason::kNoSpace;
      return kNoRow;
    }
  const std::uint32_t first = make_slots(shape);
  if (first == kNoRow) {
    refusal = Reason::kNoSpace;
    return kNoRow;
  }
  const std::uint32_t row = free_rows.back();
  free_rows.pop_back();
  c.depth[row] = depth;
  c.ns[row] = key.ns;
  c.group[row] = key.group;
  c.shards[row] = shards;
  c.children[row] = c.leases[row] = c.pins[row] = c.hits[row] = 0;
  c.first_child[row] = kNoRow;
  c.klass[row] = 0;
  c.last_use[row] = clock.now();
  c.bytes[row] = 0;
  share(c.slot[row], first);
  std::uint16_t shard = 0;
  for (std::uint32_t at = first; at != kNoRow; at = c.next_shard[at]) {
    SlotRecord& slot = records[at];
    set_key(slot, key);
    slot.parent = parent == kNoRow ? Digest{} : records[c.slot[parent]].digest;
    slot.parent_sub = parent == kNoRow ? std::uint16_t{0} : records[c.slot[parent]].sub;
    slot.checksum = 0;
    slot.entry = next_entry;
    slot.depth = depth;
    slot.shard = shard++;
    slot.shards = shards;
    slot.owner = 0;
    KVARTER_SYNC_POINT("reserve: slot");
    mark(slot, SlotState::kReserved, true);
    c.bytes[row] += slot.length;
  }
  ++next_entry;
  ++namespaces[key.ns].rows;
  namespaces[key.ns].bytes += c.bytes[row];
  set_state(row, RowState::kInFlight);
  table_insert(key, row);
  link(row, parent);
  return row;
}

std::uint32_t Index::Impl::make_slots(const GroupShape& shape) {
  std::uint32_t first = kNoRow;
  std::uint32_t* link = &first;
  for (const std::uint64_t bytes : shape.shard_bytes) {
    const std::uint32_t at = free_records.back();
    free_records.pop_back();
    const auto extent = allocate(bytes, at);
    if (!extent) {
      free_records.push_back(at);
      free_slots(first);
      return kNoRow;
    }
    // At once: a search for a window walks over it before the next shard has its extent.
    SlotRecord& slot = records[at];
    slot.arena = static_cast<std::uint16_t>(extent->arena);
    slot.offset = extent->offset;
    slot.length = bytes;
    book.overhead += extent->bytes - bytes;
    c.next_shard[at] = kNoRow;
    *link = at;
    link = &c.next_shard[at];
  }
  return first;
}

void Index::Impl::free_slots(std::uint32_t first) {
  for (std::uint32_t at = first; at != kNoRow; at = c.next_shard[at]) {
    SlotRecord& slot = records[at];
    KVARTER_SYNC_POINT("free: slot");
    mark(slot, SlotState::kFree, true);
    pool.extents().release({slot.arena, slot.offset, rounded(slot.length)}, at);
    book.overhead -= rounded(slot.length) - slot.length;
    free_records.push_back(at);
  }
}

// REQUIRES: out of the table, unlinked, no children, no leases.
void Index::Impl::free_entry(std::uint32_t row) {
  set_state(row, RowState::kFree);
  free_slots(c.slot[row]);
  --namespaces[c.ns[row]].rows;
  namespaces[c.ns[row]].bytes -= c.bytes[row];
  ++c.generation[row];
  free_rows.push_back(row);
}

void Index::Impl::drop(std::uint32_t row, Reason reason) {
  tell(row, reason);
  ++counts.reasons[static_cast<int>(reason)];
  if (reason == Reason::kEvicted) counts.evicted_bytes += c.bytes[row];
  --counts.resident_blocks;
  ++c.header->version;
  table_erase(row);
  unlink(row);
  if (c.leases[row] == 0 && c.pins[row] == 0) {
    free_entry(row);
    return;
  }
  // Readers go on under their leases; the next generation tells them afterwards that the block was withdrawn.
  set_state(row, RowState::kDead);
  for (std::uint32_t at = c.slot[row]; at != kNoRow; at = c.next_shard[at]) {
    KVARTER_SYNC_POINT("withdraw: slot");
    mark(records[at], SlotState::kFree, true);
  }
}

void Index::Impl::orphan_children(std::uint32_t row, Reason reason) {
  while (c.first_child[row] != kNoRow) {
    const std::uint32_t child = c.first_child[row];
    if (state(child) == RowState::kResident)
      drop_subtree(child, reason, reason);
    else
      doom(child, Reason::kNoParent);  // unlinks it
  }
}

// Depth is bounded by nothing, so no recursion: go down to a leaf, drop it, go on from its parent.
void Index::Impl::drop_subtree(std::uint32_t top, Reason own, Reason below) {
  std::uint32_t row = top;
  for (;;) {
    const std::uint32_t child = c.first_child[row];
    if (child != kNoRow) {
      if (state(child) == RowState::kResident)
        row = child;
      else
        doom(child, Reason::kNoParent);
      continue;
    }
    const std::uint32_t parent = c.parent[row];
    drop(row, row == top ? own : below);
    if (row == top) return;
    row = parent;
  }
}

}  // namespace kvarter
