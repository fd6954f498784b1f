#pragma once
// One direction of a device's copy engine. Batches are cut into chunks, and each chunk passes two stages with
// threads of their own: it is *issued* (a scatter's slots are verified first) and, once the device has done
// it, *ended* (a gather's slots are given their checksums). So a chunk is copied while another is hashed, and
// nobody waits for a device but the threads of the second stage.
#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>

#include "copy/batches.h"
#include "copy/mover.h"

namespace kvarter {

struct Job {
  std::shared_ptr<Batch> batch;
  std::shared_ptr<void> ready;  // on the engine's stream, where the batch was submitted; null: it failed
  // Under the lane's mutex.
  std::shared_ptr<void> last;           // on our stream, behind what was issued last
  std::size_t unissued = 0;             // chunks
  bool broken = false;                  // the driver has failed it, and no event says when it ends
  std::atomic<std::size_t> unended{0};  // chunks
};

struct Chunk {
  std::shared_ptr<Job> job;
  std::vector<std::size_t> which;  // of the batch's copies
  std::shared_ptr<void> done;      // behind its copies; null: nothing was issued
  bool failed = false;
};

class Chunks {
 public:
  void push(Chunk chunk);
  // Waits. Nothing once it is closed and empty.
  std::optional<Chunk> pop();
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Chunk> chunks_;
  bool closed_ = false;
};

class Lane {
 public:
  // threads: that compute checksums. REQUIRES: the context is current; batches and locked outlive this.
  Lane(std::shared_ptr<const Context> context, Batches& batches, const LockedMemory& locked,
       Direction direction, unsigned threads, std::int64_t kernel_below);
  // Ends what is issued; REQUIRES: batches are stopped. The context is current.
  ~Lane();

  // The batch is running (Batches::begin). REQUIRES: the context is current.
  std::shared_ptr<Job> submit(std::shared_ptr<Batch> batch);
  // CopyEngine::order of a job: true, false, or nothing where only the batch's end will tell.
  std::optional<bool> order(Job& job, Handle compute, std::chrono::nanoseconds timeout);
  void measure();

  const Mover& mover() const { return mover_; }
  std::uint64_t errors() const { return errors_; }

 private:
  void issue(Chunk chunk);
  void end(Chunk& chunk);
  void put_on_stream(Chunk& chunk);
  void select(Chunk& chunk);

  std::shared_ptr<const Context> context_;
  Batches& batches_;
  const Direction direction_;
  Events events_;
  OwnStream stream_;
  std::mutex stream_mutex_;  // of the stream and the mover; taken before the other
  std::mutex mutex_;         // of what is known of jobs
  std::condition_variable issued_;
  Mover mover_;
  std::atomic<std::uint64_t> errors_{0};
  Chunks to_issue_, to_end_;
  std::vector<std::thread> issuing_, ending_;
};

}  // namespace kvarter
