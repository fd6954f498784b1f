#pragma once
// Owners of what a driver hands out: a device's context, streams and events.
#include <memory>
#include <mutex>
#include <vector>

#include "copy/driver.h"

namespace kvarter {

// The primary context of one device, which its engine uses too. Any thread.
class Context {
 public:
  // Throws std::runtime_error, saying what was found, where there is no such device.
  Context(std::shared_ptr<const Driver> driver, int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const { return *driver_; }
  Handle handle() const { return context_; }

 private:
  std::shared_ptr<const Driver> driver_;
  int device_ = 0;
  Handle context_ = nullptr;
};

// Makes a context the calling thread's own for as long as this lives. A thread of ours besides stays clear of
// graphs that the engine captures meanwhile: what it does is never part of one, and never breaks one off.
class Current {
 public:
  explicit Current(const Context& context, bool apart_from_captures = false);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  int capture_mode_ = -1;
};

// A stream of the lowest priority. REQUIRES: the context is current. Its destructor waits for it.
class OwnStream {
 public:
  explicit OwnStream(std::shared_ptr<const Context> context);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Handle handle() const { return stream_; }

 private:
  std::shared_ptr<const Context> context_;
  Handle stream_ = nullptr;
};

// Events that are used again and again. REQUIRES: the context is current in every call.
class Events {
 public:
  explicit Events(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  // Null when the driver has none. It comes back here when the last reference goes, and must by then not be
  // waited for by anyone: streams told to wait before remember what it stood for. REQUIRES: this outlives it.
  std::shared_ptr<void> take();

 private:
  std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  std::vector<Handle> free_;
};

}  // namespace kvarter
