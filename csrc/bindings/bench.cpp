// Plain baselines for bench/: what somebody without a copy engine would write, over the same segments and in
// the same language, so that a row compares copies and not interpreters.
#include <cstring>

#include "bindings.h"
#include "kvarter/copy.h"
#include "kvarter/hash.h"

namespace kvarter::bindings {

namespace {

using Ints = py::array_t<std::int64_t, py::array::c_style>;
using Words = py::array_t<std::uint64_t, py::array::c_style>;

// Each block is hashed right after it was copied, while it is as warm as it gets.
std::uint64_t memcpy_blocks(const Blocks& blocks, bool gather, const Ints& engine_blocks, const Words& slots,
                            bool checksum) {
  if (engine_blocks.size() != slots.size())
    throw py::value_error(std::to_string(engine_blocks.size()) + " engine blocks and " +
                          std::to_string(slots.size()) + " slots");
  const std::int64_t* block = engine_blocks.data();
  const std::uint64_t* slot = slots.data();
  const auto count = static_cast<std::size_t>(slots.size());
  const py::gil_scoped_release release;
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < count; ++i) {
    auto* const begin = reinterpret_cast<std::byte*>(slot[i]);
    std::byte* at = begin;
    for (const Blocks::Segment& segment : blocks.segments()) {
      std::byte* engine = segment.base + static_cast<std::size_t>(block[i]) * segment.block_stride;
      gather ? std::memcpy(at, engine, segment.bytes) : std::memcpy(engine, at, segment.bytes);
      at += segment.bytes;
    }
    if (checksum) all ^= xxh3_64({reinterpret_cast<const std::uint8_t*>(begin), blocks.bytes()});
  }
  return all;
}

}  // namespace

void register_bench(py::module_& m) {
  py::module_ bench = m.def_submodule("_bench", "Plain baselines for bench/; not part of the package.");
  bench.def(
      "memcpy_blocks", &memcpy_blocks, py::arg("blocks"), py::arg("gather"), py::arg("engine_blocks"),
      py::arg("slots"), py::arg("checksum"),
      R"(memcpy() of every segment, and XXH3-64 of each slot after it when `checksum`; all of them xored.

engine_blocks: int64[n], in range. slots: uint64[n], addresses. Both trusted. Releases the GIL.)");
}

}  // namespace kvarter::bindings
