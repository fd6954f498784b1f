// What callers wait for.
#include "disk/impl.h"

namespace kvarter {

using namespace disk;

const char* name(DiskReason reason) noexcept {
  static constexpr const char* kNames[] = {
      "none",       "already_resident", "already_in_flight", "no_parent",    "too_large",
      "queue_full", "no_space",         "namespace_closed",  "write_failed", "shut_down",
      "evicted",    "removed",          "invalidated",       "corrupt",      "read_failed",
      "orphaned",   "unsynced",         "not_found",         "wrong_length", "timed_out"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(DiskReason::kCount));
  return kNames[static_cast<int>(reason)];
}

Waiting* DiskLog::Impl::make_ticket(std::size_t blocks, std::span<const Span> spans, DiskTicket& id) {
  id = 0;
  if (tickets.size() + finished.size() >= options.max_tickets) return nullptr;
  id = next_ticket++;
  Waiting& waiting = tickets[id];
  waiting.done.ticket = id;
  waiting.done.statuses.assign(blocks, Status::kClosed);
  waiting.done.reasons.assign(blocks, DiskReason::kNone);
  waiting.spans.assign(spans.begin(), spans.end());
  waiting.left = blocks;
  return &waiting;
}

void DiskLog::Impl::answer(DiskTicket ticket, std::uint32_t position, Status status, DiskReason reason) {
  const auto found = tickets.find(ticket);
  Waiting& waiting = found->second;
  waiting.done.statuses[position] = status;
  waiting.done.reasons[position] = reason;
  if (--waiting.left > 0) return;
  finished.push_back(std::move(waiting.done));
  tickets.erase(found);
  some_done.notify_all();
}

void DiskLog::Impl::settle_flushes() {
  for (std::size_t i = 0; i < flushes.size();) {
    Flush& flush = flushes[i];
    if (!flush.published && oldest_item() > flush.last_item) {
      flush.published = true;
      flush.sequence = published;
    }
    if (flush.published && durable >= flush.sequence) {
      answer(flush.ticket, 0, Status::kOk, DiskReason::kNone);
      flushes[i] = flushes.back();
      flushes.pop_back();
    } else {
      ++i;
    }
  }
}

DiskTicket DiskLog::flush() {
  DiskTicket id;
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->make_ticket(1, {}, id)) return 0;
    impl_->flushes.push_back({id, impl_->next_item - 1});
  }
  impl_->device->wake();
  return id;
}

std::vector<DiskDone> DiskLog::poll() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->finished, {});
}

bool DiskLog::wait(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  return impl_->some_done.wait_for(lock, timeout, [&] { return !impl_->finished.empty(); });
}

bool DiskLog::expired(DiskTicket ticket) const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->tickets.find(ticket);
  return found != impl_->tickets.end() && found->second.read && impl_->clock.now() > found->second.deadline;
}

std::uint64_t DiskLog::durable_sequence() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->durable;
}

}  // namespace kvarter
