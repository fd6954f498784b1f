#include "fake_driver/machine.h"

#include <cstring>

namespace fake_driver {

Machine& machine() {
  static Machine* const only = new Machine;
  return *only;
}

bool Machine::on_device(Pointer at, std::size_t bytes) const {
  auto after = memory.upper_bound(at);
  if (after == memory.begin()) return false;
  const auto& [begin, range] = *--after;
  return range.second && at - begin + bytes <= range.first.size();
}

int Machine::is_locked(Pointer at, std::size_t bytes) const {
  auto after = locked.upper_bound(at);
  if (after != locked.begin()) {
    const auto& [begin, length] = *std::prev(after);
    if (at - begin + bytes <= length) return 1;
    if (at - begin < length) return -1;
  }
  return after != locked.end() && after->first < at + bytes ? -1 : 0;
}

Stream* Machine::open(Context* context) {
  auto owned = std::make_unique<Stream>();
  Stream* stream = owned.get();
  stream->context = context;
  stream->number = ++streams_made;
  stream->random.seed(seed + stream->number);
  stream->thread = std::thread([this, stream] {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] {
        return (stream->ending && stream->work.empty()) || (!stream->work.empty() && stream->holds == 0);
      });
      if (stream->work.empty()) return;
      auto work = std::move(stream->work.front());
      stream->work.pop_front();
      stream->busy = true;
      const auto pause = std::chrono::microseconds(delay ? stream->random() % (delay + 1) : 0);
      lock.unlock();
      if (pause.count()) std::this_thread::sleep_for(pause);
      const int result = work();
      lock.lock();
      if (stream->error == 0) stream->error = result;
      stream->busy = false;
      changed.notify_all();
    }
  });
  streams.insert(std::move(owned));
  return stream;
}

void Machine::drain(Stream* stream, std::unique_lock<std::mutex>& lock) {
  changed.wait(lock, [&] { return stream->work.empty() && !stream->busy; });
}

void Machine::close(Stream* stream, std::unique_lock<std::mutex>& lock) {
  stream->ending = true;
  stream->holds = 0;
  changed.notify_all();
  std::thread thread = std::move(stream->thread);
  lock.unlock();
  thread.join();
  lock.lock();
  std::erase_if(streams, [&](const auto& owned) { return owned.get() == stream; });
}

void Machine::put(Stream* stream, std::function<int()> work) {
  stream->work.push_back(std::move(work));
  changed.notify_all();
}

int Machine::put_copy(Stream* stream, bool to_host, Pointer device, Pointer host, std::size_t bytes,
                      std::shared_ptr<std::vector<char>> staged) {
  if (!on_device(device, bytes)) {
    violate("a copy of " + std::to_string(bytes) + " bytes was put on a stream outside the device's memory");
    return kInvalid;
  }
  const int lockedness = staged ? 0 : is_locked(host, bytes);
  if (lockedness < 0) {
    violate("a copy lies across the edge of locked memory");
    return kInvalid;
  }
  put(stream, [this, to_host, device, host, bytes, staged, lockedness] {
    {
      const std::lock_guard lock(mutex);
      const auto fault = copy_faults.find(++copies);
      if (fault != copy_faults.end()) return fault->second;
      if (!on_device(device, bytes)) {
        violate("a copy ran on device memory that is freed");
        return kIllegalAddress;
      }
      if (lockedness == 1 && is_locked(host, bytes) != 1) {
        violate("a copy ran on host memory that was let go of");
        return kIllegalAddress;
      }
    }
    void* const at_device = reinterpret_cast<void*>(device);
    void* const at_host = staged ? static_cast<void*>(staged->data()) : reinterpret_cast<void*>(host);
    std::memcpy(to_host ? at_host : at_device, to_host ? at_device : at_host, bytes);
    return 0;
  });
  return 0;
}

}  // namespace fake_driver
