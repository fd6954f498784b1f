#pragma once
// What the log keeps of keys, blocks, segments, tickets and operations. Plain records: whoever holds the
// log's mutex may change them.

#include <memory>
#include <utility>
#include <vector>

#include "disk/manifest.h"
#include "index/along.h"
#include "kvarter/disk.h"

namespace kvarter::disk {

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};
inline constexpr std::uint64_t kGroupBytes = 2u << 20;  // of payload in one write, or an eighth of a segment
inline constexpr std::size_t kGroupVectors = 512;       // below IOV_MAX
inline constexpr std::uint64_t kReadBytes = 1u << 20;   // neighbours are read together up to this
inline constexpr std::uint64_t kFixedBytes = kManifestBytes + 2 * kPage;  // the manifest, lock and directory
inline constexpr std::uint64_t kRetry = 5'000'000'000;  // ns: how often the file system is asked again

struct Space {  // a namespace
  Digest digest{};
  std::vector<GroupShape> groups;  // empty until it is opened in this process
  bool open = false, closed = false;
  std::uint32_t above = kNone;  // its number in the index above
};

struct Layout {  // the shards' lengths, shared by all blocks that have the same
  std::vector<std::uint64_t> lengths;
  std::uint64_t bytes = 0;  // in whole pages
};

enum class RowState : std::uint8_t { kFree, kQueued, kResident, kDoomed };  // doomed: queued, will be refused

struct Row {
  Digest digest;
  std::uint64_t checksum = 0, last_use = 0, sequence = 0;
  std::uint32_t ns = 0;
  std::uint16_t group = 0, sub = 0;
  std::uint32_t parent = kNone, child = kNone, next = kNone, before = kNone;
  std::uint32_t segment = kNone, page = 0;
  std::uint32_t layout = 0, depth = 0, generation = 0;
  std::uint32_t leases = 0;
  RowState state = RowState::kFree;
  DiskReason doom = DiskReason::kNone;
  bool chained = false, candidate = false, moving = false;
};

enum class SegmentState : std::uint8_t { kAbsent, kOpening, kNaming, kReady, kActive, kSealing, kSealed };

struct Segment {
  SegmentState state = SegmentState::kAbsent;
  int file = -1;
  std::uint64_t epoch = 0;
  std::uint64_t write_at = kPage;
  std::uint64_t live = 0, reserved = 0, dead = 0, overhead = 0,
                free = 0;  // bytes; their sum is the segment's
  std::uint64_t first_sequence = ~std::uint64_t{0}, last_sequence = 0, synced = 0, wait_durable = 0;
  std::uint64_t dirty_bytes = 0, dirty_since = 0;
  std::uint64_t planned_index = 0;        // bytes its index may need
  std::uint32_t groups = 0, readers = 0;  // in flight
  std::uint32_t blocks = 0;               // in `index`
  bool bad = false, syncing = false, fresh = false, submitted = false, hopeless = false;
  std::vector<std::uint32_t> rows;  // in the order of their offsets; a row may have left
  std::vector<std::byte> index;
};

struct Waiting {  // a ticket
  DiskDone done;
  std::vector<Span> spans;
  std::size_t left = 0;
  std::uint64_t deadline = ~std::uint64_t{0};
  bool read = false;
};

struct CleanBuffer {  // blocks read to be written again
  Aligned memory;
  std::vector<Span> spans;
};

struct WriteItem {  // ticket 0: a live block that moves
  std::uint32_t row, generation;
  DiskTicket ticket;
  std::uint32_t position;
  const Span* spans;
  std::uint64_t id;
  std::shared_ptr<CleanBuffer> keep{};  // of one that moves: what `spans` points into
};
struct ReadItem {
  std::uint32_t row, generation, segment;
  std::uint64_t offset;
  const Layout* layout;
  std::uint64_t checksum;
  DiskTicket ticket;
  std::uint32_t position, first_span;
  const Span* spans;
};

struct Op {  // on its way through the device
  enum class Kind : std::uint8_t {
    kGroup,
    kRead,
    kCleanRead,
    kHeader,
    kHeaderSync,
    kSeal,
    kSync,
    kManifest,
    kManifestSync
  };
  Kind kind = Kind::kRead;
  Io io;
  std::vector<iovec> vectors, rest;
  std::uint64_t expected = 0, moved = 0;
  int error = 0, stalls = 0;
  bool finished = false, data = false;
  std::uint32_t segment = kNone;
  std::vector<WriteItem> writes;
  std::vector<ReadItem> reads;
  std::vector<Status> verdicts;          // of reads
  std::vector<std::uint64_t> checksums;  // of reads, by shard
  std::shared_ptr<CleanBuffer> clean;    // what a cleaning read reads into
  std::vector<std::byte> index;          // of a group: its entries, cut at `cuts`
  std::vector<std::size_t> cuts;
  std::vector<std::uint64_t> sizes;  // of a group's blocks
  Aligned header;
  std::uint64_t header_bytes = 0;
  std::shared_ptr<std::byte[]> buffer;  // of a segment's index, of the manifest's slot
  bool cleaning = false;
  std::uint64_t sequence = 0;  // of a group: its first; of a sync: what it covers
};

}  // namespace kvarter::disk
