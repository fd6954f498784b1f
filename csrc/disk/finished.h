#pragma once
// Where a device puts what is done, and where the log's thread waits for it.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "kvarter/device.h"

namespace kvarter::disk {

// Any thread pushes and wakes; one takes.
class Finished {
 public:
  void push(const IoDone& done) {
    {
      const std::lock_guard lock(mutex_);
      done_.push_back(done);
    }
    some_.notify_one();
  }
  // As Device::reap has it.
  void take(std::vector<IoDone>& done, std::chrono::nanoseconds wait) {
    std::unique_lock lock(mutex_);
    if (wait.count() > 0) some_.wait_for(lock, wait, [&] { return !done_.empty() || woken_; });
    woken_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }
  void wake() {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    some_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_;
  std::vector<IoDone> done_;
  bool woken_ = false;
};

}  // namespace kvarter::disk
