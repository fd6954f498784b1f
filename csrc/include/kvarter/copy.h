#pragma once
// Moves blocks between an engine's memory and slots of the pool. A copy engine takes a batch of blocks,
// answers with a ticket, and is polled or waited for. The caller never knows which member does the work:
// `host` (memory that the CPU addresses) or `faulty` (another member that delays, fails and corrupts on
// command, for tests).
//
// Every method may be called from any thread at any time. A batch is accepted always: the queue is not
// bounded, because what may be under way is bounded by the leases that the caller holds on its slots. The
// destructor waits for the blocks being copied; blocks not begun are never copied.
//
// Addresses are trusted: whoever makes a Blocks or a Copy vouches that they stay mapped, and that nobody else
// writes the destination, until the batch is done. A source that changes meanwhile gives a checksum that will
// not verify.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvarter/status.h"

namespace kvarter {

// One tensor of the engine. Block b is `segments` runs of `segment_bytes`, the s-th at
// base + b * block_stride + s * segment_stride. What lies between them is padding and is never read or
// written.
struct Region {
  std::byte* base = nullptr;
  std::size_t block_stride = 0;
  std::size_t segment_bytes = 0;
  std::size_t segments = 0;
  std::size_t segment_stride = 0;
};

// The engine's blocks of one cache group. A slot holds one block: the segments of all regions, one after the
// other. Immutable, so any number of batches share one.
class Blocks {
 public:
  // Throws std::invalid_argument for no blocks, no regions, an empty region, and strides at which segments or
  // blocks would overlap.
  Blocks(const std::vector<Region>& regions, std::size_t num_blocks);

  struct Segment {
    std::byte* base;
    std::size_t block_stride;
    std::size_t bytes;
  };

  std::size_t num_blocks() const { return num_blocks_; }
  // Of one block, without padding: what a slot must have room for.
  std::size_t bytes() const { return bytes_; }
  // In the order in which they lie in a slot; neighbours without padding between them are one.
  const std::vector<Segment>& segments() const { return segments_; }
  // True when every segment is a multiple of XXH3's 64-byte stripe, so that the checksum rides along with the
  // copy.
  bool whole_stripes() const { return whole_stripes_; }

 private:
  std::size_t num_blocks_;
  std::size_t bytes_ = 0;
  bool whole_stripes_ = true;
  std::vector<Segment> segments_;
};

enum class Direction : std::uint8_t {
  kGather,   // engine block -> slot
  kScatter,  // slot -> engine block
};

struct Copy {
  std::uint64_t engine_block = 0;
  std::byte* slot = nullptr;
  std::uint64_t checksum = 0;  // scatter: the XXH3-64 that the slot's bytes must have
  bool verify = true;          // gather: compute the checksum; scatter: compute and compare it
};

// Ok: copied, and verified where asked.
// Corrupt: a scatter's bytes do not have their checksum. They have been written: what the engine block holds
// is
//   undefined, and the caller must not let anyone read it.
// Rejected: no such engine block; nothing was written.
// Closed: fenced or shut down before this block was begun; nothing was written.
// TimedOut: only from `faulty`.
struct Result {
  Status status = Status::kClosed;
  std::uint64_t checksum = 0;  // XXH3-64 of the slot's bytes; 0 unless they were copied with `verify`
};

using Ticket = std::uint64_t;

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Copies every block of the batch, in order; a failure stops none of the others. Batches of one epoch may
  // overlap and overtake one another where the member has several threads.
  virtual Ticket submit(Direction direction, std::shared_ptr<const Blocks> blocks, std::vector<Copy> copies,
                        std::uint64_t epoch) = 0;

  // True when the batch is done. Never waits.
  // poll, wait and take throw std::invalid_argument for a ticket that never was or has been taken.
  virtual bool poll(Ticket ticket) = 0;
  // Waits until the batch is done, at most `timeout`, and says whether it is.
  virtual bool wait(Ticket ticket, std::chrono::nanoseconds timeout) = 0;
  // The results, one per Copy in the batch's order. Ends the ticket; every ticket must be taken, or it stays
  // for ever. REQUIRES: the batch is done; throws std::invalid_argument otherwise.
  virtual std::vector<Result> take(Ticket ticket) = 0;

  // From now on no block of a batch with epoch <= `epoch` is begun: those are answered Closed, whether they
  // are queued or yet to be submitted. Returns when none is being copied any more; then no slot and no engine
  // block of these epochs is touched again. REQUIRES: epoch < 2^64 - 1; throws std::invalid_argument
  // otherwise.
  virtual void fence(std::uint64_t epoch) = 0;

  virtual std::string name() const = 0;
};

// Copies with the CPU. With 0 threads submit() copies, in the caller's thread, and the batch is done when it
// returns. With more, batches queue, first in first out, and one thread keeps them in order. The kernel is
// the fastest this CPU has, or what KVARTER_COPY (`scalar`, `avx2`, `avx512`) names; throws
// std::runtime_error for a name it cannot run.
std::shared_ptr<CopyEngine> make_host_copy_engine(unsigned threads);

// What `faulty` does to the blocks that pass through, counted from its first. A block that fails is not
// copied. Flipping changes one byte of the *slot*, after a gather's checksum and before a scatter, as memory
// that rots would.
struct Faults {
  std::chrono::nanoseconds delay{0};  // before every block
  std::uint64_t fail_every = 0;       // every n-th block gets fail_status; 0: none
  std::uint64_t flip_every = 0;       // 0: none
  Status fail_status = Status::kTimedOut;
  std::uint64_t seed = 0;  // chooses the byte that flips
};

// Passes blocks on to `inner` one by one, from a thread of its own: submit() returns at once.
// Throws std::invalid_argument for no inner engine, a negative delay, and a fail_status other than TimedOut
// and Rejected.
std::shared_ptr<CopyEngine> make_faulty_copy_engine(std::shared_ptr<CopyEngine> inner, const Faults& faults);

// Name of the kernel in use, and of those this CPU can run, slowest first.
std::string copy_kernel_name();
std::vector<std::string> copy_kernel_names();

}  // namespace kvarter
