#pragma once
// What the disk tier counts, as dictionaries whose keys are the fields' names.
#include "bindings.h"
#include "kvarter/disk.h"

namespace kvarter::bindings {

py::dict to_dict(const DiskLedger& ledger);
py::dict to_dict(const DiskCounters& counters);
py::dict to_dict(const DiskReport& report);

}  // namespace kvarter::bindings
