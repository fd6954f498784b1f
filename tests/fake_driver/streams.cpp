// Streams and events.
#include "fake_driver/functions.h"

namespace fake_driver {

extern "C" {

int cuStreamCreateWithPriority(Handle* stream, unsigned flags, int priority) {
  Call call("cuStreamCreateWithPriority");
  REFUSE_AS_TOLD(call);
  if (priority != 0) call.m.violate("a stream that is not of the lowest priority");
  if (flags != 1) call.m.violate("a stream that waits for the default stream");
  *stream = call.m.open(current.back());
  return 0;
}
int cuStreamDestroy_v2(Handle handle) {
  Call call("cuStreamDestroy");
  if (Stream* stream = call.stream(handle)) call.m.close(stream, call.lock);
  return 0;
}
int cuStreamSynchronize(Handle handle) {
  Call call("cuStreamSynchronize", true, true);
  REFUSE_AS_TOLD(call);
  Stream* stream = call.stream(handle);
  if (!stream) return kInvalidHandle;
  call.m.drain(stream, call.lock);
  return stream->error;
}
int cuStreamWaitEvent(Handle handle, Handle event_handle, unsigned) {
  Call call("cuStreamWaitEvent");
  REFUSE_AS_TOLD(call);
  Stream* stream = call.stream(handle);
  Event* event = call.event(event_handle);
  if (!stream || !event) return kInvalidHandle;
  if (!event->mark) return 0;
  call.m.put(stream, [&m = call.m, mark = event->mark] {
    std::unique_lock lock(m.mutex);
    m.changed.wait(lock, [&] { return mark->reached; });
    return 0;
  });
  return 0;
}

int cuEventCreate(Handle* event, unsigned flags) {
  Call call("cuEventCreate");
  REFUSE_AS_TOLD(call);
  if (flags != 3) call.m.violate("an event with timing, or one that spins");
  auto made = std::make_unique<Event>(Event{current.back(), nullptr});
  *event = made.get();
  call.m.events.insert(std::move(made));
  return 0;
}
int cuEventDestroy_v2(Handle handle) {
  Call call("cuEventDestroy");
  Event* event = call.event(handle);
  std::erase_if(call.m.events, [&](const auto& owned) { return owned.get() == event; });
  return 0;
}
int cuEventRecord(Handle event_handle, Handle handle) {
  Call call("cuEventRecord");
  REFUSE_AS_TOLD(call);
  Stream* stream = call.stream(handle);
  Event* event = call.event(event_handle);
  if (!stream || !event || stream->context != event->context) return kInvalidHandle;
  event->mark = std::make_shared<Mark>();
  call.m.put(stream, [&m = call.m, stream, mark = event->mark] {
    const std::lock_guard lock(m.mutex);
    mark->reached = true;
    mark->result = stream->error;
    m.changed.notify_all();
    return 0;
  });
  return 0;
}
int cuEventSynchronize(Handle handle) {
  Call call("cuEventSynchronize", true, true);
  REFUSE_AS_TOLD(call);
  Event* event = call.event(handle);
  if (!event) return kInvalidHandle;
  if (!event->mark) {
    call.m.violate("waiting for an event that nobody recorded");
    return 0;
  }
  const auto mark = event->mark;
  call.m.changed.wait(call.lock, [&] { return mark->reached; });
  return mark->result;
}

}  // extern "C"

}  // namespace fake_driver
