#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "index/impl.h"

namespace kvarter {
namespace {

constexpr std::uint64_t kNoFence = ~std::uint64_t{0};  // an epoch that only death covers

struct Found {  // the slots of one entry
  std::uint32_t depth;
  std::uint64_t entry;
  std::vector<std::uint32_t> slots;  // by shard; kNoRow where there is none
};

Memfd checked(Memfd file, const Index::Options& options, const Pool& pool) {
  RecordsHeader header;
  std::memcpy(&header, file.data(), sizeof header);  // a file of the pool has at least a page
  if (header.magic != kRecordsMagic || header.layout_version != kLayoutVersion)
    throw std::runtime_error("records of layout version " + std::to_string(header.layout_version) +
                             "; this build reads version " + std::to_string(kLayoutVersion));
  if (header.max_slots != options.max_slots || header.arenas != pool.arenas().size() ||
      file.bytes() < records_bytes(header.max_slots))
    throw std::runtime_error("records of " + std::to_string(header.max_slots) + " slots in " +
                             std::to_string(header.arenas) + " arenas and " + std::to_string(file.bytes()) +
                             " bytes; expected " + std::to_string(options.max_slots) + " slots in " +
                             std::to_string(pool.arenas().size()) + " arenas");
  return file;
}

}  // namespace

Index::Index(const Options& options, Pool& pool, const Clock& clock, Memfd records)
    : impl_(std::make_unique<Impl>(options, pool, clock, checked(std::move(records), options, pool))) {
  impl_->rebuild();
}

void Index::Impl::rebuild() {
  for (std::uint32_t ns = 0; ns < kMaxNamespaces; ++ns) {
    namespaces[ns].digest = namespace_records[ns].digest;
    namespaces[ns].closed = namespace_records[ns].state == 2;
    closed += namespaces[ns].closed;
  }

  std::unordered_map<std::uint64_t, Found> entries;
  for (std::uint32_t at = 0; at < options.max_slots; ++at) {
    SlotRecord& slot = records[at];
    if (slot.state() == SlotState::kFree || slot.state() == SlotState::kMoving || slot.ns >= kMaxNamespaces ||
        slot.shard >= slot.shards ||
        !pool.extents().claim({slot.arena, slot.offset, rounded(slot.length)}, at)) {
      if (slot.state() != SlotState::kFree) mark(slot, SlotState::kFree, true);
      continue;
    }
    Found& found = entries.try_emplace(slot.entry, Found{slot.depth, slot.entry, {}}).first->second;
    found.slots.resize(slot.shards, kNoRow);
    found.slots[slot.shard] = at;
    next_entry = std::max(next_entry, slot.entry + 1);
    last_owner = std::max(last_owner, slot.owner);
  }
  std::vector<const Found*> order;
  for (const auto& [entry, found] : entries) order.push_back(&found);
  std::sort(order.begin(), order.end(), [](const Found* a, const Found* b) {  // parents first, then by age
    return a->depth != b->depth ? a->depth < b->depth : a->entry < b->entry;
  });

  std::vector<bool> used(options.max_slots, false);
  for (const Found* found : order) {
    std::vector<std::uint32_t> slots;
    for (const std::uint32_t at : found->slots)
      if (at != kNoRow) slots.push_back(at);
    const SlotRecord& first = records[slots.front()];
    const std::uint32_t row = free_rows.back();
    free_rows.pop_back();
    c.slot[row] = slots.front();
    c.depth[row] = first.depth;
    c.ns[row] = first.ns;
    c.group[row] = first.group;
    c.shards[row] = static_cast<std::uint16_t>(slots.size());
    c.first_child[row] = kNoRow;
    c.last_use[row] = clock.now();
    Flight flight{0, {}, Reason::kExpired};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const SlotRecord& slot = records[slots[i]];
      used[slots[i]] = true;
      c.next_shard[slots[i]] = i + 1 < slots.size() ? slots[i + 1] : kNoRow;
      c.bytes[row] += slot.length;
      book.overhead += rounded(slot.length) - slot.length;
      const bool writing = slot.state() == SlotState::kReserved || slot.state() == SlotState::kQuarantined;
      flight.writers.push_back({slot.owner, kNoFence, true, writing && slot.owner != 0, false});
    }
    ++namespaces[first.ns].rows;
    namespaces[first.ns].bytes += c.bytes[row];
    const bool whole =
        slots.size() == first.shards && std::all_of(slots.begin(), slots.end(), [&](std::uint32_t at) {
          return records[at].state() == SlotState::kCommitted;
        });
    const bool chained = namespace_records[first.ns].chained >> first.group & 1;
    std::uint32_t parent = kNoRow;
    if (whole && chained && first.depth > 0)
      parent = find({first.ns, first.group, first.parent_sub, first.parent});
    const bool rooted = !chained || first.depth == 0 || parent != kNoRow;
    if (whole && rooted && find(key_of(row)) == kNoRow) {
      set_state(row, RowState::kResident);
      table_insert(key_of(row), row);
      link(row, parent);
      ++counts.offered;
      ++counts.stored;
      ++counts.resident_blocks;
      offer_victim(row);
    } else {
      set_state(row, RowState::kQuarantined);
      c.parent[row] = kNoRow;
      for (const std::uint32_t at : slots) {
        KVARTER_SYNC_POINT("rebuild: slot");
        mark(records[at], SlotState::kQuarantined);
      }
      flights.emplace(row, std::move(flight));
    }
  }
  free_records.clear();
  for (std::uint32_t at = options.max_slots; at-- > 0;)
    if (!used[at]) free_records.push_back(at);
  std::vector<std::uint32_t> quarantined;
  for (const auto& [row, flight] : flights) quarantined.push_back(row);
  for (const std::uint32_t row : quarantined) settle(row);  // what nobody writes is free at once
}

}  // namespace kvarter
