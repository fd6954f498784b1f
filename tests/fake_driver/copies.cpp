// Copies, one by one and in batches.
#include <algorithm>

#include "fake_driver/functions.h"

namespace fake_driver {

extern "C" {

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

}  // extern "C"

}  // namespace fake_driver
