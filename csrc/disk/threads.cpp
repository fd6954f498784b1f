// preadv, pwritev and fdatasync in as many threads as may be in flight: where containers forbid io_uring.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "disk/directory.h"
#include "disk/finished.h"

namespace kvarter::disk {
namespace {

class Threads final : public Directory {
 public:
  Threads(const std::string& path, unsigned depth, const std::string& why) : Directory(path) {
    if (!why.empty()) add_reason(why);
    for (unsigned i = 0; i < depth; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Threads() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    todo_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  std::string name() const override { return "threads"; }

  void submit(std::span<const Io> batch) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.insert(queue_.end(), batch.begin(), batch.end());
    }
    batch.size() == 1 ? todo_.notify_one() : todo_.notify_all();
  }

  void reap(std::vector<IoDone>& done, std::chrono::nanoseconds wait) override { finished_.take(done, wait); }
  void wake() override { finished_.wake(); }

 private:
  static std::int64_t run(const Io& io) {
    const auto offset = static_cast<off_t>(io.offset);
    const int count = static_cast<int>(io.count);
    std::int64_t result;
    if (io.op == IoOp::kRead)
      result = preadv(io.file, io.vectors, count, offset);
    else if (io.op == IoOp::kWrite)
      result = pwritev(io.file, io.vectors, count, offset);
    else
      result = fdatasync(io.file);
    return result < 0 ? -errno : result;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      todo_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Io io = queue_.front();
      queue_.pop_front();
      lock.unlock();
      finished_.push({io.tag, run(io)});
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable todo_;
  std::deque<Io> queue_;
  Finished finished_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Device> make_threads_device(const std::string& path, unsigned depth,
                                            const std::string& reason) {
  return std::make_unique<Threads>(path, depth, reason);
}

}  // namespace kvarter::disk
