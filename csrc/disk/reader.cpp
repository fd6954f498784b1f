// Reads: queued with a lease, neighbours together, verified outside the mutex.
#include <algorithm>

#include "disk/impl.h"
#include "kvarter/hash.h"

namespace kvarter {

using namespace disk;

DiskTicket DiskLog::read(const Chain& chain, std::span<const Range> ranges, std::span<const Span> spans,
                         std::uint64_t deadline) {
  DiskTicket id;
  {
    const std::lock_guard lock(impl_->mutex);
    Impl& x = *impl_;
    x.check_spans(chain, ranges, spans);
    std::size_t blocks = 0;
    for (const Range& range : ranges) blocks += range.count;
    Waiting* waiting = x.make_ticket(blocks, spans, id);
    if (!waiting) return 0;
    ++x.tick;
    waiting->read = true;
    waiting->deadline = deadline;
    waiting->done.checksums.assign(spans.size(), 0);
    ++waiting->left;
    std::uint32_t position = 0, span = 0;
    const auto miss = [&](Status status, DiskReason reason) {
      ++x.counts.not_loaded[static_cast<int>(reason)];
      x.answer(id, position, status, reason);
    };
    for (const Range& range : ranges) {
      const auto shards = static_cast<std::uint32_t>(x.shape(chain, range.group).shard_bytes.size());
      for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
        ++x.counts.asked;
        const std::uint32_t row = x.resident(chain, range.group, block);
        bool same = row != kNone && x.layout(x.rows[row]).lengths.size() == shards;
        for (std::uint32_t i = 0; same && i < shards; ++i)
          same = x.layout(x.rows[row]).lengths[i] == spans[span + i].length;
        if (row == kNone) {
          miss(Status::kNotFound, DiskReason::kNotFound);
        } else if (!same) {
          miss(Status::kRejected, DiskReason::kWrongLength);
        } else {
          ReadItem item = x.lease_for_read(row, id, position);
          item.first_span = span;
          item.spans = waiting->spans.data() + span;
          x.reads.push_back(item);
        }
        ++position;
        span += shards;
      }
    }
    if (--waiting->left == 0) {
      x.finished.push_back(std::move(waiting->done));
      x.tickets.erase(id);
      x.some_done.notify_all();
    } else {
      x.first_deadline = std::min(x.first_deadline, deadline);
    }
  }
  impl_->device->wake();
  return id;
}

ReadItem DiskLog::Impl::lease_for_read(std::uint32_t number, DiskTicket ticket, std::uint32_t position) {
  Row& row = rows[number];
  use(number);
  if (row.leases++ == 0) leased += bytes_of(row);
  ++segments[row.segment].readers;
  ++counts.loading;
  return {number, row.generation, row.segment, row.page * kPage, &layout(row), row.checksum,
          ticket, position,       0,           nullptr};
}

// Ends the lease, and says what became of the block.
void DiskLog::Impl::end_read(const ReadItem& item, Status status) {
  --counts.loading;
  --segments[item.segment].readers;
  maybe_emptied(item.segment);
  Row& row = rows[item.row];
  const bool there = row.generation == item.generation;
  if (there && --row.leases == 0) {
    leased -= bytes_of(row);
    candidate(item.row);
  }
  DiskReason reason = DiskReason::kNone;
  if (status == Status::kCorrupt) reason = DiskReason::kCorrupt;
  if (status == Status::kNotFound) reason = DiskReason::kReadFailed;
  if (status == Status::kTimedOut) reason = DiskReason::kTimedOut;
  if (status == Status::kClosed) reason = DiskReason::kShutDown;
  if (there && (status == Status::kCorrupt || status == Status::kNotFound)) {
    // A block that was moved meanwhile is good where it is now, or the next read says so.
    if (row.segment == item.segment && row.page * kPage == item.offset) drop(item.row, reason);
  } else if (!there && status == Status::kOk) {
    status = Status::kNotFound;  // it was invalidated, removed, or found corrupt
    reason = DiskReason::kNotFound;
  }
  if (status == Status::kOk) {
    ++counts.loaded;
    counts.loaded_bytes += item.layout->bytes;
  } else {
    ++counts.not_loaded[static_cast<int>(reason)];
  }
  answer(item.ticket, item.position, status, reason);
}

bool DiskLog::Impl::form_read() {
  if (reads.empty()) return false;
  Op& op = make_op(Op::Kind::kRead, reads.front().segment);
  const std::uint64_t begin = reads.front().offset;
  std::uint64_t end = begin;
  while (!reads.empty()) {
    const ReadItem& item = reads.front();
    const bool first = op.reads.empty();
    if (item.segment != op.segment || item.offset != end) break;
    if (!first && (end + item.layout->bytes - begin > kReadBytes ||
                   op.vectors.size() + item.layout->lengths.size() > kGroupVectors))
      break;
    for (std::size_t i = 0; i < item.layout->lengths.size(); ++i)
      op.vectors.push_back({item.spans[i].address, padded(item.layout->lengths[i])});
    end += item.layout->bytes;
    op.reads.push_back(item);
    reads.pop_front();
  }
  submit(op, IoOp::kRead, segments[op.segment].file, begin);
  return true;
}

void DiskLog::Impl::expire_reads() {
  const std::uint64_t now = clock.now();
  if (now <= first_deadline) return;
  first_deadline = ~std::uint64_t{0};
  std::deque<ReadItem> kept;
  for (const ReadItem& item : std::exchange(reads, {})) {
    const std::uint64_t deadline = tickets.at(item.ticket).deadline;
    if (now > deadline) {
      end_read(item, Status::kTimedOut);
    } else {
      first_deadline = std::min(first_deadline, deadline);
      kept.push_back(item);
    }
  }
  reads = std::move(kept);
}

void DiskLog::Impl::verify(Op& op) {
  std::vector<Shard> shards;
  for (const ReadItem& item : op.reads) {
    shards.clear();
    if (op.error) {
      op.verdicts.push_back(Status::kNotFound);
      op.checksums.resize(op.checksums.size() + item.layout->lengths.size());
      continue;
    }
    for (std::size_t i = 0; i < item.layout->lengths.size(); ++i)
      shards.push_back({0, checksum(item.spans[i].address, item.layout->lengths[i])});
    op.verdicts.push_back(combine(shards) == item.checksum ? Status::kOk : Status::kCorrupt);
    for (const Shard& shard : shards) op.checksums.push_back(shard.checksum);
  }
}

void DiskLog::Impl::finish_reads(Op& op) {
  if (op.error) ++counts.io_errors;
  const std::uint64_t now = clock.now();
  std::size_t at = 0;
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const ReadItem& item = op.reads[i];
    Waiting& waiting = tickets.at(item.ticket);
    Status status = op.verdicts[i];
    if (status == Status::kOk && now > waiting.deadline) status = Status::kTimedOut;
    for (std::size_t s = 0; s < item.layout->lengths.size(); ++s, ++at)
      if (status == Status::kOk && rows[item.row].generation == item.generation)
        waiting.done.checksums[item.first_span + s] = op.checksums[at];
    end_read(item, status);
  }
}

}  // namespace kvarter
