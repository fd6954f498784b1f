#pragma once
// What UCX refused to do, in its words. Control path only: a message that fails is a status.
#include <ucs/type/status.h>

#include <stdexcept>
#include <string>

namespace kvarter::ucx {

class UcxError : public std::runtime_error {
 public:
  UcxError(const std::string& what, ucs_status_t status)
      : std::runtime_error("UCX could not " + what + ": " + ucs_status_string(status)), status_(status) {}
  ucs_status_t status() const noexcept { return status_; }

 private:
  ucs_status_t status_;
};

inline void require_ok(ucs_status_t status, const std::string& what) {
  if (status != UCS_OK) throw UcxError(what, status);
}

}  // namespace kvarter::ucx
