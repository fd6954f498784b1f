#include "bindings.h"

namespace kvarter::bindings {

void register_hash(py::module_&) {}

}  // namespace kvarter::bindings
