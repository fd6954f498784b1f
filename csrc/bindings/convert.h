#pragma once
// What the bindings accept as ints, bytes and token ids.
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"

namespace kvarter::bindings {

[[noreturn]] inline void type_error(const std::string& what, py::handle found) {
  throw py::type_error(what + ", found a " + Py_TYPE(found.ptr())->tp_name);
}

// An int in [0, max], or an error that says which.
inline std::uint64_t integer(py::handle value, std::uint64_t max, const std::string& what) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) {
    PyErr_Clear();
    type_error("expected an int as " + what, value);
  }
  const unsigned long long found = PyLong_AsUnsignedLongLong(index.ptr());
  const bool outside = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (outside || found > max)
    throw py::value_error(what + " is " + py::str(index).cast<std::string>() + ", expected 0 to " +
                          std::to_string(max));
  return found;
}

// A Py_buffer, released with this.
struct Buffer {
  Py_buffer view{};

  Buffer() = default;
  Buffer(Buffer&& other) noexcept : view(other.view) { other.view.obj = nullptr; }
  ~Buffer() {
    if (view.obj) PyBuffer_Release(&view);
  }
  // False, with no Python error set, for an object that has no such buffer.
  bool get(py::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view, flags) == 0) return true;
    PyErr_Clear();
    return false;
  }
};

// The bytes of any contiguous buffer, borrowed for as long as this lives.
class Bytes {
 public:
  explicit Bytes(py::handle object) {
    if (!buffer_.get(object, PyBUF_SIMPLE)) type_error("expected contiguous bytes", object);
  }
  std::span<const std::uint8_t> span() const {
    return {static_cast<const std::uint8_t*>(buffer_.view.buf), static_cast<std::size_t>(buffer_.view.len)};
  }

 private:
  Buffer buffer_;
};

// Token ids: borrowed from a C-contiguous uint32 buffer, converted from an int64 one or from a sequence.
class Tokens {
 public:
  explicit Tokens(py::handle object) {
    if (PyObject_CheckBuffer(object.ptr()) && from_buffer(object)) return;
    const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(object.ptr(), ""));
    if (!items) {
      PyErr_Clear();
      type_error("expected a uint32 buffer or a sequence of ints as tokens", object);
    }
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
    values_.resize(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), i);
      int overflow = 0;
      const long long value = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
      values_[static_cast<std::size_t>(i)] =
          value >= 0 && value <= kMax
              ? static_cast<std::uint32_t>(value)
              : static_cast<std::uint32_t>(integer(item, kMax, "tokens[" + std::to_string(i) + "]"));
    }
    span_ = values_;
  }
  Tokens(const Tokens&) = delete;
  std::span<const std::uint32_t> span() const { return span_; }

 private:
  bool from_buffer(py::handle object) {
    if (!buffer_.get(object, PyBUF_ND | PyBUF_FORMAT))
      throw py::value_error("tokens is a buffer with strides, expected a C-contiguous one");
    const Py_buffer& view = buffer_.view;
    if (view.ndim != 1)
      throw py::value_error("tokens has " + std::to_string(view.ndim) + " dimensions, expected 1");
    const std::string_view format = view.format ? view.format : "B";
    if (view.itemsize == 4 && (format == "I" || format == "L")) {
      span_ = {static_cast<const std::uint32_t*>(view.buf), static_cast<std::size_t>(view.len) / 4};
      return true;
    }
    if (view.itemsize != 8 || (format != "q" && format != "l")) return false;
    const std::span wide(static_cast<const std::int64_t*>(view.buf), static_cast<std::size_t>(view.len) / 8);
    for (std::size_t i = 0; i < wide.size(); ++i)
      if (wide[i] < 0 || wide[i] > kMax)
        throw py::value_error("tokens[" + std::to_string(i) + "] is " + std::to_string(wide[i]) +
                              ", expected 0 to " + std::to_string(kMax));
    values_.assign(wide.begin(), wide.end());
    span_ = values_;
    return true;
  }

  static constexpr std::int64_t kMax = std::numeric_limits<std::uint32_t>::max();

  Buffer buffer_;
  std::vector<std::uint32_t> values_;
  std::span<const std::uint32_t> span_;
};

}  // namespace kvarter::bindings
