#include "kvarter/ucx/worker.h"

#include <utility>

#include "kvarter/ucx/error.h"

namespace kvarter::ucx {

namespace {

ucs_status_t arrived(void* handler, const void* header, std::size_t header_bytes, void* data,
                     std::size_t bytes, const ucp_am_recv_param_t* param) {
  const bool whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  (*static_cast<Worker::Handler*>(handler))({static_cast<const std::byte*>(header), header_bytes},
                                            {static_cast<const std::byte*>(data), whole ? bytes : 0}, whole);
  return UCS_OK;  // and a rendezvous that was offered is declined
}

}  // namespace

Worker::Worker(const Context& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  require_ok(ucp_worker_create(context.get(), &params, &worker), "make a worker");
  worker_.reset(worker);
  require_ok(ucp_worker_get_efd(worker, &fd_), "give a descriptor to wait on");
}

std::vector<std::byte> Worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  require_ok(ucp_worker_get_address(worker_.get(), &address, &size), "tell its address");
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(bytes, bytes + size);
  ucp_worker_release_address(worker_.get(), address);
  return copy;
}

void Worker::receive(unsigned id, Handler handler) {
  handler_ = std::make_unique<Handler>(std::move(handler));
  ucp_am_handler_param_t param{};
  param.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.cb = arrived;
  param.arg = handler_.get();
  require_ok(ucp_worker_set_am_recv_handler(worker_.get(), &param), "take a handler");
}

}  // namespace kvarter::ucx
