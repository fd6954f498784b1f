#include "bindings.h"

namespace kvarter::bindings {

void register_copy(py::module_&) {}

}  // namespace kvarter::bindings
