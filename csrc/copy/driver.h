#pragma once
// What a device's driver can do, as a table of functions. CUDA fills it (cuda.cpp); HIP's functions have the
// same shapes. Every call answers 0 when all is well. The optional ones are null where the driver is too old.
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace kvarter {

using DevicePointer = unsigned long long;
using Handle = void*;  // of a context, stream, event, module or function

struct BatchAttributes {
  struct Place {
    int type, id;
  };
  int source_order;
  Place source, destination;
  unsigned flags;
};
inline constexpr int kSourceInStreamOrder = 1;

struct Driver {
  int (*init)(unsigned flags);
  int (*version)(int* version);
  int (*error_name)(int result, const char** name);
  int (*device_count)(int* count);
  int (*device_get)(int* device, int ordinal);
  int (*device_name)(char* name, int length, int device);
  int (*context_retain)(Handle* context, int device);  // the primary one, which the engine uses too
  int (*context_release)(int device);
  int (*context_push)(Handle context);
  int (*context_pop)(Handle* context);
  int (*priority_range)(int* least, int* greatest);
  int (*stream_create)(Handle* stream, unsigned flags, int priority);
  int (*stream_destroy)(Handle stream);
  int (*stream_wait)(Handle stream, Handle event, unsigned flags);
  int (*stream_synchronize)(Handle stream);
  int (*event_create)(Handle* event, unsigned flags);
  int (*event_record)(Handle event, Handle stream);
  int (*event_synchronize)(Handle event);
  int (*event_destroy)(Handle event);
  int (*host_register)(void* memory, std::size_t bytes, unsigned flags);
  int (*host_unregister)(void* memory);
  int (*host_pointer)(DevicePointer* pointer, void* memory, unsigned flags);
  int (*allocate)(DevicePointer* pointer, std::size_t bytes);
  int (*release)(DevicePointer pointer);
  int (*to_device)(DevicePointer to, const void* from, std::size_t bytes, Handle stream);
  int (*to_host)(void* to, DevicePointer from, std::size_t bytes, Handle stream);
  int (*module_load)(Handle* module, const void* image);
  int (*module_unload)(Handle module);
  int (*module_function)(Handle* function, Handle module, const char* name);
  int (*launch)(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, Handle stream, void** arguments,
                void** extra);
  // Optional.
  int (*exchange_capture_mode)(int* mode);
  int (*batch)(DevicePointer* to, DevicePointer* from, std::size_t* bytes, std::size_t count,
               BatchAttributes* attributes, std::size_t* first, std::size_t kinds, std::size_t* failed,
               Handle stream);

  // "CUDA_ERROR_OUT_OF_MEMORY (2)".
  std::string describe(int result) const;
};

inline constexpr int kDriverNotSupported = 801;

// A driver that answered `result` where only 0 will do.
class DriverError : public std::runtime_error {
 public:
  DriverError(const Driver& driver, const std::string& call, int result)
      : std::runtime_error(call + " answered " + driver.describe(result)) {}
};

// Finds a function by the name in the driver's library; null when there is none.
using Symbols = std::function<void*(const char* name)>;

// Loads the library, once for a path, and initialises the driver. Throws std::runtime_error that says why
// not.
std::shared_ptr<const Driver> load_cuda(const std::string& path);
// The same from what `symbols` finds.
std::shared_ptr<const Driver> cuda_from(const Symbols& symbols);

}  // namespace kvarter
