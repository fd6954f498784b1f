#include "bindings.h"

namespace kvarter::bindings {

void register_pool(py::module_&) {}

}  // namespace kvarter::bindings
