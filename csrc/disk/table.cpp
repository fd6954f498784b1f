// Rows by key: open addressing with linear probing at most half full, backward-shift deletion.
#include <algorithm>
#include <cstring>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

std::uint32_t hash_of(std::uint32_t ns, std::uint16_t group, std::uint16_t sub, const Digest& digest) {
  std::uint64_t x;
  std::memcpy(&x, digest.data(), sizeof x);  // uniform already: only the rest needs mixing in
  x ^= (std::uint64_t{ns} << 32 | std::uint64_t{group} << 16 | sub) * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return static_cast<std::uint32_t>(x >> 32);
}
std::uint32_t hash_of(const Row& row) { return hash_of(row.ns, row.group, row.sub, row.digest); }

}  // namespace

std::uint32_t DiskLog::Impl::find(const Key& key) const {
  if (cells.empty()) return kNone;
  const std::uint32_t hash = hash_of(key.ns, key.group, key.sub, key.digest);
  for (std::uint64_t at = hash;; ++at) {
    const std::uint64_t cell = cells[at & (cells.size() - 1)];
    if (cell == 0) return kNone;
    if (cell >> 32 != hash) continue;
    const auto number = static_cast<std::uint32_t>(cell) - 1;
    const Row& row = rows[number];
    if (row.digest == key.digest && row.ns == key.ns && row.group == key.group && row.sub == key.sub)
      return number;
  }
}

void DiskLog::Impl::table_insert(std::uint32_t row) {
  const auto put = [this](std::uint64_t cell) {
    std::uint64_t at = cell >> 32;
    while (cells[at & (cells.size() - 1)]) ++at;
    cells[at & (cells.size() - 1)] = cell;
  };
  if (++in_table * 2 > cells.size()) {
    std::vector<std::uint64_t> old(std::max<std::size_t>(1024, cells.size() * 2));
    old.swap(cells);
    for (const std::uint64_t cell : old)
      if (cell) put(cell);
  }
  put(std::uint64_t{hash_of(rows[row])} << 32 | (row + 1));
}

void DiskLog::Impl::table_erase(std::uint32_t row) {
  const std::uint64_t mask = cells.size() - 1;
  std::uint64_t hole = hash_of(rows[row]) & mask;
  while (static_cast<std::uint32_t>(cells[hole]) != row + 1) hole = (hole + 1) & mask;
  for (std::uint64_t at = hole;;) {
    at = (at + 1) & mask;
    const std::uint64_t cell = cells[at];
    if (cell == 0) break;
    const std::uint64_t home = (cell >> 32) & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;  // it would move before its home
    cells[hole] = cell;
    hole = at;
  }
  cells[hole] = 0;
  --in_table;
}

std::uint32_t DiskLog::Impl::layout_of(std::vector<std::uint64_t> lengths) {
  const auto found = layout_ids.find(lengths);
  if (found != layout_ids.end()) return found->second;
  std::uint64_t bytes = 0;
  for (const std::uint64_t length : lengths) bytes += padded(length);
  const auto id = static_cast<std::uint32_t>(layouts.size());
  layouts.push_back({lengths, bytes});
  layout_ids.emplace(std::move(lengths), id);
  return id;
}

std::uint32_t DiskLog::Impl::make_row(const Key& key, std::uint32_t parent) {
  std::uint32_t number;
  if (!free_rows.empty()) {
    number = free_rows.back();
    free_rows.pop_back();
  } else {
    if (rows.size() >= max_rows) return kNone;
    number = static_cast<std::uint32_t>(rows.size());
    rows.emplace_back();
  }
  Row& row = rows[number];
  const std::uint32_t generation = row.generation;
  row = Row{};
  row.generation = generation;
  row.digest = key.digest;
  row.ns = key.ns;
  row.group = key.group;
  row.sub = key.sub;
  row.last_use = tick;
  if (parent != kNone) link(number, parent);
  table_insert(number);
  return number;
}

void DiskLog::Impl::free_row(std::uint32_t number) {
  Row& row = rows[number];
  table_erase(number);
  row.state = RowState::kFree;
  ++row.generation;
  free_rows.push_back(number);
}

void DiskLog::Impl::link(std::uint32_t number, std::uint32_t parent) {
  Row& row = rows[number];
  Row& above = rows[parent];
  row.parent = parent;
  row.next = above.child;
  if (row.next != kNone) rows[row.next].before = number;
  above.child = number;
}

void DiskLog::Impl::unlink(std::uint32_t number) {
  Row& row = rows[number];
  if (row.parent == kNone) return;
  if (row.before != kNone)
    rows[row.before].next = row.next;
  else
    rows[row.parent].child = row.next;
  if (row.next != kNone) rows[row.next].before = row.before;
  const std::uint32_t parent = row.parent;
  row.parent = row.next = row.before = kNone;
  candidate(parent);
}

void DiskLog::Impl::doom(std::uint32_t number, DiskReason reason) {
  if (rows[number].state != RowState::kQueued) return;
  rows[number].state = RowState::kDoomed;
  rows[number].doom = reason;
  orphan_children(number, DiskReason::kNoParent);
  unlink(number);
}

void DiskLog::Impl::orphan_children(std::uint32_t number, DiskReason reason) {
  // Without recursion: a chain may be long.
  std::vector<std::uint32_t> below;
  for (std::uint32_t at = rows[number].child; at != kNone; at = rows[at].next) below.push_back(at);
  for (std::size_t i = 0; i < below.size(); ++i)
    for (std::uint32_t at = rows[below[i]].child; at != kNone; at = rows[at].next) below.push_back(at);
  for (std::size_t i = below.size(); i-- > 0;) {
    Row& row = rows[below[i]];
    unlink(below[i]);
    if (row.state == RowState::kResident) {
      drop_alone(below[i], reason);
    } else {
      row.state = RowState::kDoomed;
      row.doom = reason == DiskReason::kInvalidated ? DiskReason::kNamespaceClosed : DiskReason::kNoParent;
    }
  }
}

void DiskLog::Impl::drop_alone(std::uint32_t number, DiskReason reason) {
  Row& row = rows[number];
  unlink(number);
  const std::uint64_t bytes = bytes_of(row);
  if (row.leases) leased -= bytes;
  live_bytes -= bytes;
  lessen(row.segment, bytes);
  --counts.resident_blocks;
  ++counts.reasons[static_cast<int>(reason)];
  if (options.max_dropped > 0) {
    if (told.size() == options.max_dropped) told.pop_front();
    told.push_back({{row.ns, row.group, row.sub, row.digest}, reason});
  }
  free_row(number);
  changed();
}

std::vector<DiskDropped> DiskLog::dropped() {
  const std::lock_guard lock(impl_->mutex);
  std::vector<DiskDropped> told(impl_->told.begin(), impl_->told.end());
  impl_->told.clear();
  return told;
}

void DiskLog::Impl::drop(std::uint32_t number, DiskReason reason, DiskReason below) {
  orphan_children(number, below);
  drop_alone(number, reason);
}

void DiskLog::Impl::use(std::uint32_t number) {
  for (; number != kNone && rows[number].last_use != tick; number = rows[number].parent)
    rows[number].last_use = tick;
}

}  // namespace kvarter
