// CUDA's driver by its published names. Each function is asked for by the version whose signature driver.h
// has; where the driver cannot be asked so (before 11.3), by the name that this version is exported under.
#include <dlfcn.h>

#include <map>
#include <mutex>

#include "copy/driver.h"

namespace kvarter {

std::string Driver::describe(int result) const {
  const char* name = nullptr;
  if (error_name(result, &name) != 0 || name == nullptr) name = "an unknown error";
  return std::string(name) + " (" + std::to_string(result) + ")";
}

namespace {

class Lookup {
 public:
  explicit Lookup(const Symbols& symbols) : symbols_(symbols) {
    ask_ = reinterpret_cast<Ask>(symbols("cuGetProcAddress_v2"));
    if (!ask_) ask_before_12_ = reinterpret_cast<AskBefore12>(symbols("cuGetProcAddress"));
  }

  template <class Function>
  void required(Function& function, const char* name, int version, const char* exported) const {
    function = reinterpret_cast<Function>(find(name, version));
    if (!function) function = reinterpret_cast<Function>(symbols_(exported));
    if (!function)
      throw std::runtime_error(std::string("the CUDA driver has no ") + exported +
                               "; one of CUDA 11 or later does: update it");
  }

  // Never by its bare name, which may be another version's.
  template <class Function>
  void optional(Function& function, const char* name, int version) const {
    function = reinterpret_cast<Function>(find(name, version));
  }

 private:
  using Ask = int (*)(const char*, void**, int, unsigned long long, int*);
  using AskBefore12 = int (*)(const char*, void**, int, unsigned long long);

  void* find(const char* name, int version) const {
    void* found = nullptr;
    int status = 0;
    if (ask_ && ask_(name, &found, version, 0, &status) == 0 && status == 0) return found;
    if (ask_before_12_ && ask_before_12_(name, &found, version, 0) == 0) return found;
    return nullptr;
  }

  const Symbols& symbols_;
  Ask ask_ = nullptr;
  AskBefore12 ask_before_12_ = nullptr;
};

}  // namespace

std::shared_ptr<const Driver> cuda_from(const Symbols& symbols) {
  const Lookup lookup(symbols);
  auto found = std::make_shared<Driver>();
  Driver& d = *found;
  lookup.required(d.init, "cuInit", 2000, "cuInit");
  lookup.required(d.version, "cuDriverGetVersion", 2020, "cuDriverGetVersion");
  lookup.required(d.error_name, "cuGetErrorName", 6000, "cuGetErrorName");
  lookup.required(d.device_count, "cuDeviceGetCount", 2000, "cuDeviceGetCount");
  lookup.required(d.device_get, "cuDeviceGet", 2000, "cuDeviceGet");
  lookup.required(d.device_name, "cuDeviceGetName", 2000, "cuDeviceGetName");
  lookup.required(d.context_retain, "cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain");
  lookup.required(d.context_release, "cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2");
  lookup.required(d.context_push, "cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2");
  lookup.required(d.context_pop, "cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2");
  lookup.required(d.priority_range, "cuCtxGetStreamPriorityRange", 5050, "cuCtxGetStreamPriorityRange");
  lookup.required(d.stream_create, "cuStreamCreateWithPriority", 5050, "cuStreamCreateWithPriority");
  lookup.required(d.stream_destroy, "cuStreamDestroy", 4000, "cuStreamDestroy_v2");
  lookup.required(d.stream_wait, "cuStreamWaitEvent", 3020, "cuStreamWaitEvent");
  lookup.required(d.stream_synchronize, "cuStreamSynchronize", 2000, "cuStreamSynchronize");
  lookup.required(d.event_create, "cuEventCreate", 2000, "cuEventCreate");
  lookup.required(d.event_record, "cuEventRecord", 2000, "cuEventRecord");
  lookup.required(d.event_synchronize, "cuEventSynchronize", 2000, "cuEventSynchronize");
  lookup.required(d.event_destroy, "cuEventDestroy", 4000, "cuEventDestroy_v2");
  lookup.required(d.host_register, "cuMemHostRegister", 6050, "cuMemHostRegister_v2");
  lookup.required(d.host_unregister, "cuMemHostUnregister", 4000, "cuMemHostUnregister");
  lookup.required(d.host_pointer, "cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2");
  lookup.required(d.allocate, "cuMemAlloc", 3020, "cuMemAlloc_v2");
  lookup.required(d.release, "cuMemFree", 3020, "cuMemFree_v2");
  lookup.required(d.to_device, "cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2");
  lookup.required(d.to_host, "cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2");
  lookup.required(d.module_load, "cuModuleLoadData", 2000, "cuModuleLoadData");
  lookup.required(d.module_unload, "cuModuleUnload", 2000, "cuModuleUnload");
  lookup.required(d.module_function, "cuModuleGetFunction", 2000, "cuModuleGetFunction");
  lookup.required(d.launch, "cuLaunchKernel", 4000, "cuLaunchKernel");
  lookup.optional(d.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010);
  lookup.optional(d.batch, "cuMemcpyBatchAsync", 12080);  // 13.0 dropped a parameter
  if (const int result = d.init(0); result != 0) throw DriverError(d, "cuInit", result);
  return found;
}

std::shared_ptr<const Driver> load_cuda(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Driver>> loaded;
  const std::string name = path.empty() ? "libcuda.so.1" : path;
  const std::lock_guard lock(mutex);
  auto& driver = loaded[name];
  if (!driver) {
    // Never closed: a driver has threads of its own.
    void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(std::string("no CUDA driver: ") + ::dlerror());
    driver = cuda_from([library](const char* symbol) { return ::dlsym(library, symbol); });
  }
  return driver;
}

}  // namespace kvarter
