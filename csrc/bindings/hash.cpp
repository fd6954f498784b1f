#include "kvarter/hash.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "bindings.h"

namespace kvarter::bindings {

namespace {

[[noreturn]] void type_error(const std::string& what, py::handle found) {
  throw py::type_error(what + ", found a " + Py_TYPE(found.ptr())->tp_name);
}

// An int in [0, max], or an error that says which.
std::uint64_t integer(py::handle value, std::uint64_t max, const std::string& what) {
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

// The bytes of any contiguous buffer, borrowed for as long as this lives.
class Bytes {
 public:
  explicit Bytes(py::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE)) {
      PyErr_Clear();
      type_error("expected contiguous bytes", object);
    }
  }
  Bytes(Bytes&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  ~Bytes() { PyBuffer_Release(&view_); }
  std::span<const std::uint8_t> span() const {
    return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// Token ids: borrowed from a C-contiguous uint32 buffer, otherwise converted one by one.
class Tokens {
 public:
  explicit Tokens(py::handle object) {
    if (PyObject_CheckBuffer(object.ptr()) && borrow(object)) return;
    const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(object.ptr(), ""));
    if (!items) {
      PyErr_Clear();
      type_error("expected a uint32 buffer or a sequence of ints as tokens", object);
    }
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
    values_.resize(static_cast<std::size_t>(count));
    constexpr std::uint32_t max = std::numeric_limits<std::uint32_t>::max();
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), i);
      int overflow = 0;
      const long long value = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
      values_[static_cast<std::size_t>(i)] =
          value >= 0 && value <= max
              ? static_cast<std::uint32_t>(value)
              : static_cast<std::uint32_t>(integer(item, max, "tokens[" + std::to_string(i) + "]"));
    }
    span_ = values_;
  }
  Tokens(const Tokens&) = delete;
  ~Tokens() {
    if (view_.obj) PyBuffer_Release(&view_);
  }
  std::span<const std::uint32_t> span() const { return span_; }

 private:
  bool borrow(py::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT)) {
      PyErr_Clear();
      throw py::value_error("tokens is a buffer with strides, expected a C-contiguous one");
    }
    if (view_.ndim != 1)
      throw py::value_error("tokens has " + std::to_string(view_.ndim) + " dimensions, expected 1");
    const std::string_view format = view_.format ? view_.format : "B";
    if (view_.itemsize != 4 || (format != "I" && format != "L" && format != "<I")) return false;
    span_ = {static_cast<const std::uint32_t*>(view_.buf), static_cast<std::size_t>(view_.len) / 4};
    return true;
  }

  Py_buffer view_{};
  std::vector<std::uint32_t> values_;
  std::span<const std::uint32_t> span_;
};

// Extras out of a sequence of (unit, tag, offset, bytes), sorted by unit; the order within a unit stays.
class Extras {
 public:
  explicit Extras(const std::optional<py::sequence>& items) {
    if (!items) return;
    for (py::handle item : *items) {
      if (!PyTuple_Check(item.ptr()) || PyTuple_GET_SIZE(item.ptr()) != 4)
        type_error("expected a tuple (unit, tag, offset, bytes) as an extra", item);
      const auto extra = py::reinterpret_borrow<py::tuple>(item);
      owners_.emplace_back(extra[3]);
      extras_.push_back({integer(extra[0], std::numeric_limits<std::uint64_t>::max(), "an extra's unit"),
                         static_cast<std::uint8_t>(integer(extra[1], 255, "an extra's tag")),
                         static_cast<std::uint32_t>(integer(
                             extra[2], std::numeric_limits<std::uint32_t>::max(), "an extra's offset")),
                         owners_.back().span()});
    }
    std::ranges::stable_sort(extras_, {}, &Extra::unit);
  }
  std::span<const Extra> span() const { return extras_; }

 private:
  std::vector<Bytes> owners_;
  std::vector<Extra> extras_;
};

Digest digest_from(py::handle object, const char* what) {
  const Bytes bytes(object);
  if (bytes.span().size() != 32)
    throw py::value_error(std::string(what) + " has " + std::to_string(bytes.span().size()) +
                          " bytes, expected 32");
  Digest digest;
  std::copy_n(bytes.span().begin(), 32, digest.begin());
  return digest;
}

py::bytes to_bytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::uint32_t unit_size(py::handle unit_tokens) {
  return static_cast<std::uint32_t>(
      integer(unit_tokens, std::numeric_limits<std::uint32_t>::max(), "unit_tokens"));
}

py::array_t<std::uint8_t> digests_for(const Tokens& tokens, std::uint32_t unit) {
  return py::array_t<std::uint8_t>({unit ? tokens.span().size() / unit : 0, std::size_t{32}});
}

py::array_t<std::uint8_t> chain(py::object ids, py::object unit_tokens, py::object previous,
                                std::optional<py::sequence> items) {
  const Tokens tokens(ids);
  const Extras extras(items);
  const std::uint32_t unit = unit_size(unit_tokens);
  const Digest from = digest_from(previous, "root");
  auto digests = digests_for(tokens, unit);
  std::uint8_t* out = digests.mutable_data();
  py::gil_scoped_release release;
  chain_digests(tokens.span(), unit, from, extras.span(), out);
  return digests;
}

std::vector<py::array_t<std::uint8_t>> chain_many(py::sequence sequences, py::object unit_tokens,
                                                  py::sequence roots, std::optional<py::sequence> items) {
  const std::size_t count = sequences.size();
  if (roots.size() != count || (items && items->size() != count))
    throw py::value_error("found " + std::to_string(count) + " sequences, " + std::to_string(roots.size()) +
                          " roots and " + (items ? std::to_string(items->size()) : "no") +
                          " lists of extras, expected as many of each");
  const std::uint32_t unit = unit_size(unit_tokens);
  std::vector<std::unique_ptr<Tokens>> tokens;
  std::vector<Extras> extras;
  std::vector<Chain> chains;
  std::vector<py::array_t<std::uint8_t>> digests;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(std::make_unique<Tokens>(py::object(sequences[i])));
    extras.emplace_back(items ? py::object((*items)[i]).cast<std::optional<py::sequence>>() : std::nullopt);
    digests.push_back(digests_for(*tokens[i], unit));
    chains.push_back({tokens[i]->span(), digest_from(py::object(roots[i]), "a root"), extras[i].span(),
                      digests[i].mutable_data()});
  }
  py::gil_scoped_release release;
  chain_digests(chains, unit);
  return digests;
}

}  // namespace

void register_hash(py::module_& m) {
  m.def(
      "chain_root", [] { return to_bytes(root()); },
      "The digest before the first unit of every sequence: 32 bytes.");
  m.def("chain_digests", &chain, py::arg("tokens"), py::arg("unit_tokens"), py::arg("root"),
        py::arg("extras") = py::none(), R"(Chain digests of every full unit of `tokens` after `root`.

tokens: ids, as a C-contiguous uint32 buffer (numpy array, array('I'); not copied) or a sequence of ints.
unit_tokens: tokens per hash unit.
root: the digest before the first unit, 32 bytes: `chain_root()`, or the last digest so far when extending.
extras: (unit, tag, offset, bytes) tuples: what else a unit depends on. Tags: 1 multimodal item hash, 2 cache
    salt, 3 prompt-embedding digest, 4 engine-defined. Offsets count tokens in the unit. Units in any order; the
    items of one unit are hashed in the order given.

Returns uint8[len(tokens) // unit_tokens, 32]. Raises ValueError or TypeError saying what was found and expected.
Thread-safe; the GIL is released while hashing, and a borrowed buffer must not change meanwhile.)");
  m.def("chain_many", &chain_many, py::arg("sequences"), py::arg("unit_tokens"), py::arg("roots"),
        py::arg("extras") = py::none(),
        R"(`chain_digests` of several sequences, up to four of them interleaved.

sequences, roots and extras (or None) are as long as each other. Returns a list of uint8[n, 32].)");
  m.def(
      "tail_digest",
      [](py::object previous, py::object ids, std::optional<py::sequence> items) {
        const Tokens tokens(ids);
        const Extras extras(items);
        return to_bytes(tail_digest(digest_from(previous, "previous"), tokens.span(), extras.span()));
      },
      py::arg("previous"), py::arg("tokens"), py::arg("extras") = py::none(),
      R"(The digest of a partial tail: of the tokens after the last full unit, whose digest is `previous`.

tokens: at least one, as in `chain_digests`. extras: as there; every unit is 0. Returns 32 bytes.)");
  m.def(
      "sha256", [](py::object data) { return to_bytes(sha256(Bytes(data).span())); }, py::arg("data"),
      "SHA-256 of a contiguous buffer: 32 bytes.");
  m.def(
      "xxh3_64",
      [](py::object data) {
        const Bytes bytes(data);
        py::gil_scoped_release release;
        return xxh3_64(bytes.span());
      },
      py::arg("data"), "XXH3-64 (seed 0) of a contiguous buffer, as an int.");
  m.def(
      "hash_kernels",
      [] {
        py::dict names;
        names["sha256"] = sha256_kernel_name();
        names["xxh3"] = xxh3_kernel_name();
        return names;
      },
      "The kernels in use, by hash. Raises RuntimeError when KVARTER_SHA256 or KVARTER_XXH3 names one this "
      "CPU lacks.");
  m.def(
      "usable_hash_kernels",
      [] {
        py::dict names;
        names["sha256"] = sha256_kernel_names();
        names["xxh3"] = xxh3_kernel_names();
        return names;
      },
      "The kernels this CPU can run, by hash, slowest first: the values of KVARTER_SHA256 and KVARTER_XXH3.");
}

}  // namespace kvarter::bindings
