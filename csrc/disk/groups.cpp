// A group: some queued blocks, or some that move, in one write. Published in the order of forming.
#include <algorithm>
#include <cstring>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

void DiskLog::Impl::add_record(Op& op, const WriteItem& item, std::vector<std::byte>& records) {
  const Row& row = rows[item.row];
  const Layout& shards = layout(row);
  BlockRecord record{};
  record.ns = spaces[row.ns].digest;
  record.digest = row.digest;
  if (row.parent != kNone) {
    record.parent = rows[row.parent].digest;
    record.parent_sub = rows[row.parent].sub;
  }
  record.depth = row.depth;
  record.group = row.group;
  record.sub = row.sub;
  record.shards = static_cast<std::uint16_t>(shards.lengths.size());
  record.chained = row.chained;
  const auto append = [&records](const void* data, std::size_t bytes) {
    const auto* at = static_cast<const std::byte*>(data);
    records.insert(records.end(), at, at + bytes);
  };
  append(&record, sizeof record);
  for (std::size_t i = 0; i < shards.lengths.size(); ++i) {
    const Shard shard{shards.lengths[i], item.spans[i].checksum};
    append(&shard, sizeof shard);
    op.vectors.push_back({item.spans[i].address, padded(shard.length)});
  }
  op.writes.push_back(item);
}

Op* DiskLog::Impl::make_group(std::deque<WriteItem>& items, bool cleaning_) {
  // What goes in is decided first, so that the header's size, and with it the place, is known.
  std::uint64_t payload = 0, record_total = 0;
  std::size_t count = 0, vectors = 1;
  for (const WriteItem& item : items) {
    const Row& row = rows[item.row];
    if (row.generation != item.generation || row.state == RowState::kDoomed) break;
    const Layout& shards = layout(row);
    const std::uint64_t record = record_bytes(shards.lengths.size());
    if (count > 0 &&
        (payload + shards.bytes > group_bytes || vectors + shards.lengths.size() > kGroupVectors ||
         sizeof(GroupHeader) + record_total + record > kPage))
      break;
    payload += shards.bytes;
    record_total += record;
    vectors += shards.lengths.size();
    ++count;
  }
  const std::uint64_t header = group_header_bytes(record_total);
  const std::uint64_t index = record_total + count * sizeof(IndexEntry);
  const std::uint32_t number = place(header + payload, index, cleaning_);
  if (number == kNone) return nullptr;

  Segment& segment = segments[number];
  Op& op = make_op(Op::Kind::kGroup, number);
  if (op.header_bytes < header) {
    op.header = aligned(header);
    op.header_bytes = header;
  }
  op.vectors.push_back({op.header.get(), header});
  op.sequence = next_sequence;
  next_sequence += count;
  std::vector<std::byte> records;
  records.reserve(record_total);
  std::uint64_t at = segment.write_at + header;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = records.size();
    add_record(op, items.front(), records);
    items.pop_front();
    const IndexEntry entry{at, op.sequence + i};
    const auto* raw = reinterpret_cast<const std::byte*>(&entry);
    op.index.insert(op.index.end(), raw, raw + sizeof entry);
    op.index.insert(op.index.end(), records.begin() + static_cast<std::ptrdiff_t>(begin), records.end());
    op.cuts.push_back(op.index.size());
    op.sizes.push_back(bytes_of(rows[op.writes.back().row]));
    at += op.sizes.back();
  }
  GroupHeader head{};
  head.epoch = segment.epoch;
  head.offset = segment.write_at;
  head.sequence = op.sequence;
  head.payload = payload;
  head.blocks = static_cast<std::uint32_t>(count);
  seal_group(op.header.get(), head, records);

  segment.first_sequence = std::min(segment.first_sequence, op.sequence);
  segment.planned_index += index;
  segment.free -= header + payload;
  segment.overhead += header;
  segment.reserved += payload;
  ++segment.groups;
  submit(op, IoOp::kWrite, segment.file, segment.write_at);
  segment.write_at += header + payload;
  order.push_back(&op);
  return &op;
}

void DiskLog::Impl::publish(Op& op) {
  Segment& segment = segments[op.segment];
  if (op.error) {
    spoil(op.segment);
  }
  const bool failed = segment.bad;  // a group behind a hole would not be found again
  std::uint64_t at = op.io.offset + op.vectors[0].iov_len;
  std::uint64_t sequence = op.sequence;
  counts.device_bytes += failed ? 0 : op.expected;
  for (std::size_t i = 0; i < op.writes.size(); ++i, ++sequence) {
    const WriteItem& item = op.writes[i];
    const std::uint64_t bytes = op.sizes[i];
    const std::uint64_t offset = std::exchange(at, at + bytes);
    segment.reserved -= bytes;
    Row& row = rows[item.row];
    const bool moved = item.ticket == 0;
    const bool gone = moved ? row.generation != item.generation : row.state == RowState::kDoomed;
    if (moved && !gone) row.moving = false;
    if (failed || gone) {
      segment.dead += bytes;
      if (!moved && gone) refuse(item, Status::kRejected, row.doom);
      if (!moved && !gone) refuse(item, Status::kRejected, DiskReason::kWriteFailed);
      continue;
    }
    if (moved) {
      Segment& old = segments[row.segment];
      old.wait_durable = std::max(old.wait_durable, sequence);
      lessen(row.segment, bytes);
      counts.reinserted_bytes += bytes;
    } else {
      row.state = RowState::kResident;
      Waiting& waiting = tickets.at(item.ticket);
      waiting.done.sequences[item.position] = sequence;
      std::vector<Shard> shards;
      for (std::size_t shard = 0; shard < layout(row).lengths.size(); ++shard)
        shards.push_back({0, item.spans[shard].checksum});
      row.checksum = combine(shards);
      --counts.queued;
      counts.queued_bytes -= bytes;
      ++counts.stored;
      ++counts.resident_blocks;
      counts.stored_bytes += bytes;
      live_bytes += bytes;
      clean_budget =
          std::min(segment_bytes, clean_budget + static_cast<std::uint64_t>(static_cast<double>(bytes) *
                                                                            options.clean_share /
                                                                            (1 - options.clean_share)));
      answer(item.ticket, item.position, Status::kOk, DiskReason::kNone);
    }
    segment.live += bytes;
    row.segment = op.segment;
    row.page = static_cast<std::uint32_t>(offset / kPage);
    row.sequence = sequence;
    segment.rows.push_back(item.row);
    const auto cut = [&](std::size_t n) { return op.index.begin() + static_cast<std::ptrdiff_t>(n); };
    segment.index.insert(segment.index.end(), cut(i ? op.cuts[i - 1] : 0), cut(op.cuts[i]));
    ++segment.blocks;
    candidate(item.row);
  }
  --segment.groups;
  clean_writes -= op.cleaning;
  published = sequence - 1;
  segment.last_sequence = published;
  if (!failed) {
    if (segment.dirty_bytes == 0) segment.dirty_since = clock.now();
    segment.dirty_bytes += op.expected;
    unsynced.push_back({published, op.expected, op.segment});
    unsynced_bytes += op.expected;
  }
  changed();
}

void DiskLog::Impl::publish_done() {
  while (!order.empty() && order.front()->finished) {
    Op& op = *order.front();
    order.pop_front();
    publish(op);
    release(op);
  }
  advance_durable();
}

}  // namespace kvarter
