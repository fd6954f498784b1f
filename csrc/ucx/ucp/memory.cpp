#include "kvarter/ucx/memory.h"

#include "kvarter/ucx/error.h"

namespace kvarter::ucx {

Memory::Memory(const Context& context, std::span<std::byte> bytes, ucs_memory_type_t kind)
    : bytes_(bytes), kind_(kind), handle_(nullptr, Unmap{context.get()}) {
  ucp_mem_map_params_t params{};
  params.field_mask =
      UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = bytes.data();
  params.length = bytes.size();
  params.memory_type = kind;
  ucp_mem_h handle = nullptr;
  require_ok(ucp_mem_map(context.get(), &params, &handle),
             "register " + std::to_string(bytes.size()) + " bytes of memory");
  handle_.reset(handle);
}

}  // namespace kvarter::ucx
