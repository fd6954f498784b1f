#pragma once
// What the parts of the log share. One file for each part:
//   table.cpp      key -> row, links between rows
//   names.cpp      namespaces, keys of a chain, finding
//   tickets.cpp    what callers wait for
//   writer.cpp     the queue
//   groups.cpp     queued blocks -> group -> published
//   reader.cpp     reads and their verification
//   segments.cpp   open, place, recycle
//   grow.cpp       new files
//   sync.cpp       sync, seal
//   victims.cpp    evict
//   cleaner.cpp    clean
//   tombs.cpp      invalidation and the manifest
//   recover.cpp    start, by what scan.cpp finds
//   ops.cpp        what the device has
//   log.cpp        the thread
//   account.cpp    ledger, counters, audit
// Everything below is called with the mutex held, except where it says otherwise. "Only the thread" means the
// log's, or whoever calls step().

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "disk/state.h"

namespace kvarter {

struct DiskLog::Impl {
  Impl(const Options& options_, std::unique_ptr<Device> device_, const Clock& clock_);
  ~Impl();

  const Options options;
  const std::unique_ptr<Device> device;
  const Clock& clock;
  std::string device_text;  // as it was when recovery had opened its files
  mutable std::mutex mutex;
  std::condition_variable some_done;

  // table.cpp
  std::deque<disk::Row> rows;
  std::vector<std::uint32_t> free_rows;
  std::vector<std::uint64_t> cells;  // hash << 32 | row + 1, linear probing
  std::uint64_t in_table = 0;
  std::uint64_t max_rows = 0;
  std::deque<disk::Layout> layouts;
  std::map<std::vector<std::uint64_t>, std::uint32_t> layout_ids;
  std::uint64_t tick = 1;  // the time of last_use: one more with every call that uses blocks
  std::uint32_t find(const Key& key) const;
  void table_insert(std::uint32_t row);
  void table_erase(std::uint32_t row);
  std::uint32_t layout_of(std::vector<std::uint64_t> lengths);
  const disk::Layout& layout(const disk::Row& row) const { return layouts[row.layout]; }
  std::uint64_t bytes_of(const disk::Row& row) const { return layouts[row.layout].bytes; }
  std::uint32_t make_row(const Key& key, std::uint32_t parent);  // kNone: no memory for more
  void free_row(std::uint32_t row);
  void link(std::uint32_t row, std::uint32_t parent);
  void unlink(std::uint32_t row);
  // Takes a resident row out of the index, its descendants as orphans: those resident are dropped, those
  // queued will be refused.
  void drop(std::uint32_t row, DiskReason reason, DiskReason below = DiskReason::kOrphaned);
  void drop_alone(std::uint32_t row, DiskReason reason);
  std::deque<DiskDropped> told;  // what dropped() will say
  void doom(std::uint32_t row, DiskReason reason);
  void orphan_children(std::uint32_t row, DiskReason reason);
  void use(std::uint32_t row);  // and its ancestors
  void changed() { version.fetch_add(1, std::memory_order_release); }
  std::atomic<std::uint64_t> version{1};

  // names.cpp
  std::vector<disk::Space> spaces;
  std::map<Digest, std::uint32_t> numbers;
  std::uint32_t number_of(const Digest& digest);
  const GroupShape& shape(const Chain& chain, std::uint32_t group) const;
  Key key_at(const Chain& chain, std::uint32_t group, std::uint64_t block) const;
  std::uint32_t resident(const Chain& chain, std::uint32_t group, std::uint64_t block) const;
  void check_range(const Chain& chain, const Range& range) const;
  // The index of the first span of each block; throws when there are not as many as the ranges need.
  void check_spans(const Chain& chain, std::span<const Range> ranges, std::span<const Span> spans) const;

  // tickets.cpp
  std::unordered_map<DiskTicket, disk::Waiting> tickets;
  std::vector<DiskDone> finished;
  DiskTicket next_ticket = 1;
  disk::Waiting* make_ticket(std::size_t blocks, std::span<const Span> spans, DiskTicket& id);
  void answer(DiskTicket ticket, std::uint32_t position, Status status, DiskReason reason);
  struct Flush {
    DiskTicket ticket;
    std::uint64_t last_item;
    bool published = false;
    std::uint64_t sequence = 0;
  };
  std::vector<Flush> flushes;
  void settle_flushes();

  // writer.cpp
  std::deque<disk::WriteItem> queue;
  std::deque<disk::Op*> order;  // groups in flight, in the order in which they are published
  std::uint64_t next_item = 1, next_sequence = 1, published = 0, durable = 0;
  std::uint64_t failing_until = 0;
  bool offer(const Chain& chain, const Range& range, std::uint64_t block, DiskTicket ticket,
             std::uint32_t position, const Span* spans);
  void refuse(const disk::WriteItem& item, Status status, DiskReason reason);
  bool form_group();
  // Of the front items of `items`, as many as go into one write; the rest stays. kNone: no segment.
  disk::Op* make_group(std::deque<disk::WriteItem>& items, bool cleaning);
  void add_record(disk::Op& op, const disk::WriteItem& item, std::vector<std::byte>& records);
  void publish(disk::Op& op);
  void publish_done();
  std::uint64_t oldest_item() const;

  // reader.cpp
  std::deque<disk::ReadItem> reads;
  std::uint64_t first_deadline = ~std::uint64_t{0};
  disk::ReadItem lease_for_read(std::uint32_t row, DiskTicket ticket, std::uint32_t position);
  void end_read(const disk::ReadItem& item, Status status);
  bool form_read();
  void expire_reads();
  void finish_reads(disk::Op& op);
  static void verify(disk::Op& op);  // without the mutex

  // segments.cpp
  std::vector<disk::Segment> segments;
  std::uint64_t segment_bytes = 0, group_bytes = 0;
  std::uint32_t max_segments = 0, present = 0;
  std::uint32_t active = disk::kNone;
  std::vector<std::uint32_t> ready, emptied, sealing;
  std::uint32_t opening = 0;
  bool grow_wanted = false, growth_stopped = false, sync_demanded = false;
  std::uint64_t next_space_check = 0;
  struct Unsynced {
    std::uint64_t last, bytes;
    std::uint32_t segment;
  };
  std::deque<Unsynced> unsynced;  // published groups, in their order
  std::uint64_t unsynced_bytes = 0;
  std::uint64_t growable() const;
  std::uint64_t available() const { return ready.size() + opening + growable(); }
  void open_segment(std::uint32_t number);
  bool fits(const disk::Segment& segment, std::uint64_t group, std::uint64_t index) const;
  std::uint32_t place(std::uint64_t group, std::uint64_t index, bool cleaning);
  void spoil(std::uint32_t number);
  void lessen(std::uint32_t number, std::uint64_t bytes);  // live bytes die
  void maybe_emptied(std::uint32_t number);
  bool recycle();
  bool seal_segments();
  bool sync_segments();
  void finish_header(disk::Op& op);
  void finish_seal(disk::Op& op);
  void finish_sync(disk::Op& op);
  void advance_durable();
  bool grow();               // only the thread, without the mutex
  bool name_new_segments();  // only the thread, without the mutex

  // victims.cpp
  struct Victim {
    std::uint64_t last_use;
    std::uint32_t row, generation;
    std::uint64_t sequence;
    bool asked = false, above = false;          // whether the index above was asked for it, and has it
    bool operator<(const Victim& other) const;  // the first to go on top
  };
  std::vector<Victim> victims;  // a heap, checked when one is taken
  bool evictable(const disk::Row& row) const;
  void candidate(std::uint32_t row);
  void ask_above();
  std::uint32_t next_victim();  // the block that would go now; kNone when nothing may
  // The segment in which a block died; kNone when nothing may go.
  std::uint32_t evict_one();
  bool drop_unleased(std::uint32_t row);

  // cleaner.cpp
  std::uint64_t clean_budget = 0;
  std::uint32_t cleaning = disk::kNone;
  std::size_t clean_at = 0;
  unsigned clean_reads = 0, clean_writes = 0;  // in flight
  std::deque<disk::WriteItem> cleaned;         // read, to be written
  std::uint64_t cleaned_bytes = 0;
  std::uint32_t emptiest() const;
  bool reclaim();
  bool read_to_clean();
  bool place_cleaned();
  void finish_clean_read(disk::Op& op);
  void end_cleaning();

  // tombs.cpp
  disk::Manifest manifest;
  int manifest_file = -1;
  int manifest_stage = 0;  // 0: idle; write, sync of one slot, then of the other
  bool manifest_wanted = false;
  std::vector<DiskTicket> manifest_next, manifest_now;
  std::vector<std::uint32_t> closing;  // namespaces whose rows are being removed
  std::size_t sweep_at = 0;
  bool write_manifest();
  void finish_manifest(disk::Op& op);
  bool sweep();
  void drop_everything();

  // recover.cpp: at construction
  void recover();
  void start_manifest(const std::vector<std::string>& files);
  void restore(std::uint32_t number, std::vector<disk::Found>& blocks, bool sealed, std::uint64_t end,
               std::vector<std::pair<std::uint32_t, Key>>& parents);
  void shrink();

  // account.cpp
  DiskCounters counts;
  std::uint64_t leased = 0, live_bytes = 0;  // the leased are among the live
  DiskLedger ledger() const;

  // log.cpp
  std::vector<std::unique_ptr<disk::Op>> ops;
  std::vector<std::uint32_t> free_ops;
  std::vector<Io> submissions;
  unsigned in_flight = 0, reads_in_flight = 0;  // of those that count against queue_depth
  unsigned outstanding = 0;                     // all
  bool read_last = false, closing_down = false;
  std::vector<IoDone> arrived;
  std::atomic<bool> stop{false};
  std::thread thread;
  disk::Op& make_op(disk::Op::Kind kind, std::uint32_t segment);
  void submit(disk::Op& op, IoOp what, int file, std::uint64_t offset);
  void release(disk::Op& op);
  void finish(disk::Op& op);
  bool schedule();
  bool step(std::chrono::nanoseconds wait);  // only the thread
  static bool advance(disk::Op& op, std::int64_t result);
  std::chrono::nanoseconds patience();
};

}  // namespace kvarter
