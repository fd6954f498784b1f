#pragma once
// What the fake driver is made of: streams as threads, marks that events stand for, memory with owners.
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace fake_driver {

inline constexpr int kInvalid = 1, kOutOfMemory = 2, kInvalidContext = 201, kInvalidHandle = 400,
                     kNotFound = 500, kIllegalAddress = 700, kAlreadyRegistered = 712, kNotRegistered = 713,
                     kCaptureUnsupported = 900;

using Pointer = unsigned long long;

// A place in a stream's work, reached once all before it is done.
struct Mark {
  bool reached = false;
  int result = 0;
};

struct Context {
  int device;
  int holders = 0;
};

struct Event {
  Context* context;
  std::shared_ptr<Mark> mark;  // null: never recorded
};

struct Stream {
  Context* context;
  unsigned number;
  std::mt19937 random;
  std::deque<std::function<int()>> work;
  bool busy = false, ending = false;
  int error = 0;
  unsigned holds = 0;
  std::thread thread;
};

// Everything, under one mutex that no piece of work holds while it copies.
struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  int version = 13000;
  bool old = false, capturing = false;
  unsigned delay = 0, seed = 0;
  std::size_t lock_limit = ~std::size_t{0};
  Context contexts[2]{{0}, {1}};
  std::set<std::unique_ptr<Stream>> streams;
  std::map<Context*, Stream*> default_streams;
  std::set<std::unique_ptr<Event>> events;
  std::map<Pointer, std::pair<std::vector<char>, bool>> memory;  // of the device; false: freed
  std::map<Pointer, std::size_t> locked;
  std::map<std::string, std::uint64_t> calls;
  std::map<std::string, std::map<std::uint64_t, int>> faults;  // by function and number of the call
  std::map<std::uint64_t, int> copy_faults;
  std::uint64_t copies = 0;
  unsigned streams_made = 0;
  std::string violations;

  // The rest: REQUIRES the lock.
  void violate(const std::string& what) { violations += what + "\n"; }
  bool on_device(Pointer at, std::size_t bytes) const;
  // 1: all of it; 0: none; -1: a part.
  int is_locked(Pointer at, std::size_t bytes) const;
  Stream* open(Context* context);
  void close(Stream* stream, std::unique_lock<std::mutex>& lock);
  void drain(Stream* stream, std::unique_lock<std::mutex>& lock);
  void put(Stream* stream, std::function<int()> work);
  // Copying between the device and the host, checked when it is put there and again when it runs.
  int put_copy(Stream* stream, bool to_host, Pointer device, Pointer host, std::size_t bytes,
               std::shared_ptr<std::vector<char>> staged = nullptr);
};

Machine& machine();

}  // namespace fake_driver
