#pragma once
// What stands behind an Engine: the thread's loop, and what callers share without asking it.
#include <pthread.h>
#include <sys/random.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kvarter/ucx/engine.h"
#include "ucx/ucp/loop.h"

namespace kvarter::ucx {

inline std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word)
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return word;
}

struct Engine::Impl {
  Impl(std::span<std::byte> bytes, std::size_t most_queued) : memory(bytes), queued_bytes(most_queued) {}

  std::span<std::byte> memory;
  std::size_t queued_bytes;
  Events events;
  Counters counters;
  Tasks tasks;
  std::vector<std::byte> address;
  std::vector<std::string> transports;
  Loop* loop = nullptr;  // the thread's
  std::promise<void> started;

  std::mutex mutex;  // of what follows
  std::unordered_map<PeerId, Queued> queued;
  std::unordered_set<std::uint64_t> open;  // requests whose event has not been taken
  PeerId last_peer = 0;

  std::mutex closing;
  std::thread thread;

  // Runs on the thread some time, unless that has ended. Exceptions are lost.
  template <class F>
  bool later(F task) {
    return tasks.push(Task(std::move(task)));
  }
  // Runs on the thread, and waits for it. False: the thread has ended.
  template <class F>
  bool now(F function) {
    Task task(std::move(function));
    std::future<void> done = task.get_future();
    if (!tasks.push(std::move(task))) return false;
    done.get();
    return true;
  }

  // Room for a call of so many bytes to a peer.
  Status admit(PeerId peer, std::size_t bytes, Queued& account) {
    const std::lock_guard lock(mutex);
    const auto it = queued.find(peer);
    if (it == queued.end()) return Status::kClosed;
    const std::size_t waiting = it->second->load(std::memory_order_relaxed);
    if (waiting != 0 && waiting + bytes > queued_bytes) return Status::kBusy;
    it->second->fetch_add(bytes, std::memory_order_relaxed);
    account = it->second;
    return Status::kOk;
  }

  void run(const Options& options) {
    ::pthread_setname_np(::pthread_self(), "kvarter-ucx");
    std::unique_ptr<Loop> owned;
    try {
      owned = std::make_unique<Loop>(memory, options, tasks, events, counters);
      address = owned->address();
      transports = owned->transports();
      loop = owned.get();
      started.set_value();
    } catch (...) {
      started.set_exception(std::current_exception());
      return;
    }
    loop->run();
  }
};

}  // namespace kvarter::ucx
