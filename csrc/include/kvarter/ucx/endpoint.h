#pragma once
// A way from a worker to another. It fails for good: when UCX cannot reach the other side it says so once, by
// `failed`, and everything under way ends. Used by the worker's thread alone.
#include <ucp/api/ucp.h>

#include <cstddef>
#include <functional>
#include <span>

#include "kvarter/ucx/memory.h"
#include "kvarter/ucx/worker.h"

namespace kvarter::ucx {

class Endpoint {
 public:
  using Failed = std::function<void(ucs_status_t)>;

  // The address goes to UCX as it is: it must come from an authenticated peer. `failed` is called within
  // progress(). Throws UcxError, at once for the address of a worker that is gone.
  Endpoint(Worker& worker, std::span<const std::byte> address, Failed failed);
  // REQUIRES: closed(), or the worker is destroyed before it is progressed again.
  ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Valid until close().
  ucp_ep_h get() const noexcept { return endpoint_; }
  // Sends one active message, eagerly. Header and pieces, and what they point to, stay until it is done:
  // UCS_OK, it is; UCS_INPROGRESS, `request.done(ok)` will be called within progress(); else it failed.
  // memory: where a single piece lies if UCX knows it, else null.
  template <class Request>
  ucs_status_t send(unsigned id, std::span<const std::byte> header, std::span<const ucp_dt_iov_t> pieces,
                    const Memory* memory, Request& request) noexcept {
    return post(
        id, header, pieces, memory,
        [](void* handle, ucs_status_t status, void* context) {
          ucp_request_free(handle);
          static_cast<Request*>(context)->done(status == UCS_OK);
        },
        &request);
  }

  // Ends it: what is under way is done before closed() is true. Of a living one that means sent, or lost with
  // the connection, however long that takes: UCX 1.18 to 1.22 over TCP, when both ends drop a connection that
  // waits to write, uses it after it has freed it (tests/regressions/test_both_ends_gave_up_under_way.py).
  // at_once, and of one that has failed: nothing is waited for, and what is under way is not ok.
  // REQUIRES: called once.
  void close(bool at_once) noexcept;
  bool closed() noexcept;

 private:
  ucs_status_t post(unsigned id, std::span<const std::byte> header, std::span<const ucp_dt_iov_t> pieces,
                    const Memory* memory, ucp_send_nbx_callback_t done, void* context) noexcept;

  ucp_ep_h endpoint_ = nullptr;
  Failed failed_;
  bool dead_ = false;  // and `failed_` was told
  ucs_status_ptr_t closing_ = nullptr;
};

}  // namespace kvarter::ucx
