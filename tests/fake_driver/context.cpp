// Versions, devices and contexts, with the names and signatures that NVIDIA publishes; so in the other files.
#include <algorithm>
#include <cstring>

#include "fake_driver/functions.h"

namespace fake_driver {

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

}  // extern "C"

}  // namespace fake_driver
