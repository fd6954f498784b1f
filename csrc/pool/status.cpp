#include "kvarter/status.h"

namespace kvarter {

const char* name(Status status) noexcept {
  switch (status) {
    case Status::kOk:
      return "Ok";
    case Status::kNotFound:
      return "NotFound";
    case Status::kRejected:
      return "Rejected";
    case Status::kBusy:
      return "Busy";
    case Status::kCorrupt:
      return "Corrupt";
    case Status::kTimedOut:
      return "TimedOut";
    case Status::kClosed:
      return "Closed";
  }
  return "Unknown";
}

}  // namespace kvarter
