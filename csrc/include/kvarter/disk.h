#pragma once
// The disk tier: a log of large recycled segments that survives crashes. An entry is one block of one group
// with all its shards; their bytes go straight from the pool's slots to the device and back.
// csrc/disk/FORMAT.md says how they lie there, and what a crash can lose.
//
//   write -> queued -> written: found from now on -> durable -> evicted | removed
//
// Threads: every method may be called from any thread. One mutex orders them; it is never held during I/O, so
// none of them waits for the device, but for the constructor, which recovers, the destructor, and wait(). One
// thread of the log drives the device. Slots given to write and read are borrowed until poll returns the
// ticket. When full: write answers kBusy (queue_full) past write_queue_bytes, and the log drops what was used
// least recently, leaf first, to make room; reclaiming the room is a second step: the sealed segment with the
// fewest live bytes is emptied, its live blocks written again, at most clean_share of all writes; past that
// more is dropped instead. What cannot be placed is kRejected. Statuses, never exceptions, for what concerns
// a block; std::invalid_argument for misuse: unknown namespace, group out of range, spans of the wrong
// number.
//
// R7: the disk is prefix-closed by itself, so that everything on it can be served after a restart: a chained
// block is taken only when its parent is on disk, or was taken for writing before it. Blocks become visible
// in the order in which they were taken, so a parent never does after its child.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvarter/clock.h"
#include "kvarter/device.h"
#include "kvarter/index.h"

namespace kvarter {

// One shard's bytes in memory. REQUIRES: the address is a multiple of 4096, and the last page is wholly ours:
// whole pages are written and read. checksum: XXH3-64 of the `length` bytes; write believes it, and a wrong
// one makes the block Corrupt when it is read. read ignores it.
struct Span {
  std::byte* address = nullptr;
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;
};

// Why a block was not stored, not loaded, or dropped. Every block adds to exactly one of them (R6).
enum class DiskReason : std::uint8_t {
  kNone = 0,
  // write: not needed, refused, or failed
  kAlreadyResident,
  kAlreadyInFlight,
  kNoParent,
  kTooLarge,  // for a segment
  kQueueFull,
  kNoSpace,  // nothing can be dropped, or the disk is full and has no segment
  kNamespaceClosed,
  kWriteFailed,
  kShutDown,
  // resident: dropped
  kEvicted,
  kRemoved,
  kInvalidated,
  kCorrupt,
  kReadFailed,
  kOrphaned,  // an ancestor was dropped, or was not found by recovery
  kUnsynced,  // the device refused to make it durable
  // read: not loaded. kCorrupt, kReadFailed and kShutDown count here, too
  kNotFound,
  kWrongLength,
  kTimedOut,
  kCount
};
const char* name(DiskReason reason) noexcept;

struct DiskLedger {
  // Bytes; payload counts in whole pages. capacity is the sum of the others (R4). While the disk does not
  // grow, it is what the files have. reserved: being written. overhead: manifest, headers, indexes, the rest
  // of sealed segments, segments the device spoiled, and what is less than a segment.
  std::uint64_t capacity = 0, free = 0, reserved = 0, leased = 0, resident = 0, dead = 0, overhead = 0;
  bool operator==(const DiskLedger&) const = default;
};

// Blocks and bytes since start, beside what is there now.
struct DiskCounters {
  std::uint64_t offered = 0;  // = stored + queued + the write reasons
  std::uint64_t stored = 0;   // stored + recovered = resident_blocks + the dropped reasons
  std::uint64_t recovered = 0;
  std::uint64_t queued = 0, resident_blocks = 0;
  std::uint64_t asked = 0;  // = loaded + loading + the sum of not_loaded
  std::uint64_t loaded = 0, loading = 0;
  std::uint64_t stored_bytes = 0, loaded_bytes = 0, reinserted_bytes = 0,
                device_bytes = 0;  // device: written
  std::uint64_t queued_bytes = 0;
  // Of the last block that can be found, and of the last one that a crash leaves; what lies between them, in
  // bytes of the device. 0 when all is durable.
  std::uint64_t last_sequence = 0, durable_sequence = 0, undurable_bytes = 0;
  std::uint64_t segments = 0, bad_segments = 0, cleaned_segments = 0, syncs = 0, io_errors = 0;
  std::uint64_t reasons[static_cast<int>(DiskReason::kCount)] = {};     // not stored, or dropped
  std::uint64_t not_loaded[static_cast<int>(DiskReason::kCount)] = {};  // asked for, and not loaded
  // Bytes the device wrote for each byte stored; 0 before the first.
  double write_amplification() const {
    return stored_bytes ? static_cast<double>(device_bytes) / static_cast<double>(stored_bytes) : 0;
  }
};

using DiskTicket = std::uint64_t;

// A finished ticket: one status and reason for each block, in the order given. write: kOk: found from now on;
// kBusy; kRejected; kClosed. `sequence`, of each kOk block of a write: it survives a crash once
// durable_sequence() has reached it. read: kOk; kNotFound: it was never there, was dropped, or the device
// failed (then it is dropped); kCorrupt: dropped with its descendants; kTimedOut; kRejected (wrong_length);
// kClosed. `checksums`: of a read, XXH3-64 of each shard of each block as verified, 0 where it is not kOk. A
// flush or an invalidation has one status and no block.
struct DiskDone {
  DiskTicket ticket = 0;
  std::vector<Status> statuses;
  std::vector<DiskReason> reasons;
  std::vector<std::uint64_t> sequences;
  std::vector<std::uint64_t> checksums;
};

// A block that was there and is no more.
struct DiskDropped {
  Key key;
  DiskReason reason = DiskReason::kNone;
};

class DiskLog {
 public:
  struct Options {
    std::uint64_t capacity = 0;                // bytes, of everything: what du says
    std::uint64_t segment_bytes = 256u << 20;  // of a new directory; an old one keeps its own
    unsigned queue_depth = 8;
    std::uint64_t write_queue_bytes = 256u << 20;
    std::uint32_t max_tickets = 1u << 16;  // not yet returned by poll
    double live_share = 0.85;              // of the room, that may be live when room has to be made
    double clean_share = 0.25;             // of writes, that may be blocks written again
    std::uint64_t reserve_bytes = 0;       // of the file system, that stay free
    std::uint64_t max_index_bytes = 0;     // of memory; 0: no limit
    std::uint64_t block_bytes =
        64u << 10;  // the smallest usual block: what max_index_bytes is checked against
    std::uint64_t sync_bytes = 256u << 20;  // a sync follows at the latest after so many bytes,
    std::uint64_t sync_ns = 1'000'000'000;  // or so long after a write
    bool sparse = false;                    // segments without their bytes allocated; for benches alone
    bool background = true;                 // false: nothing moves but in step(), for tests
    std::uint32_t max_dropped = 0;          // names that dropped() keeps until it is called
    // The tier above, if it is an index: among blocks last used at the same time those that it has go first.
    const Index* above = nullptr;
  };
  // Memory of the index for one block, as max_index_bytes counts it.
  static constexpr std::uint64_t kIndexBytesPerBlock = 192;

  // Recovers what is there: reads the indexes of sealed segments, and verifies the payloads of the others.
  // Throws std::invalid_argument for a capacity below two segments, or whose index would not fit;
  // std::runtime_error for a directory that is another process's, is not a log's, or is of a newer format,
  // which it leaves untouched, and when the device fails. REQUIRES: the clock, and the index
  // above, outlive the log.
  DiskLog(const Options& options, std::unique_ptr<Device> device, const Clock& clock);
  // Waits for what is in flight, and seals the last segment. What is queued is not written: flush first.
  ~DiskLog();

  // --- namespaces
  // The same digest gives the same number until it is invalidated. Its blocks of earlier runs are there at
  // once. `above`: its number in the index above, of which the last one given counts.
  std::uint32_t open_namespace(const Digest& digest, std::span<const GroupShape> groups,
                               std::optional<std::uint32_t> above = {});
  // From now on nothing of it is served or stored. The ticket is kOk when no crash can bring anything back.
  DiskTicket invalidate(std::uint32_t ns);

  // --- finding: in memory. A hit may be gone at the read, which says so.
  // The e in [from, limit] up to which all blocks of a chained group from `from` on are on disk: `from` when
  // that one is not. O(log) look-ups.
  std::uint64_t leading(const Chain& chain, std::uint32_t group, std::uint64_t from,
                        std::uint64_t limit) const;
  // As in Index.
  std::uint64_t last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                         std::uint64_t step) const;
  bool contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const;
  // Changes whenever a look-up may answer differently.
  std::uint64_t version() const;
  // The device has failed and is left alone for a while: what is written meanwhile may be kRejected.
  bool resting() const;

  // --- hints
  // The range was hit above: it, and its ancestors, were used now. Blocks that are not here are passed over.
  void touch(const Chain& chain, const Range& range);

  // --- moving. Spans: of all shards of each block together, in the order of the ranges and their blocks, as
  // Index::slots gives them. 0, and nothing taken, when max_tickets are out.
  DiskTicket write(const Chain& chain, std::span<const Range> ranges, std::span<const Span> spans);
  // `deadline`, of the clock: a block not read by then is kTimedOut. One that the device is reading at that
  // moment keeps its slot, and its ticket, until the device is done with it: expired() says that the request
  // can be given up already. A read leases its entry: neither it nor its segment goes meanwhile, unless it is
  // invalidated, removed or found corrupt; then it is kNotFound.
  DiskTicket read(const Chain& chain, std::span<const Range> ranges, std::span<const Span> spans,
                  std::uint64_t deadline);
  // True from the deadline of a read until poll returns it.
  bool expired(DiskTicket ticket) const;
  // Forgets the blocks, and their descendants. A crash may bring them back, an invalidation never.
  void remove(const Chain& chain, const Range& range);
  // kOk when everything taken before is written or refused, and durable.
  DiskTicket flush();
  // What is done since the last call; never waits. wait: until there is something, at most so long; says
  // whether.
  std::vector<DiskDone> poll();
  bool wait(std::chrono::nanoseconds timeout);
  // What went since the last call, in its order; of more than max_dropped only the latest.
  std::vector<DiskDropped> dropped();
  // Every block written with at most this sequence number survives a crash.
  std::uint64_t durable_sequence() const;

  // --- account
  DiskLedger ledger() const;
  DiskCounters counters() const;
  std::vector<std::string> audit() const;
  std::string device() const;  // its name, and its reason in parentheses
  std::uint64_t segment_bytes() const;

  // Without a thread: does what can be done now, and says whether that was anything.
  bool step();

  struct Impl;  // only csrc/disk sees inside

 private:
  std::unique_ptr<Impl> impl_;
};

// What lies in a directory, read without its lock and without changing anything. Throws as the constructor
// does.
struct DiskReport {
  std::uint32_t version = 0;
  std::uint64_t segment_bytes = 0, file_bytes = 0;
  int owner = 0;  // the pid of the process that has it open; 0: none
  std::uint64_t segments = 0, sealed = 0, unsealed = 0, empty = 0, damaged = 0;
  std::uint64_t namespaces = 0, invalidated = 0;
  std::uint64_t blocks = 0, bytes = 0;      // reachable, each key once
  std::uint64_t verified = 0, corrupt = 0;  // disk_verify alone
  std::vector<std::string> findings;
};
DiskReport disk_inspect(const std::string& path);
// Reads every payload as well.
DiskReport disk_verify(const std::string& path);
// Removes the log's files, and nothing else; with `shred` after overwriting them. Returns their bytes. Throws
// std::runtime_error when a process has it open.
std::uint64_t disk_clear(const std::string& path, bool shred);

}  // namespace kvarter
