// The disk in memory that fails on command; for tests.
#include "bindings.h"
#include "kvarter/device.h"

namespace kvarter::bindings {

void register_faulty(py::module_& m) {
  py::class_<FaultyDisk, std::shared_ptr<FaultyDisk>>(
      m, "FaultyDisk", "A disk in memory that fails, delays, shortens and crashes on command; for tests.")
      .def(py::init<std::uint64_t>(), py::arg("seed") = 0)
      .def(
          "set",
          [](FaultyDisk& disk, std::uint64_t fail_reads_every, std::uint64_t fail_writes_every,
             std::uint64_t fail_syncs_every, std::uint64_t short_every, std::uint64_t hold,
             std::uint64_t bytes, std::uint64_t crash_at) {
            disk.set(
                {fail_reads_every, fail_writes_every, fail_syncs_every, short_every, hold, bytes, crash_at});
          },
          py::kw_only(), py::arg("fail_reads_every") = 0, py::arg("fail_writes_every") = 0,
          py::arg("fail_syncs_every") = 0, py::arg("short_every") = 0, py::arg("hold") = 0,
          py::arg("bytes") = ~std::uint64_t{0}, py::arg("crash_at") = 0,
          "What it does from now on. *_every: each n-th one fails or is cut short. hold: an operation is "
          "done after\n"
          "so many looks. bytes: its size. crash_at: the n-th write, sync or change of the directory; 0: "
          "never.")
      .def("points", &FaultyDisk::points, "Writes, syncs and changes of the directory so far.")
      .def_property_readonly("crashed", &FaultyDisk::crashed)
      .def("crash", &FaultyDisk::crash, py::arg("seed"),
           "Power is lost: of what was not synced, some sectors of 512 bytes arrive. Logs on it are dead.")
      .def("files", &FaultyDisk::files);
}

}  // namespace kvarter::bindings
