#pragma once
// Moves blocks between an engine's memory and slots of the pool. A copy engine takes a batch of blocks,
// answers with a ticket, and is polled or waited for. The caller never knows which member does the work:
// `host` (memory that the CPU addresses), `cuda` (memory of a device, through its driver) or `faulty`
// (another member that delays, fails and corrupts on command, for tests).
//
// A device runs what it is told in streams, each in order. A batch names the stream that the engine computes
// on: nothing of the batch touches engine memory before what was put there up to submit() has run. What is
// put there later knows nothing of the batch unless order() says so. Members without streams take the work of
// the caller's thread for the stream.
//
// Every method may be called from any thread at any time. A batch is accepted always: the queue is not
// bounded, because what may be under way is bounded by the leases that the caller holds on its slots. The
// destructor waits for the blocks being copied; blocks not begun are never copied.
//
// Addresses are trusted: whoever makes a Blocks or a Copy vouches that they stay mapped, and that nobody else
// writes the destination, until the batch is done. A source that changes meanwhile gives a checksum that will
// not verify. Engine memory that the engine has unmapped (sleep) must not be named by a batch that is not
// done: fence first. Afterwards new Blocks say where it is now; what prepare() was told of stays prepared.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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
// Corrupt: a scatter's bytes do not have their checksum. What the engine block holds is undefined (`host` has
//   written them, `cuda` looks before it writes), and the caller must not let anyone read it.
// Rejected: no such engine block; nothing was written.
// Closed: fenced or shut down before this block was begun; nothing was written.
// TimedOut: the device's driver answered with an error. What was written is undefined; nothing is written any
//   more. Also from `faulty`.
struct Result {
  Status status = Status::kClosed;
  std::uint64_t checksum = 0;  // XXH3-64 of the slot's bytes; 0 unless they were copied with `verify`
};

using Ticket = std::uint64_t;

// A stream as the device's driver names it (CUstream, hipStream_t); 0 is its default stream.
using Stream = std::uintptr_t;

// What an engine has done so far, and what it found out. All zero for members without a device.
struct CopyAccount {
  std::uint64_t locked_bytes = 0;   // of prepare(): page-locked now
  std::uint64_t refused_bytes = 0;  // of prepare(): the driver would not lock them
  std::uint64_t batched_bytes = 0;  // moved in batches of the driver's,
  std::uint64_t single_bytes = 0;   // by one call for each run,
  std::uint64_t kernel_bytes = 0;   // by our kernel
  std::uint64_t gather_kernel = 0;  // runs shorter than this many bytes go by kernel; 0: none do
  std::uint64_t scatter_kernel = 0;
  std::uint64_t errors = 0;  // of the driver, while copying
};

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Copies every block of the batch; a failure stops none of the others. Batches of one epoch may overlap and
  // overtake one another where the member has several threads or streams. `compute` is the engine's stream.
  virtual Ticket submit(Direction direction, std::shared_ptr<const Blocks> blocks, std::vector<Copy> copies,
                        std::uint64_t epoch, Stream compute = 0) = 0;

  // Whatever is put on `compute` after this returned true finds the batch done: a gathered block may be
  // overwritten, a scattered one read if it proves to be Ok. Waits as little as the member can, at most
  // `timeout`: `cuda` until the batch has been given to the device, others until it is done. False: it was
  // not in time, and nothing is ordered.
  virtual bool order(Ticket ticket, Stream compute, std::chrono::nanoseconds timeout) = 0;

  // Slots will lie in `memory`; `keep` keeps it mapped for as long as the engine needs that. `cuda`
  // page-locks it for its device, once for a process however many ask, and lets go when the last of them
  // ends. Empty when all is well, else a sentence that says what was refused: slots there are copied too,
  // more slowly.
  virtual std::string prepare(std::span<std::byte> memory, std::shared_ptr<const void> keep) = 0;

  virtual CopyAccount account() const { return {}; }

  // True when the batch is done. Never waits.
  // poll, wait, order and take throw std::invalid_argument for a ticket that never was or has been taken.
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

struct DeviceOptions {
  int device = 0;        // as the driver counts: the engine's ordinal
  std::string driver;    // its shared library; empty: libcuda.so.1
  unsigned threads = 2;  // that compute checksums, in each direction
  // Runs shorter than this many bytes are moved by our kernel; 0: none are; -1: as measured by the first
  // prepare(), which takes some tens of milliseconds.
  std::int64_t kernel_below = -1;
};

// Copies between one device's memory and slots by its driver, which is loaded when this is called: nothing of
// it is needed to build or to start. Gathers and scatters have a stream each, of the lowest priority, and
// threads that issue copies and compute checksums of what arrived; submit() records an event and returns.
// Throws std::runtime_error, saying what was found, without a driver, such a device, or a stream on it;
// std::invalid_argument for 0 threads.
std::shared_ptr<CopyEngine> make_cuda_copy_engine(const DeviceOptions& options);

// What is found where `driver` (empty: libcuda.so.1) is looked for.
struct DriverFound {
  std::string missing;  // empty, or why there is none
  int version = 0;      // 12080 is 12.8
  bool batches = false;
  std::vector<std::string> devices;  // their names
};
DriverFound find_cuda_driver(const std::string& driver);

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
