// Memory of the device, and memory of the host that is locked for it.
#include "fake_driver/functions.h"

namespace fake_driver {

extern "C" {

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

}  // extern "C"

}  // namespace fake_driver
