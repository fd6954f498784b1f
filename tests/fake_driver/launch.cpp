// Modules with one kernel, ours.
#include <cstring>

#include "fake_driver/functions.h"
#include "fake_driver/kernel.h"

namespace fake_driver {

extern "C" {

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

}  // extern "C"

}  // namespace fake_driver
