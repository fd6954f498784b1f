#include "kvarter/ucx/endpoint.h"

#include <utility>

#include "kvarter/ucx/error.h"

namespace kvarter::ucx {

Endpoint::Endpoint(Worker& worker, std::span<const std::byte> address, Failed failed)
    : failed_(std::move(failed)) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // else what is under way to a dead peer never ends
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
    auto& endpoint = *static_cast<Endpoint*>(self);
    endpoint.dead_ = true;
    endpoint.failed_(status);
  };
  require_ok(ucp_ep_create(worker.get(), &params, &endpoint_), "connect");
}

ucs_status_t Endpoint::post(unsigned id, std::span<const std::byte> header,
                            std::span<const ucp_dt_iov_t> pieces, const Memory* memory,
                            ucp_send_nbx_callback_t done, void* context) noexcept {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = done;
  param.user_data = context;
  const void* buffer = pieces.data();
  std::size_t count = pieces.size();
  if (pieces.size() <= 1) {
    param.datatype = ucp_dt_make_contig(1);
    buffer = pieces.empty() ? nullptr : pieces[0].buffer;
    count = pieces.empty() ? 0 : pieces[0].length;
    if (memory && count != 0) {
      param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
      param.memh = memory->get();
      param.memory_type = memory->kind();
    }
  } else {
    param.datatype = UCP_DATATYPE_IOV;
  }
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, id, header.data(), header.size(), buffer, count, &param);
  return UCS_PTR_IS_PTR(request) ? UCS_INPROGRESS : UCS_PTR_STATUS(request);
}

void Endpoint::close(bool at_once) noexcept {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = at_once || dead_ ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  closing_ = ucp_ep_close_nbx(endpoint_, &param);
}

bool Endpoint::closed() noexcept {
  if (!UCS_PTR_IS_PTR(closing_)) return true;
  if (ucp_request_check_status(closing_) == UCS_INPROGRESS) return false;
  ucp_request_free(std::exchange(closing_, nullptr));
  return true;
}

}  // namespace kvarter::ucx
