#pragma once
// What moves messages: it has an address, and nothing happens on it but within progress(). One thread makes,
// uses and destroys it.
#include <ucp/api/ucp.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvarter/ucx/context.h"

namespace kvarter::ucx {

class Worker {
 public:
  // The bytes are valid during the call. A message that offers a rendezvous has no bytes: `whole` is false.
  using Handler =
      std::function<void(std::span<const std::byte> header, std::span<const std::byte> payload, bool whole)>;

  // Throws UcxError.
  explicit Worker(const Context& context);

  ucp_worker_h get() const noexcept { return worker_.get(); }
  // Where others reach it; to be trusted with care: whoever has it can connect.
  std::vector<std::byte> address() const;
  // `handler` is called, within progress(), for every active message `id`. It must not throw.
  void receive(unsigned id, Handler handler);
  // Whether anything happened.
  bool progress() noexcept { return ucp_worker_progress(worker_.get()) != 0; }
  // Readable when there is something to progress, if arm() answered true since the last progress(). False:
  // there is something already.
  int fd() const noexcept { return fd_; }
  bool arm() noexcept { return ucp_worker_arm(worker_.get()) == UCS_OK; }

 private:
  struct Destroy {
    void operator()(ucp_worker_h worker) const noexcept { ucp_worker_destroy(worker); }
  };
  std::unique_ptr<ucp_worker, Destroy> worker_;
  std::unique_ptr<Handler> handler_;  // UCX keeps its address
  int fd_ = -1;
};

}  // namespace kvarter::ucx
