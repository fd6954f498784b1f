#pragma once
// What the two halves of the module share.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarter::ucx {

namespace py = pybind11;

using Ints = py::array_t<std::int64_t, py::array::c_style>;
using Words = py::array_t<std::uint64_t, py::array::c_style>;
using Octets = py::array_t<std::uint8_t, py::array::c_style>;

inline py::bytes to_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void register_events(py::module_& m);

}  // namespace kvarter::ucx
