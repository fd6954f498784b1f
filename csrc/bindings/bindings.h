#pragma once
// One register function per core module, in the order in which they lean on each other.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace kvarter::bindings {

namespace py = pybind11;

void register_status(py::module_& m);
void register_hash(py::module_& m);
void register_node(py::module_& m);
void register_pool(py::module_& m);
void register_copy(py::module_& m);
void register_index(py::module_& m);
void register_remote(py::module_& m);
void register_faulty(py::module_& m);
void register_foreign(py::module_& m);
void register_disk(py::module_& m);
void register_bench(py::module_& m);
void register_card(py::module_& m);

}  // namespace kvarter::bindings
