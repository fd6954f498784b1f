#pragma once
// What the index and the disk log take alike: chains, ranges, arrays.
#include <cstring>

#include "bindings.h"
#include "kvarter/index.h"

namespace kvarter::bindings {

using ByteArray = py::array_t<std::uint8_t, py::array::c_style>;
template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

inline Digest digest_from(const py::bytes& bytes, const char* what) {
  const std::string_view view = bytes;
  Digest digest;
  if (view.size() != digest.size())
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(view.size()) +
                                " bytes; expected 32");
  std::memcpy(digest.data(), view.data(), digest.size());
  return digest;
}

// Keeps the digests alive that its Chain looks at.
struct BoundChain {
  ByteArray digests;
  Chain chain;
  BoundChain(std::uint32_t ns, ByteArray d, std::uint64_t first_unit, const py::bytes& parent)
      : digests(std::move(d)) {
    if (digests.ndim() != 2 || digests.shape(1) != 32)
      throw std::invalid_argument("digests must be an array uint8[units, 32]");
    chain.ns = ns;
    chain.first_unit = first_unit;
    if (first_unit > 0) chain.parent = digest_from(parent, "parent");
    chain.digests = {reinterpret_cast<const Digest*>(digests.data()),
                     static_cast<std::size_t>(digests.shape(0))};
  }
};

template <class T>
std::span<const T> view(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}
// Takes the values over instead of copying them.
template <class T>
py::array_t<T> to_array(std::vector<T>&& values) {
  auto* const kept = new std::vector<T>(std::move(values));
  const py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

inline std::vector<Range> ranges_from(
    const std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>>& tuples) {
  std::vector<Range> ranges;
  for (const auto& [group, first, count] : tuples) ranges.push_back({group, first, count});
  return ranges;
}

}  // namespace kvarter::bindings
