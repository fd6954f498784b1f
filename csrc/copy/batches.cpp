#include "copy/batches.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace kvarter {

Ticket Batches::record(std::shared_ptr<Batch> batch) {
  batch->results.resize(batch->copies.size());
  batches_.emplace(++last_, std::move(batch));
  return last_;
}

Ticket Batches::add(std::shared_ptr<Batch> batch) {
  const std::lock_guard lock(mutex_);
  const Ticket ticket = record(batch);
  if (closed(batch->epoch)) {
    finish_locked(*batch);
  } else {
    queue_.push_back(std::move(batch));
    work_.notify_one();
  }
  return ticket;
}

Ticket Batches::begin(std::shared_ptr<Batch> batch) {
  const std::lock_guard lock(mutex_);
  running_.insert(batch->epoch);
  return record(std::move(batch));
}

std::shared_ptr<Batch> Batches::next() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
  if (stopping_) return nullptr;
  auto batch = std::move(queue_.front());
  queue_.pop_front();
  running_.insert(batch->epoch);
  return batch;
}

void Batches::finish(Batch& batch) {
  const std::lock_guard lock(mutex_);
  running_.erase(running_.find(batch.epoch));
  finish_locked(batch);
}

void Batches::finish_locked(Batch& batch) {
  batch.done = true;
  changed_.notify_all();
}

void Batches::sleep(std::chrono::nanoseconds delay, std::uint64_t epoch) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, delay, [&] { return closed(epoch); });
}

Batch& Batches::find(Ticket ticket) {
  const auto found = batches_.find(ticket);
  if (found == batches_.end())
    throw std::invalid_argument("ticket " + std::to_string(ticket) +
                                " is unknown or was taken; the last is " + std::to_string(last_));
  return *found->second;
}

bool Batches::poll(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return find(ticket).done;
}

bool Batches::wait(Ticket ticket, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  find(ticket);
  const auto batch = batches_[ticket];  // another thread may take it meanwhile
  // A year is for ever, and a time point that far away does not overflow.
  timeout = std::min<std::chrono::nanoseconds>(timeout, std::chrono::hours(24 * 365));
  return changed_.wait_for(lock, timeout, [&] { return batch->done; });
}

std::vector<Result> Batches::take(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  Batch& batch = find(ticket);
  if (!batch.done)
    throw std::invalid_argument("batch " + std::to_string(ticket) +
                                " is not done; wait for it before taking it");
  auto results = std::move(batch.results);
  batches_.erase(ticket);
  return results;
}

void Batches::close(std::uint64_t epoch) {
  if (epoch == std::numeric_limits<std::uint64_t>::max())
    throw std::invalid_argument("epoch is 2^64 - 1, expected less");
  const std::lock_guard lock(mutex_);
  if (open_from_ <= epoch) open_from_ = epoch + 1;
  std::erase_if(queue_, [&](const std::shared_ptr<Batch>& batch) {
    if (!closed(batch->epoch)) return false;
    batch->done = true;
    return true;
  });
  changed_.notify_all();
}

void Batches::drain(std::uint64_t epoch) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_.empty() || *running_.begin() > epoch; });
}

void Batches::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  work_.notify_all();
  changed_.notify_all();
}

}  // namespace kvarter
