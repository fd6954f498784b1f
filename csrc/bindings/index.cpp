#include "bindings.h"

namespace kvarter::bindings {

void register_index(py::module_&) {}

}  // namespace kvarter::bindings
