#include "bindings.h"

namespace kvarter::bindings {

void register_node(py::module_&) {}

}  // namespace kvarter::bindings
