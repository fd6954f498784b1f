#include "bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "Kvarter's C++ core; use it through the kvarter package.";
  m.attr("__version__") = KVARTER_VERSION;
  kvarter::bindings::register_status(m);
  kvarter::bindings::register_hash(m);
  kvarter::bindings::register_node(m);
  kvarter::bindings::register_pool(m);
  kvarter::bindings::register_copy(m);
  kvarter::bindings::register_index(m);
  kvarter::bindings::register_remote(m);
  kvarter::bindings::register_faulty(m);
  kvarter::bindings::register_foreign(m);
  kvarter::bindings::register_disk(m);
  kvarter::bindings::register_bench(m);
  kvarter::bindings::register_card(m);
}
