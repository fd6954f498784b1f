// What is taken for writing, and what is refused.
#include <algorithm>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

DiskTicket DiskLog::write(const Chain& chain, std::span<const Range> ranges, std::span<const Span> spans) {
  DiskTicket id;
  {
    const std::lock_guard lock(impl_->mutex);
    Impl& x = *impl_;
    x.check_spans(chain, ranges, spans);
    std::size_t blocks = 0;
    for (const Range& range : ranges) {
      blocks += range.count;
      if (range.count == 0) continue;
      if (x.shape(chain, range.group).chained && range.first > 0)
        x.key_at(chain, range.group, range.first - 1);
    }
    Waiting* waiting = x.make_ticket(blocks, spans, id);
    if (!waiting) return 0;
    ++x.tick;
    waiting->done.sequences.assign(blocks, 0);
    ++waiting->left;  // so that it cannot end in here
    const Span* at = waiting->spans.data();
    std::uint32_t position = 0;
    for (const Range& range : ranges)
      for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
        x.offer(chain, range, block, id, position++, at);
        at += x.shape(chain, range.group).shard_bytes.size();
      }
    if (--waiting->left == 0) {
      x.finished.push_back(std::move(waiting->done));
      x.tickets.erase(id);
      x.some_done.notify_all();
    }
  }
  impl_->device->wake();
  return id;
}

bool DiskLog::Impl::offer(const Chain& chain, const Range& range, std::uint64_t block, DiskTicket ticket,
                          std::uint32_t position, const Span* spans) {
  ++counts.offered;
  const GroupShape& s = shape(chain, range.group);
  const auto refuse_now = [&](Status status, DiskReason reason) {
    ++counts.reasons[static_cast<int>(reason)];
    answer(ticket, position, status, reason);
    return false;
  };
  if (!spaces[chain.ns].open) return refuse_now(Status::kRejected, DiskReason::kNamespaceClosed);
  const Key key = key_at(chain, range.group, block);
  const std::uint32_t known = find(key);
  if (known != kNone) {
    const bool there = rows[known].state == RowState::kResident;
    if (there) use(known);
    return refuse_now(Status::kBusy, there ? DiskReason::kAlreadyResident : DiskReason::kAlreadyInFlight);
  }
  std::uint32_t parent = kNone;
  if (s.chained && block > 0) {
    parent = find(key_at(chain, range.group, block - 1));
    if (parent == kNone || rows[parent].state == RowState::kDoomed || rows[parent].depth + 1 != block)
      return refuse_now(Status::kRejected, DiskReason::kNoParent);
  }
  std::vector<std::uint64_t> lengths;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < s.shard_bytes.size(); ++i) {
    lengths.push_back(spans[i].length);
    bytes += padded(spans[i].length);
  }
  const std::uint64_t record = record_bytes(lengths.size());
  const std::uint64_t fixed = 2 * kPage + group_header_bytes(record) + padded(record + sizeof(IndexEntry));
  if (bytes + fixed > segment_bytes) return refuse_now(Status::kRejected, DiskReason::kTooLarge);
  if (counts.queued_bytes + bytes > options.write_queue_bytes && counts.queued_bytes > 0)
    return refuse_now(Status::kBusy, DiskReason::kQueueFull);
  std::uint32_t number = make_row(key, parent);
  if (number == kNone) {  // the parent is no victim: it is a leaf, but was used just now; so link it first
    if (parent != kNone) use(parent);
    const std::uint32_t generation = parent == kNone ? 0 : rows[parent].generation;
    if (evict_one() == kNone || (parent != kNone && rows[parent].generation != generation))
      return refuse_now(Status::kRejected, DiskReason::kNoSpace);
    number = make_row(key, parent);
  }
  Row& row = rows[number];
  row.state = RowState::kQueued;
  row.chained = s.chained;
  row.depth = static_cast<std::uint32_t>(block);
  row.layout = layout_of(std::move(lengths));
  use(number);
  ++counts.queued;
  counts.queued_bytes += bytes;
  queue.push_back({number, row.generation, ticket, position, spans, next_item++});
  return true;
}

void DiskLog::Impl::refuse(const WriteItem& item, Status status, DiskReason reason) {
  --counts.queued;
  counts.queued_bytes -= bytes_of(rows[item.row]);
  ++counts.reasons[static_cast<int>(reason)];
  orphan_children(item.row, DiskReason::kNoParent);
  unlink(item.row);
  free_row(item.row);
  answer(item.ticket, item.position, status, reason);
}

std::uint64_t DiskLog::Impl::oldest_item() const {
  for (const Op* op : order)
    for (const WriteItem& item : op->writes)
      if (item.ticket) return item.id;
  return queue.empty() ? next_item : queue.front().id;
}

bool DiskLog::Impl::form_group() {
  const std::uint64_t before = queue.size();
  while (!queue.empty()) {
    const WriteItem item = queue.front();
    const Row& row = rows[item.row];
    if (row.state == RowState::kDoomed) {
      queue.pop_front();
      refuse(item, Status::kRejected, row.doom);
    } else if (!spaces[row.ns].open) {
      queue.pop_front();
      refuse(item, Status::kRejected, DiskReason::kNamespaceClosed);
    } else if (clock.now() < failing_until) {
      queue.pop_front();
      refuse(item, Status::kRejected, DiskReason::kWriteFailed);
    } else {
      break;
    }
  }
  if (!queue.empty() && make_group(queue, false)) return true;
  return queue.size() != before;
}

}  // namespace kvarter
