#pragma once
// The seam under the disk log: a directory of files, and batches of vectored reads, writes and syncs.
//
// Members: `io_uring` (raw system calls), `threads` (a pool of preadv, pwritev and fdatasync), `noop` (keeps
// nothing), `faulty` (a disk in memory that fails, delays, shortens, and crashes on command). Both real ones
// open files with O_DIRECT where the file system has it.
//
// Threads: one, the log's, calls everything; wake() alone may come from any thread. submit never waits for
// the device. When full: submit takes everything; the log keeps at most the depth it was opened with in
// flight. Errors are values: a negative errno. What concerns the directory itself throws, at construction and
// in lock.

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvarter {

enum class IoOp : std::uint8_t { kRead, kWrite, kSync };

// One operation on an open file. The vectors and what they point at are borrowed until it has been reaped.
// REQUIRES: addresses, lengths and offset are multiples of 4096; kSync looks at `file` alone, and makes
// durable what had been reaped before it was submitted.
struct Io {
  IoOp op = IoOp::kRead;
  int file = -1;
  std::uint64_t offset = 0;
  const iovec* vectors = nullptr;
  unsigned count = 0;
  std::uint64_t tag = 0;
};

// result: bytes transferred, which may be fewer than asked for; 0 of a kSync; or a negative errno.
struct IoDone {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Why it is not the member that was asked for, or not with O_DIRECT; empty otherwise.
  virtual std::string reason() const { return {}; }
  // For messages.
  virtual std::string path() const = 0;

  // --- files. They block, a few milliseconds at most; only growth, start and stop call them.
  virtual std::vector<std::string> list() = 0;
  // Makes this process the owner of the directory until the device is destroyed. Throws std::runtime_error,
  // with the owner's pid, when there is one.
  virtual void lock() = 0;
  virtual int open(const std::string& name) = 0;
  // A new file of `bytes`, all of them allocated unless `sparse`. A failure leaves no file behind.
  virtual int create(const std::string& name, std::uint64_t bytes, bool sparse) = 0;
  virtual void close(int file) = 0;
  virtual std::int64_t size(int file) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int remove(const std::string& name) = 0;
  // Makes creations, renames and removals durable.
  virtual int sync_directory() = 0;
  // What the file system would still give us.
  virtual std::uint64_t free_bytes() = 0;

  // --- i/o
  virtual void submit(std::span<const Io> batch) = 0;
  // Appends what is done, in any order. Waits, at most `wait`, for the first one or for wake().
  virtual void reap(std::vector<IoDone>& done, std::chrono::nanoseconds wait) = 0;
  virtual void wake() = 0;
};

// kind: "io_uring", "threads", "noop", or "auto": the first where the kernel allows it. The directory is made
// (0700) when it is not there. Throws std::system_error when the directory cannot be opened,
// std::runtime_error for io_uring where the kernel refuses it, std::invalid_argument for another kind.
std::unique_ptr<Device> make_device(const std::string& path, const std::string& kind, unsigned depth);

// Accepts everything at once and keeps nothing: what the log costs without a device. What is read from it
// fails its check.
std::unique_ptr<Device> make_noop_device();

// The medium below `faulty`: it outlives the devices on it, as a disk outlives a process. Writes lie in a
// cache until they are synced; so do creations, renames and removals.
//
// Threads: any; one mutex.
class FaultyDisk {
 public:
  struct Faults {
    std::uint64_t fail_reads_every = 0, fail_writes_every = 0, fail_syncs_every = 0;  // 0: none
    std::uint64_t short_every = 0;  // every n-th transfer of more than a page stops after a part of its pages
    std::uint64_t hold = 0;         // an operation is done after so many reaps
    std::uint64_t bytes = ~std::uint64_t{0};  // creating past them is ENOSPC
    std::uint64_t crash_at = 0;  // at the n-th write, sync, rename, creation or removal from now; 0: never
  };
  explicit FaultyDisk(std::uint64_t seed = 0);
  ~FaultyDisk();

  void set(const Faults& faults);
  // Writes, syncs, renames, creations and removals so far: the points at which it can crash.
  std::uint64_t points() const;
  // Whether crash_at has been reached. Everything since then has failed, and left no trace.
  bool crashed() const;
  // Power is lost. Of what was not synced, some 512-byte sectors arrive, in any order; of what was done to
  // the directory, the first so many. Devices opened before are dead. Faults are reset.
  void crash(std::uint64_t seed);
  // The file as a reader sees it, and the same from elsewhere: for tests that damage it. Durable at once.
  std::vector<std::string> files() const;
  std::vector<std::byte> content(const std::string& name) const;
  void put(const std::string& name, std::vector<std::byte> content);
  void erase(const std::string& name);

  struct Impl;

 private:
  friend std::unique_ptr<Device> make_faulty_device(std::shared_ptr<FaultyDisk> disk);
  std::unique_ptr<Impl> impl_;
};

// Operations run when they are reaped, in an order drawn from the disk's seed.
std::unique_ptr<Device> make_faulty_device(std::shared_ptr<FaultyDisk> disk);

}  // namespace kvarter
