#pragma once
// The driver's functions that there are.
#include "fake_driver/call.h"

namespace fake_driver {

extern "C" {

int cuInit(unsigned);
int cuDriverGetVersion(int* version);
int cuGetErrorName(int result, const char** name);
int cuDeviceGetCount(int* count);
int cuDeviceGet(int* device, int ordinal);
int cuDeviceGetName(char* name, int length, int device);
int cuDevicePrimaryCtxRetain(Handle* context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(Handle context);
int cuCtxPopCurrent_v2(Handle* context);
int cuCtxGetStreamPriorityRange(int* least, int* greatest);
int cuThreadExchangeStreamCaptureMode(int* mode);
int cuStreamCreateWithPriority(Handle* stream, unsigned flags, int priority);
int cuStreamDestroy_v2(Handle handle);
int cuStreamSynchronize(Handle handle);
int cuStreamWaitEvent(Handle handle, Handle event_handle, unsigned);
int cuEventCreate(Handle* event, unsigned flags);
int cuEventDestroy_v2(Handle handle);
int cuEventRecord(Handle event_handle, Handle handle);
int cuEventSynchronize(Handle handle);
int cuMemHostRegister_v2(void* memory, Size bytes, unsigned flags);
int cuMemHostUnregister(void* memory);
int cuMemHostGetDevicePointer_v2(Pointer* pointer, void* memory, unsigned);
int cuMemAlloc_v2(Pointer* pointer, Size bytes);
int cuMemFree_v2(Pointer pointer);
int cuMemcpyDtoHAsync_v2(void* to, Pointer from, Size bytes, Handle handle);
int cuMemcpyHtoDAsync_v2(Pointer to, const void* from, Size bytes, Handle handle);
int cuMemcpyBatchAsync(Pointer* to, Pointer* from, Size* bytes, Size count, Attributes* attributes,
                       Size* first, Size kinds, Size* failed, Handle stream);
int cuMemcpyBatchAsync_v2(Pointer*, Pointer*, Size*, Size, Attributes*, Size*, Size, Handle);
int cuModuleLoadData(Handle* module, const void* image);
int cuModuleUnload(Handle);
int cuModuleGetFunction(Handle* function, Handle, const char* name);
int cuLaunchKernel(Handle function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned, Handle handle, void** arguments, void**);
int cuGetProcAddress_v2(const char* name, void** found, int version, unsigned long long, int* status);

}  // extern "C"

}  // namespace fake_driver
