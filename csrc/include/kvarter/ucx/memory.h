#pragma once
// Memory that UCX knows: registered with every device of a context that needs it, so that sending from it
// neither copies nor registers again. On TCP and shared memory it costs nothing; RDMA pins it. Whoever made
// the memory keeps it mapped.
#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>

#include "kvarter/ucx/context.h"

namespace kvarter::ucx {

class Memory {
 public:
  // kind: where it is (host, CUDA, ...), as UCX names it. Throws UcxError where UCX cannot register it, or
  // does not support the kind.
  Memory(const Context& context, std::span<std::byte> bytes, ucs_memory_type_t kind);

  ucp_mem_h get() const noexcept { return handle_.get(); }
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  ucs_memory_type_t kind() const noexcept { return kind_; }

 private:
  struct Unmap {
    ucp_context_h context;
    void operator()(ucp_mem_h handle) const noexcept { ucp_mem_unmap(context, handle); }
  };
  std::span<std::byte> bytes_;
  ucs_memory_type_t kind_;
  std::unique_ptr<ucp_mem, Unmap> handle_;
};

}  // namespace kvarter::ucx
