#pragma once
// What the functions of the driver have in common.
#include <vector>

#include "fake_driver/machine.h"

namespace fake_driver {

using Handle = void*;
using Size = std::size_t;

inline thread_local std::vector<Context*> current;
inline thread_local int capture_mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL; 2: relaxed

// One call: counts it, holds the lock, and says what it must answer before anything else.
struct Call {
  explicit Call(const char* name, bool needs_context = true, bool unsafe = false) : lock(m.mutex) {
    const std::uint64_t number = ++m.calls[name];
    if (needs_context && current.empty()) {
      m.violate(std::string(name) + " without a context");
      refuse = kInvalidContext;
    }
    if (unsafe && m.capturing && capture_mode != 2) {
      m.violate(std::string(name) + " breaks off a capture");
      refuse = kCaptureUnsupported;
    }
    const auto& faults = m.faults[name];
    if (const auto found = faults.find(number); found != faults.end()) refuse = found->second;
  }
  Stream* stream(Handle handle) {
    if (current.empty()) return nullptr;
    if (!handle) {
      auto& stream = m.default_streams[current.back()];
      if (!stream) stream = m.open(current.back());
      return stream;
    }
    for (const auto& stream : m.streams)
      if (stream.get() == handle) return stream.get();
    m.violate("a stream that is not there");
    return nullptr;
  }
  Event* event(Handle handle) {
    for (const auto& event : m.events)
      if (event.get() == handle) return event.get();
    m.violate("an event that is not there");
    return nullptr;
  }

  Machine& m = machine();
  std::unique_lock<std::mutex> lock;
  int refuse = 0;
};

#define REFUSE_AS_TOLD(call) \
  if (call.refuse) return call.refuse

struct Attributes {
  int order;
  int places[4];
  unsigned flags;
};

}  // namespace fake_driver
