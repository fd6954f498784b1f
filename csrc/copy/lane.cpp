#include "copy/lane.h"

#include <algorithm>

#include "kvarter/hash.h"

namespace kvarter {

namespace {

constexpr std::size_t kChunkBytes = 4 << 20;  // long enough for the bus, short enough to overlap with hashing

std::uint64_t checksum(const Copy& copy, const Blocks& blocks) {
  return xxh3_64({reinterpret_cast<const std::uint8_t*>(copy.slot), blocks.bytes()});
}

}  // namespace

void Chunks::push(Chunk chunk) {
  const std::lock_guard lock(mutex_);
  chunks_.push_back(std::move(chunk));
  changed_.notify_one();
}

std::optional<Chunk> Chunks::pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !chunks_.empty(); });
  if (chunks_.empty()) return {};
  Chunk chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return chunk;
}

void Chunks::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

Lane::Lane(std::shared_ptr<const Context> context, Batches& batches, const LockedMemory& locked,
           Direction direction, unsigned threads, std::int64_t kernel_below)
    : context_(std::move(context)),
      batches_(batches),
      direction_(direction),
      events_(context_),
      stream_(context_),
      mover_(context_, locked, direction, kernel_below) {
  const auto start = [this](std::vector<std::thread>& stage, unsigned count, auto work) {
    for (unsigned i = 0; i < count; ++i)
      stage.emplace_back([this, work] {
        const Current current(*context_, true);
        work();
      });
  };
  // Whoever hashes comes in numbers. A gather is issued in the order of its batches, by one.
  const bool gather = direction == Direction::kGather;
  start(issuing_, gather ? 1 : threads, [this] {
    while (auto chunk = to_issue_.pop()) issue(std::move(*chunk));
  });
  start(ending_, gather ? threads : 1, [this] {
    while (auto chunk = to_end_.pop()) end(*chunk);
  });
}

Lane::~Lane() {
  to_issue_.close();
  for (std::thread& thread : issuing_) thread.join();
  to_end_.close();
  for (std::thread& thread : ending_) thread.join();
}

std::shared_ptr<Job> Lane::submit(std::shared_ptr<Batch> batch) {
  auto job = std::make_shared<Job>();
  job->batch = batch;
  job->ready = events_.take();
  if (job->ready &&
      context_->driver().event_record(job->ready.get(), reinterpret_cast<Handle>(batch->compute)) != 0)
    job->ready = nullptr;
  const std::size_t each = std::max<std::size_t>(kChunkBytes / batch->blocks->bytes(), 1);
  const std::size_t count = batch->copies.size();
  job->unissued = job->unended = (count + each - 1) / each;
  if (count == 0) batches_.finish(*batch);
  for (std::size_t first = 0; first < count; first += each) {
    Chunk chunk{job, {}, nullptr, false};
    for (std::size_t i = first; i < std::min(first + each, count); ++i) chunk.which.push_back(i);
    to_issue_.push(std::move(chunk));
  }
  return job;
}

// Leaves in the chunk what is to be copied, and says of the rest why it is not.
void Lane::select(Chunk& chunk) {
  Batch& batch = *chunk.job->batch;
  std::erase_if(chunk.which, [&](std::size_t i) {
    const Copy& copy = batch.copies[i];
    Result& result = batch.results[i];
    if (batches_.closed(batch.epoch)) return true;
    if (copy.engine_block >= batch.blocks->num_blocks()) {
      result.status = Status::kRejected;
      return true;
    }
    if (direction_ == Direction::kGather || !copy.verify) return false;
    result.checksum = checksum(copy, *batch.blocks);
    if (result.checksum == copy.checksum) return false;
    result.status = Status::kCorrupt;
    return true;
  });
}

void Lane::put_on_stream(Chunk& chunk) {
  const Driver& driver = context_->driver();
  const Batch& batch = *chunk.job->batch;
  std::vector<Copy> copies;
  for (const std::size_t i : chunk.which) copies.push_back(batch.copies[i]);
  if (!chunk.job->ready || driver.stream_wait(stream_.handle(), chunk.job->ready.get(), 0) != 0) {
    chunk.failed = true;  // nothing would keep it from running too early
    return;
  }
  // Whatever an error left on the stream has an event behind it too, so that nobody takes it for ended early.
  chunk.failed = mover_.move(batch.blocks, copies, stream_.handle()) != 0;
  chunk.done = events_.take();
  if (chunk.done && driver.event_record(chunk.done.get(), stream_.handle()) == 0) return;
  chunk.done = nullptr;
  chunk.failed = true;
  driver.stream_synchronize(stream_.handle());
}

void Lane::issue(Chunk chunk) {
  select(chunk);
  {
    // What is issued and the event behind it are one, and events are told in the stream's order. An order
    // need not wait for a driver that takes its time.
    const std::lock_guard on_stream(stream_mutex_);
    if (batches_.closed(chunk.job->batch->epoch)) {
      for (const std::size_t i : chunk.which) chunk.job->batch->results[i] = {};
      chunk.which.clear();
    }
    if (!chunk.which.empty()) put_on_stream(chunk);
    const std::lock_guard lock(mutex_);
    if (chunk.done) chunk.job->last = chunk.done;
    chunk.job->broken |= chunk.failed;
    --chunk.job->unissued;
    issued_.notify_all();
  }
  // Nothing to wait for: not behind others that wait for the device either.
  if (chunk.done)
    to_end_.push(std::move(chunk));
  else
    end(chunk);
}

void Lane::end(Chunk& chunk) {
  Batch& batch = *chunk.job->batch;
  if (chunk.done && context_->driver().event_synchronize(chunk.done.get()) != 0) {
    chunk.failed = true;
    context_->driver().stream_synchronize(stream_.handle());  // what failed may have been the waiting alone
  }
  if (chunk.failed) ++errors_;
  for (const std::size_t i : chunk.which) {
    Result& result = batch.results[i];
    result.status = chunk.failed ? Status::kTimedOut : Status::kOk;
    if (chunk.failed)
      result.checksum = 0;
    else if (direction_ == Direction::kGather && batch.copies[i].verify)
      result.checksum = checksum(batch.copies[i], *batch.blocks);
  }
  if (--chunk.job->unended == 0) batches_.finish(batch);
}

std::optional<bool> Lane::order(Job& job, Handle compute, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!issued_.wait_for(lock, timeout, [&] { return job.unissued == 0; })) return false;
  if (job.broken) return {};
  if (!job.last) return true;
  return context_->driver().stream_wait(compute, job.last.get(), 0) == 0;
}

void Lane::measure() {
  const std::lock_guard lock(stream_mutex_);
  mover_.measure(stream_.handle());
}

}  // namespace kvarter
