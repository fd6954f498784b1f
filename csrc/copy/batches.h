#pragma once
// The bookkeeping that copy engines share: tickets, a queue for threads that copy, and fences.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "kvarter/copy.h"

namespace kvarter {

struct Batch {
  Direction direction;
  std::shared_ptr<const Blocks> blocks;
  std::vector<Copy> copies;
  std::uint64_t epoch;
  Stream compute;
  std::vector<Result> results;  // starts as all Closed
  bool done = false;
};

class Batches {
 public:
  // Queues a batch for next().
  Ticket add(std::shared_ptr<Batch> batch);
  // Takes a batch as running already; finish() must follow.
  Ticket begin(std::shared_ptr<Batch> batch);
  // The next batch to copy, now running; null once stop() was called. Waits.
  std::shared_ptr<Batch> next();
  void finish(Batch& batch);

  // True when no further block of this epoch may be begun. Without a lock: asked before every block.
  bool closed(std::uint64_t epoch) const { return epoch < open_from_.load() || stopping_.load(); }
  // Sleeps for `delay`, or until `epoch` is closed.
  void sleep(std::chrono::nanoseconds delay, std::uint64_t epoch);

  bool poll(Ticket ticket);
  bool wait(Ticket ticket, std::chrono::nanoseconds timeout);
  std::vector<Result> take(Ticket ticket);

  // The two halves of a fence: no further block, and none under way.
  void close(std::uint64_t epoch);
  void drain(std::uint64_t epoch);
  // Ends next() for all threads and closes every epoch.
  void stop();

 private:
  Ticket record(std::shared_ptr<Batch> batch);
  Batch& find(Ticket ticket);
  void finish_locked(Batch& batch);

  std::mutex mutex_;
  std::condition_variable work_;     // the queue grew, or stop
  std::condition_variable changed_;  // a batch is done, or an epoch closed
  std::unordered_map<Ticket, std::shared_ptr<Batch>> batches_;
  std::deque<std::shared_ptr<Batch>> queue_;
  std::multiset<std::uint64_t> running_;  // epochs
  std::atomic<std::uint64_t> open_from_{0};
  std::atomic<bool> stopping_{false};
  Ticket last_ = 0;
};

}  // namespace kvarter
