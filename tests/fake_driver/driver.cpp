// The driver's functions, with the names and signatures that NVIDIA publishes.
#include <algorithm>
#include <cstring>

#include "copy/move_abi.h"
#include "fake_driver/fake_driver.h"
#include "fake_driver/kernel.h"
#include "fake_driver/machine.h"

namespace fake_driver {
namespace {

using Handle = void*;
using Size = std::size_t;

thread_local std::vector<Context*> current;
thread_local int capture_mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL; 2: relaxed

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

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = machine().version, 0; }
int cuGetErrorName(int result, const char** name) {
  *name = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return 0;
}
int cuDeviceGetCount(int* count) { return *count = 2, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int length, int device) {
  std::strncpy(name, device ? "Fake 1" : "Fake 0", static_cast<Size>(length));
  return 0;
}

int cuDevicePrimaryCtxRetain(Handle* context, int device) {
  Call call("cuDevicePrimaryCtxRetain", false);
  REFUSE_AS_TOLD(call);
  ++call.m.contexts[device].holders;
  *context = &call.m.contexts[device];
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  Call call("cuDevicePrimaryCtxRelease", false);
  if (call.m.contexts[device].holders-- == 0) call.m.violate("a context released more often than retained");
  return 0;
}
int cuCtxPushCurrent_v2(Handle context) { return current.push_back(static_cast<Context*>(context)), 0; }
int cuCtxPopCurrent_v2(Handle* context) {
  Call call("cuCtxPopCurrent");
  REFUSE_AS_TOLD(call);
  *context = current.back();
  current.pop_back();
  return 0;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), 0; }

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

int cuMemHostRegister_v2(void* memory, Size bytes, unsigned flags) {
  Call call("cuMemHostRegister", true, true);
  REFUSE_AS_TOLD(call);
  if (flags != 3) call.m.violate("memory locked for one device alone, or not mapped");
  const auto at = reinterpret_cast<Pointer>(memory);
  if (call.m.is_locked(at, bytes) != 0) return kAlreadyRegistered;
  Size sum = bytes;
  for (const auto& [begin, length] : call.m.locked) sum += length;
  if (sum > call.m.lock_limit) return kOutOfMemory;
  call.m.locked[at] = bytes;
  return 0;
}
int cuMemHostUnregister(void* memory) {
  Call call("cuMemHostUnregister", true, true);
  if (call.m.locked.erase(reinterpret_cast<Pointer>(memory))) return 0;
  call.m.violate("letting go of memory that is not locked");
  return kNotRegistered;
}
int cuMemHostGetDevicePointer_v2(Pointer* pointer, void* memory, unsigned) {
  Call call("cuMemHostGetDevicePointer");
  REFUSE_AS_TOLD(call);
  *pointer = reinterpret_cast<Pointer>(memory);
  return call.m.is_locked(*pointer, 1) == 1 ? 0 : kInvalid;
}
int cuMemAlloc_v2(Pointer* pointer, Size bytes) {
  Call call("cuMemAlloc", true, true);
  REFUSE_AS_TOLD(call);
  std::vector<char> memory(bytes, '\xdd');
  *pointer = reinterpret_cast<Pointer>(memory.data());
  call.m.memory[*pointer] = {std::move(memory), true};
  return 0;
}
int cuMemFree_v2(Pointer pointer) {
  Call call("cuMemFree", true, true);
  const auto found = call.m.memory.find(pointer);
  if (found == call.m.memory.end() || !found->second.second) {
    call.m.violate("freeing device memory that is not there");
    return kInvalid;
  }
  found->second.second = false;
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, Pointer from, Size bytes, Handle handle) {
  Call call("cuMemcpyDtoHAsync");
  REFUSE_AS_TOLD(call);
  Stream* stream = call.stream(handle);
  if (!stream) return kInvalidHandle;
  const auto host = reinterpret_cast<Pointer>(to);
  const int result = call.m.put_copy(stream, true, from, host, bytes);
  if (result == 0 && call.m.is_locked(host, bytes) == 0) call.m.drain(stream, call.lock);
  return result;
}
int cuMemcpyHtoDAsync_v2(Pointer to, const void* from, Size bytes, Handle handle) {
  Call call("cuMemcpyHtoDAsync");
  REFUSE_AS_TOLD(call);
  Stream* stream = call.stream(handle);
  if (!stream) return kInvalidHandle;
  const auto host = reinterpret_cast<Pointer>(from);
  std::shared_ptr<std::vector<char>> staged;
  if (call.m.is_locked(host, bytes) == 0)
    staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                 static_cast<const char*>(from) + bytes);
  return call.m.put_copy(stream, false, to, host, bytes, staged);
}

}  // extern "C"

namespace {

int batch(Call& call, Pointer* to, Pointer* from, Size* bytes, Size count, Attributes* attributes,
          Size* first, Size kinds, Handle handle) {
  REFUSE_AS_TOLD(call);
  Stream* stream = call.stream(handle);
  if (!stream || !handle) return kInvalidHandle;  // the default stream takes none
  if (count == 0 || kinds != 1 || first[0] != 0 || attributes[0].order != 1) {
    call.m.violate("a batch that is empty, or whose sources are not read in stream order");
    return kInvalid;
  }
  // In any order.
  std::vector<Size> order(count);
  for (Size i = 0; i < count; ++i) order[i] = i;
  std::ranges::shuffle(order, stream->random);
  for (const Size i : order) {
    const bool to_host = call.m.on_device(from[i], bytes[i]);
    const Pointer host = to_host ? to[i] : from[i];
    if (call.m.is_locked(host, bytes[i]) != 1) call.m.violate("a batch with memory that is not locked");
    const int result = call.m.put_copy(stream, to_host, to_host ? from[i] : to[i], host, bytes[i]);
    if (result != 0) return result;
  }
  return 0;
}
}  // namespace

extern "C" {

int cuMemcpyBatchAsync(Pointer* to, Pointer* from, Size* bytes, Size count, Attributes* attributes,
                       Size* first, Size kinds, Size* failed, Handle stream) {
  Call call("cuMemcpyBatchAsync");
  *failed = ~Size{0};
  return batch(call, to, from, bytes, count, attributes, first, kinds, stream);
}
int cuMemcpyBatchAsync_v2(Pointer*, Pointer*, Size*, Size, Attributes*, Size*, Size, Handle) {
  machine().violate("a function with 13.0's parameters called with 12.8's");
  return kInvalid;
}

int cuModuleLoadData(Handle* module, const void* image) {
  Call call("cuModuleLoadData", true, true);
  REFUSE_AS_TOLD(call);
  if (!std::strstr(static_cast<const char*>(image), ".entry kvarter_move(")) return kInvalid;
  *module = &call.m;
  return 0;
}
int cuModuleUnload(Handle) { return 0; }
int cuModuleGetFunction(Handle* function, Handle, const char* name) {
  *function = const_cast<char*>(name);
  return std::strcmp(name, "kvarter_move") == 0 ? 0 : kNotFound;
}
int cuLaunchKernel(Handle function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned, Handle handle, void** arguments, void**) {
  Call call("cuLaunchKernel");
  REFUSE_AS_TOLD(call);
  Stream* stream = call.stream(handle);
  if (!stream || !function) return kInvalidHandle;
  const auto segments = *static_cast<const kvarter::MoveSegment**>(arguments[0]);
  const auto num_segments = *static_cast<unsigned*>(arguments[1]),
             runs = *static_cast<unsigned*>(arguments[2]);
  const auto scatter = *static_cast<unsigned*>(arguments[3]);
  const auto pairs = *static_cast<kvarter::MovePairs*>(arguments[4]);
  call.m.put(stream, [&m = call.m, grid, threads, segments, num_segments, runs, scatter, pairs] {
    {
      const std::lock_guard lock(m.mutex);
      const auto fault = m.copy_faults.find(++m.copies);
      if (fault != m.copy_faults.end()) return fault->second;
      if (!m.on_device(reinterpret_cast<Pointer>(segments), num_segments * sizeof(*segments))) {
        m.violate("a kernel with a list that is not on the device");
        return kIllegalAddress;
      }
      for (unsigned run = 0; run < runs; ++run) {
        const auto& segment = segments[run % num_segments];
        const auto& pair = pairs.at[run / num_segments];
        if (!m.on_device(segment.base + pair.engine_block * segment.block_stride, segment.bytes) ||
            m.is_locked(pair.slot + segment.slot_offset, segment.bytes) != 1) {
          m.violate("a kernel ran outside its memory");
          return kIllegalAddress;
        }
      }
    }
    run_kernel(grid, threads, segments, num_segments, runs, scatter, pairs);
    return 0;
  });
  return 0;
}

int cuGetProcAddress_v2(const char* name, void** found, int version, unsigned long long, int* status);

}  // extern "C"

namespace {

struct Function {
  const char* name;
  int version;
  const char* exported;
  void* at;
};

template <class F>
void* at(F* function) {
  return reinterpret_cast<void*>(function);
}

const std::vector<Function>& functions() {
  static const std::vector<Function> all{
      {"cuInit", 2000, "cuInit", at(cuInit)},
      {"cuDriverGetVersion", 2020, "cuDriverGetVersion", at(cuDriverGetVersion)},
      {"cuGetErrorName", 6000, "cuGetErrorName", at(cuGetErrorName)},
      {"cuDeviceGetCount", 2000, "cuDeviceGetCount", at(cuDeviceGetCount)},
      {"cuDeviceGet", 2000, "cuDeviceGet", at(cuDeviceGet)},
      {"cuDeviceGetName", 2000, "cuDeviceGetName", at(cuDeviceGetName)},
      {"cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain", at(cuDevicePrimaryCtxRetain)},
      {"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2", at(cuDevicePrimaryCtxRelease_v2)},
      {"cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2", at(cuCtxPushCurrent_v2)},
      {"cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2", at(cuCtxPopCurrent_v2)},
      {"cuCtxGetStreamPriorityRange", 5050, "cuCtxGetStreamPriorityRange", at(cuCtxGetStreamPriorityRange)},
      {"cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode",
       at(cuThreadExchangeStreamCaptureMode)},
      {"cuStreamCreateWithPriority", 5050, "cuStreamCreateWithPriority", at(cuStreamCreateWithPriority)},
      {"cuStreamDestroy", 4000, "cuStreamDestroy_v2", at(cuStreamDestroy_v2)},
      {"cuStreamSynchronize", 2000, "cuStreamSynchronize", at(cuStreamSynchronize)},
      {"cuStreamWaitEvent", 3020, "cuStreamWaitEvent", at(cuStreamWaitEvent)},
      {"cuEventCreate", 2000, "cuEventCreate", at(cuEventCreate)},
      {"cuEventDestroy", 4000, "cuEventDestroy_v2", at(cuEventDestroy_v2)},
      {"cuEventRecord", 2000, "cuEventRecord", at(cuEventRecord)},
      {"cuEventSynchronize", 2000, "cuEventSynchronize", at(cuEventSynchronize)},
      {"cuMemHostRegister", 6050, "cuMemHostRegister_v2", at(cuMemHostRegister_v2)},
      {"cuMemHostUnregister", 4000, "cuMemHostUnregister", at(cuMemHostUnregister)},
      {"cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2", at(cuMemHostGetDevicePointer_v2)},
      {"cuMemAlloc", 3020, "cuMemAlloc_v2", at(cuMemAlloc_v2)},
      {"cuMemFree", 3020, "cuMemFree_v2", at(cuMemFree_v2)},
      {"cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2", at(cuMemcpyDtoHAsync_v2)},
      {"cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2", at(cuMemcpyHtoDAsync_v2)},
      {"cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync", at(cuMemcpyBatchAsync)},
      {"cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2", at(cuMemcpyBatchAsync_v2)},
      {"cuModuleLoadData", 2000, "cuModuleLoadData", at(cuModuleLoadData)},
      {"cuModuleUnload", 2000, "cuModuleUnload", at(cuModuleUnload)},
      {"cuModuleGetFunction", 2000, "cuModuleGetFunction", at(cuModuleGetFunction)},
      {"cuLaunchKernel", 4000, "cuLaunchKernel", at(cuLaunchKernel)},
  };
  return all;
}

}  // namespace

extern "C" int cuGetProcAddress_v2(const char* name, void** found, int version, unsigned long long,
                                   int* status) {
  const std::lock_guard lock(machine().mutex);
  *found = nullptr;
  *status = 1;
  if (machine().old) return kNotFound;
  for (const Function& function : functions())
    if (std::strcmp(function.name, name) == 0 && function.version <= std::min(version, machine().version)) {
      *found = function.at;
      *status = 0;
    }
  return *found ? 0 : kNotFound;
}

void* find(const char* name) {
  if (std::strcmp(name, "cuGetProcAddress_v2") == 0) return at(cuGetProcAddress_v2);
  for (const Function& function : functions())
    if (std::strcmp(function.exported, name) == 0) return function.at;
  return nullptr;
}

}  // namespace fake_driver
