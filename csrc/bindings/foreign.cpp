#include "foreign.h"

#include "chain.h"
#include "kvarter/hash.h"
#include "kvarter/index.h"

namespace kvarter::bindings {
namespace {

using Slots = py::array_t<Slot, py::array::c_style>;

py::array_t<std::uint64_t> checksums(const ForeignArena& arena, const Slots& slots) {
  const auto memory = arena.memory();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(slots.size()));
  const std::span of(slots.data(), sums.size());
  for (const Slot& slot : of)
    if (slot.offset > memory.size() || slot.length > memory.size() - slot.offset)
      throw py::value_error("a slot at " + std::to_string(slot.offset) + " of " +
                            std::to_string(slot.length) + " bytes is not in the arena's " +
                            std::to_string(memory.size()));
  {
    const py::gil_scoped_release release;
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] = xxh3_64({reinterpret_cast<const std::uint8_t*>(memory.data()) + of[i].offset, of[i].length});
  }
  return to_array(std::move(sums));
}

}  // namespace

void register_foreign(py::module_& m) {
  py::class_<ForeignArena>(m, "ForeignArena",
                           R"(Memory of an engine that a DiskLog reads and writes in place of a pool.

buffer: writable and contiguous, of whole pages; held until close. Raises ValueError for one that does not begin and
    end at a page of 4096 bytes.)")
      .def(py::init<py::handle>(), py::arg("buffer"))
      .def_property_readonly("bytes", [](const ForeignArena& arena) { return arena.memory().size(); })
      .def("checksums", &checksums, py::arg("slots"), "XXH3-64 of what the slots hold, uint64[n].")
      .def("close", &ForeignArena::close,
           "Gives the buffer back. Raises ValueError while a log still uses it. Idempotent.");
}

}  // namespace kvarter::bindings
