#include "kvarter/pool.h"

#include "bindings.h"

namespace kvarter::bindings {

void register_pool(py::module_& m) {
  m.def(
      "memory_limits",
      [](const std::string& root) {
        const MemoryLimits limits = memory_limits(root);
        py::dict d;
        d["available"] = limits.available;
        d["cgroup_limit"] = limits.cgroup_limit;
        d["cgroup_used"] = limits.cgroup_used;
        return d;
      },
      py::arg("root") = "", "Bytes available on this host and in this process's cgroup (limit 0: none).");
  m.def(
      "check_memory",
      [](std::uint64_t bytes, const std::string& root) { check_memory(bytes, memory_limits(root)); },
      py::arg("bytes"), py::arg("root") = "",
      "Raises ValueError, with the numbers, when a pool of `bytes` does not fit.");

  py::class_<Pool>(m, "Pool", "Shared-memory arenas; the index owns what is in them.")
      .def(py::init<std::uint64_t, std::uint64_t, bool, bool>(), py::arg("bytes"), py::arg("arena_bytes"),
           py::arg("populate") = true, py::arg("huge_pages") = true)
      .def_property_readonly("bytes", &Pool::bytes)
      .def_property_readonly("populated", &Pool::populated)
      .def_property_readonly(
          "pages", [](const Pool& pool) { return name(pool.pages()); },
          "What the arenas are made of: 'hugetlb', 'thp', 'collapsed' or '4k', which may yet be collapsed.")
      .def_property_readonly("nodes", &Pool::nodes, "The NUMA node of each arena; -1 where none was chosen.")
      .def_property_readonly("largest_hole", [](const Pool& pool) { return pool.extents().largest_hole(); })
      .def_property_readonly(
          "arenas",
          [](const Pool& pool) {
            py::list arenas;
            for (const Memfd& arena : pool.arenas()) arenas.append(py::make_tuple(arena.fd(), arena.bytes()));
            return arenas;
          },
          "(descriptor, bytes) of each arena.");
  m.def(
      "adopt_pool",
      [](const std::vector<int>& descriptors) {
        std::vector<Memfd> arenas;
        for (const int fd : descriptors) arenas.push_back(Memfd::adopt(fd));
        return std::make_unique<Pool>(std::move(arenas));
      },
      py::arg("arenas"), "Takes over the arenas of a pool whose process is gone, and their descriptors.");
}

}  // namespace kvarter::bindings
