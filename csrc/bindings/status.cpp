#include "kvarter/status.h"

#include <pybind11/native_enum.h>

#include "bindings.h"

namespace kvarter::bindings {

void register_status(py::module_& m) {
  py::native_enum<Status>(m, "Status", "enum.IntEnum", "Status of one block on the data path.")
      .value("Ok", Status::kOk)
      .value("NotFound", Status::kNotFound)
      .value("Rejected", Status::kRejected)
      .value("Busy", Status::kBusy)
      .value("Corrupt", Status::kCorrupt)
      .value("TimedOut", Status::kTimedOut)
      .value("Closed", Status::kClosed)
      .finalize();
}

}  // namespace kvarter::bindings
