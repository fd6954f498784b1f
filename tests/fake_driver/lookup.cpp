// How the functions are found: by version, or by name.
#include <algorithm>
#include <cstring>

#include "fake_driver/fake_driver.h"
#include "fake_driver/functions.h"

namespace fake_driver {

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
