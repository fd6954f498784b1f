#include <algorithm>
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {

std::vector<Reserved> Index::reserve(const Chain& chain, const Range& range, Shards shards, Owner owner,
                                     std::uint64_t deadline, std::vector<Slot>& slots) {
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  const Namespace& ns = x.space(chain.ns, range.group);
  const GroupShape& shape = ns.groups[range.group];
  const auto all = static_cast<std::uint32_t>(shape.shard_bytes.size());
  if (shards.count == 0) shards = {0, all};
  if (shards.first >= all || shards.count > all - shards.first)
    throw std::invalid_argument("shards " + std::to_string(shards.first) + " to " +
                                std::to_string(shards.first + shards.count) + " of group " +
                                std::to_string(range.group) + ", which has " + std::to_string(all));
  if (range.count > 0) {  // misuse throws here, before anything is reserved
    const std::uint64_t first = range.first - (shape.chained && range.first > 0);
    key_at(chain, shape, range.group, first);
    key_at(chain, shape, range.group, range.first + range.count - 1);
  }
  std::vector<Reserved> results(range.count);
  for (std::uint64_t i = 0; i < range.count; ++i) {
    Reserved& result = results[i];
    const std::uint64_t block = range.first + i;
    const auto refuse = [&](Status status, Reason reason) {
      ++x.counts.offered;
      ++x.counts.reasons[static_cast<int>(reason)];
      result = {status, reason, 0};
    };
    if (!ns.open) {
      refuse(Status::kClosed, Reason::kNamespaceClosed);
      continue;
    }
    const Key key = key_at(chain, shape, range.group, block);
    std::uint32_t row = x.find(key);
    if (row != kNoRow && x.state(row) == RowState::kResident) {
      x.c.last_use[row] = x.clock.now();  // the engine has it in use: its copy here is not old
      refuse(Status::kBusy, Reason::kAlreadyResident);
      continue;
    }
    if (row != kNoRow) {
      const auto& writers = x.flights.at(row).writers;
      if (std::any_of(writers.begin() + shards.first, writers.begin() + shards.first + shards.count,
                      [](const Writer& w) { return w.claimed; })) {
        refuse(Status::kBusy, Reason::kAlreadyInFlight);
        continue;
      }
    } else {
      std::uint32_t parent = kNoRow;
      if (shape.chained && block > 0) {
        parent = x.find(key_at(chain, shape, range.group, block - 1));
        if (parent == kNoRow) {
          refuse(Status::kRejected, Reason::kNoParent);
          continue;
        }
      }
      Reason refusal = Reason::kNone;
      row = x.make_entry(key, shape, parent, static_cast<std::uint32_t>(block), refusal);
      if (row == kNoRow) {
        refuse(Status::kRejected, refusal);
        continue;
      }
      ++x.counts.offered;
      ++x.counts.in_flight;
      x.flights.emplace(row, Flight{deadline, std::vector<Writer>(all), Reason::kNone});
    }
    Flight& flight = x.flights.at(row);
    std::uint32_t at = x.c.slot[row];
    for (std::uint32_t shard = 0; shard < shards.first + shards.count; ++shard, at = x.c.next_shard[at]) {
      if (shard < shards.first) continue;
      flight.writers[shard] = {owner, x.epoch_of(owner), true, true, false};
      SlotRecord& slot = x.records[at];
      slot.owner = owner;
      KVARTER_SYNC_POINT("reserve: owner");
      slots.push_back({at, slot.arena, slot.offset, slot.length, 0, slot.generation()});
    }
    result = {Status::kOk, Reason::kNone, x.handle_of(row)};
  }
  return results;
}

void Index::complete(std::span<const Handle> handles, std::uint32_t shard, std::span<const std::uint8_t> ok,
                     std::span<const std::uint64_t> checksums) {
  if (ok.size() != handles.size() || checksums.size() != handles.size())
    throw std::invalid_argument(std::to_string(handles.size()) + " handles, " + std::to_string(ok.size()) +
                                " outcomes and " + std::to_string(checksums.size()) + " checksums");
  const std::lock_guard lock(impl_->mutex);
  Impl& x = *impl_;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const std::uint32_t row = x.row_of(handles[i]);
    const auto flight = row == kNoRow ? x.flights.end() : x.flights.find(row);
    if (flight == x.flights.end() || shard >= flight->second.writers.size()) continue;
    Writer& writer = flight->second.writers[shard];
    if (!writer.writing) continue;
    writer.writing = false;
    writer.ok = ok[i] != 0;
    if (writer.ok && flight->second.doom == Reason::kNone) {
      SlotRecord& slot = x.record(row, shard);
      slot.checksum = checksums[i];
      KVARTER_SYNC_POINT("complete: slot");
      x.mark(slot, SlotState::kWritten);
    }
    if (!writer.ok && flight->second.doom == Reason::kNone)
      x.doom(row, Reason::kFailed);
    else
      x.settle(row);
  }
}

void Index::abort(std::span<const Handle> handles, Shards shards) {
  const std::lock_guard lock(impl_->mutex);
  for (const Handle handle : handles) {
    const std::uint32_t row = impl_->row_of(handle);
    const auto flight = row == kNoRow ? impl_->flights.end() : impl_->flights.find(row);
    if (flight == impl_->flights.end()) continue;
    std::vector<Writer>& writers = flight->second.writers;
    const std::size_t end = shards.count ? std::size_t{shards.first} + shards.count : writers.size();
    for (std::size_t s = shards.count ? shards.first : 0; s < std::min(end, writers.size()); ++s)
      writers[s].writing = false;
    if (flight->second.doom == Reason::kNone)
      impl_->doom(row, Reason::kAborted);
    else
      impl_->settle(row);
  }
}

std::vector<bool> Index::resident(std::span<const Handle> handles) const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<bool> there;
  for (const Handle handle : handles) {
    const std::uint32_t row = impl_->row_of(handle);
    there.push_back(row != kNoRow && impl_->state(row) == RowState::kResident);
  }
  return there;
}

void Index::Impl::settle(std::uint32_t row) {
  const Flight& flight = flights.at(row);
  if (flight.doom != Reason::kNone) {
    if (flight.writing()) return;
    flights.erase(row);
    free_entry(row);
  } else if (flight.written() && (c.parent[row] == kNoRow || state(c.parent[row]) == RowState::kResident)) {
    publish(row);
  }
}

void Index::Impl::publish(std::uint32_t first) {
  for (std::vector<std::uint32_t> ready{first}; !ready.empty();) {
    const std::uint32_t row = ready.back();
    ready.pop_back();
    flights.erase(row);
    for (std::uint32_t at = c.slot[row]; at != kNoRow; at = c.next_shard[at]) {
      KVARTER_SYNC_POINT("commit: slot");
      mark(records[at], SlotState::kCommitted);
    }
    set_state(row, RowState::kResident);
    c.last_use[row] = clock.now();
    --counts.in_flight;
    ++counts.stored;
    ++counts.resident_blocks;
    counts.stored_bytes += c.bytes[row];
    ++c.header->version;
    tell(row, Reason::kNone);
    for (std::uint32_t child = c.first_child[row]; child != kNoRow; child = c.next_sibling[child])
      if (const auto flight = flights.find(child); flight != flights.end() && flight->second.written())
        ready.push_back(child);
    offer_victim(row);
  }
}

// Gives up an entry in flight and everything in flight below it. Slots that somebody may still write stay
// reserved.
void Index::Impl::doom(std::uint32_t top, Reason reason) {
  std::vector<std::uint32_t> rows{top};
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::uint32_t child = c.first_child[rows[i]]; child != kNoRow; child = c.next_sibling[child])
      rows.push_back(child);
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    const Reason own = *row == top ? reason : Reason::kNoParent;
    tell(*row, own);
    table_erase(*row);
    unlink(*row);
    --counts.in_flight;
    ++counts.reasons[static_cast<int>(own)];
    flights.at(*row).doom = own;
    settle(*row);
  }
}

void Index::Impl::quarantine(std::uint32_t row) {
  if (flights.at(row).doom == Reason::kNone) doom(row, Reason::kExpired);
  auto flight = flights.find(row);
  if (flight == flights.end()) return;  // nobody was writing
  // A fence for another slot of the same epoch may have been acknowledged before: none will be sent again.
  for (Writer& writer : flight->second.writers) writer.writing &= writer.epoch >= fenced[writer.owner];
  settle(row);
  flight = flights.find(row);
  if (flight == flights.end()) return;
  set_state(row, RowState::kQuarantined);
  for (std::uint32_t at = c.slot[row]; at != kNoRow; at = c.next_shard[at]) {
    KVARTER_SYNC_POINT("quarantine: slot");
    mark(records[at], SlotState::kQuarantined);
  }
}

// Ends what these writers do: all of a dead owner's, or the quarantined ones that a fence of this epoch
// covers.
void Index::Impl::end_writers(Owner owner, std::uint64_t epoch) {
  const bool dead = epoch == ~std::uint64_t{0};
  std::vector<std::uint32_t> touched;
  for (auto& [row, flight] : flights) {
    if (!dead && state(row) != RowState::kQuarantined) continue;
    bool any = false;
    for (Writer& writer : flight.writers)
      if (writer.writing && writer.owner == owner && writer.epoch <= epoch) {
        writer.writing = writer.ok = false;
        any = true;
      }
    if (any) touched.push_back(row);
  }
  for (const std::uint32_t row : touched) {
    const auto flight = flights.find(row);
    if (flight == flights.end()) continue;  // went with its parent
    if (flight->second.doom == Reason::kNone)
      doom(row, Reason::kOwnerDead);
    else
      settle(row);
  }
}

}  // namespace kvarter
