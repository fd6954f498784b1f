#include "kvarter/copy.h"

#include <cmath>

#include "bindings.h"
#include "convert.h"
#include "kvarter/mapping.h"

namespace kvarter::bindings {

namespace {

using Ints = py::array_t<std::int64_t, py::array::c_style>;
using Words = py::array_t<std::uint64_t, py::array::c_style>;
using RegionTuple = std::tuple<std::uintptr_t, std::size_t, std::size_t, std::size_t, std::size_t>;

Blocks make_blocks(const std::vector<RegionTuple>& tuples, std::size_t num_blocks) {
  std::vector<Region> regions;
  for (const auto& [base, block_stride, segment_bytes, segments, segment_stride] : tuples)
    regions.push_back(
        {reinterpret_cast<std::byte*>(base), block_stride, segment_bytes, segments, segment_stride});
  return Blocks(regions, num_blocks);
}

std::chrono::nanoseconds duration(double seconds, const char* what) {
  constexpr double kForEver = 1e9;  // seconds; larger ones do not fit
  if (std::isnan(seconds)) throw py::value_error(std::string(what) + " is not a number");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, -kForEver, kForEver) * 1e9));
}

Direction direction_from(const std::string& name) {
  if (name == "gather") return Direction::kGather;
  if (name == "scatter") return Direction::kScatter;
  throw py::value_error("direction is '" + name + "', expected 'gather' or 'scatter'");
}

void check_length(const py::array& array, py::ssize_t expected, const char* what) {
  if (array.ndim() != 1 || array.size() != expected)
    throw py::value_error(
        std::string(what) + " has shape " + py::str(array.attr("shape")).cast<std::string>() +
        ", expected one value for each of the " + std::to_string(expected) + " engine blocks");
}

Ticket submit(CopyEngine& engine, const std::string& direction_name, std::shared_ptr<const Blocks> blocks,
              const Ints& engine_blocks, const Words& slots, const std::optional<Words>& checksums,
              std::uint64_t epoch, bool verify, Stream compute) {
  const Direction direction = direction_from(direction_name);
  check_length(engine_blocks, engine_blocks.size(), "engine_blocks");
  check_length(slots, engine_blocks.size(), "slots");
  if (checksums) check_length(*checksums, engine_blocks.size(), "checksums");
  if (checksums && direction == Direction::kGather)
    throw py::value_error("a gather computes its checksums, expected none");
  if (!checksums && direction == Direction::kScatter) verify = false;
  std::vector<Copy> copies(static_cast<std::size_t>(engine_blocks.size()));
  for (std::size_t i = 0; i < copies.size(); ++i)
    copies[i] = {static_cast<std::uint64_t>(engine_blocks.data()[i]),
                 reinterpret_cast<std::byte*>(slots.data()[i]), checksums ? checksums->data()[i] : 0, verify};
  py::gil_scoped_release release;
  return engine.submit(direction, std::move(blocks), std::move(copies), epoch, compute);
}

py::tuple take(CopyEngine& engine, Ticket ticket) {
  const std::vector<Result> results = engine.take(ticket);
  py::array_t<std::uint8_t> statuses(static_cast<py::ssize_t>(results.size()));
  py::array_t<std::uint64_t> checksums(static_cast<py::ssize_t>(results.size()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    statuses.mutable_data()[i] = static_cast<std::uint8_t>(results[i].status);
    checksums.mutable_data()[i] = results[i].checksum;
  }
  return py::make_tuple(statuses, checksums);
}

}  // namespace

void register_copy(py::module_& m) {
  py::class_<Blocks, std::shared_ptr<Blocks>>(
      m, "Blocks",
      R"(The engine's blocks of one cache group, and how each lies in a slot.

regions: one (base_address, block_stride, segment_bytes, segments, segment_stride) per tensor, in bytes: block b is
    `segments` runs of segment_bytes, the s-th at base_address + b * block_stride + s * segment_stride. What lies
    between them is never read or written. A slot holds the segments of all regions, one after the other.
num_blocks: blocks in each tensor.

Addresses are trusted and nothing is kept alive: the tensors must outlive every batch. Immutable, thread-safe.
Raises ValueError for strides at which segments or blocks overlap, and for nothing to copy.)")
      .def(py::init(&make_blocks), py::arg("regions"), py::arg("num_blocks"))
      .def_property_readonly("bytes", &Blocks::bytes, "Bytes of one block without padding: a slot's room.")
      .def_property_readonly("num_blocks", &Blocks::num_blocks)
      .def("__repr__", [](const Blocks& self) {
        return "<Blocks " + std::to_string(self.num_blocks()) + " of " + std::to_string(self.bytes()) +
               " bytes in " + std::to_string(self.segments().size()) + " segments>";
      });

  py::class_<CopyEngine, std::shared_ptr<CopyEngine>>(
      m, "CopyEngine", py::release_gil_before_calling_cpp_dtor(),
      R"(Moves blocks between an engine's memory and slots: submit a batch, poll or wait, take the results.

Every method may be called from any thread; submit, wait and fence release the GIL.)")
      .def("submit", &submit, py::arg("direction"), py::arg("blocks"), py::arg("engine_blocks"),
           py::arg("slots"), py::arg("checksums") = py::none(), py::arg("epoch") = 0, py::kw_only(),
           py::arg("verify") = true, py::arg("compute") = 0,
           R"(Copies a batch of blocks and returns its ticket, an int.

direction: "gather" (engine to slot) or "scatter" (slot to engine).
engine_blocks: int64[n], indices of engine blocks; one out of range is answered Rejected.
slots: uint64[n], addresses of the slots, `blocks.bytes` each. Trusted.
checksums: for a scatter, uint64[n]: the XXH3-64 each slot must have, or None to compare nothing.
epoch: what `fence` ends.
verify: False copies without computing checksums.
compute: handle of the stream that the engine computes on; the copies wait for what is on it now. 0: the default one.

Raises ValueError for another direction or arrays of other lengths.)")
      .def("poll", &CopyEngine::poll, py::arg("ticket"), "True when the batch is done. Never waits.")
      .def(
          "wait",
          [](CopyEngine& engine, Ticket ticket, double timeout) {
            return engine.wait(ticket, duration(timeout, "timeout"));
          },
          py::arg("ticket"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
          "Waits until the batch is done, at most `timeout` seconds, and says whether it is.")
      .def("take", &take, py::arg("ticket"),
           R"(The results of a finished batch: (uint8[n] of Status, uint64[n] checksums of the slots' bytes).

Ends the ticket: take every ticket once. A scatter that is Corrupt has written its bytes: what the engine block holds
is undefined and must not be read. Raises ValueError for a batch that is not done and for an unknown ticket.)")
      .def("fence", &CopyEngine::fence, py::arg("epoch"), py::call_guard<py::gil_scoped_release>(),
           R"(Answers every block of an epoch up to `epoch` that is not yet begun Closed, now and for ever.

Returns when none of them is being copied: from then on no slot of these epochs is touched.)")
      .def(
          "order",
          [](CopyEngine& engine, Ticket ticket, Stream compute, double timeout) {
            return engine.order(ticket, compute, duration(timeout, "timeout"));
          },
          py::arg("ticket"), py::arg("compute"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
          R"(Makes what is put on the stream `compute` from now on find the batch done; False if that took too long.

A device's engine waits only until the batch has been given to the device, others until it is done, and at most `timeout`
seconds.)")
      .def(
          "prepare",
          [](CopyEngine& engine, const std::shared_ptr<const Mapping>& mapping) {
            std::vector<std::string> refused;
            for (std::uint32_t arena = 0; arena < kMaxArenas; ++arena) {
              const auto memory = mapping->payload(arena);
              if (memory.empty()) continue;
              if (auto why = engine.prepare(memory, mapping); !why.empty()) refused.push_back(std::move(why));
            }
            return refused;
          },
          py::arg("mapping"), py::call_guard<py::gil_scoped_release>(),
          R"(Page-locks the pool for the engine's device; sentences that say what was refused.

Slots that are not locked are copied too, more slowly. Takes as long as the driver takes for the memory; the pool stays
mapped until the engine is gone. Nothing for engines without a device.)")
      .def(
          "account",
          [](const CopyEngine& engine) {
            const CopyAccount account = engine.account();
            py::dict numbers;
            numbers["locked_bytes"] = account.locked_bytes;
            numbers["refused_bytes"] = account.refused_bytes;
            numbers["batched_bytes"] = account.batched_bytes;
            numbers["single_bytes"] = account.single_bytes;
            numbers["kernel_bytes"] = account.kernel_bytes;
            numbers["gather_kernel"] = account.gather_kernel;
            numbers["scatter_kernel"] = account.scatter_kernel;
            numbers["errors"] = account.errors;
            return numbers;
          },
          R"(What a device's engine has done, by name: bytes page-locked and refused, bytes moved in batches of the driver's,
singly and by our kernel, the lengths below which runs go by kernel, and errors of the driver.)")
      .def_property_readonly("name", &CopyEngine::name)
      .def("__repr__", [](const CopyEngine& self) { return "<CopyEngine " + self.name() + ">"; });

  m.def("HostCopyEngine", &make_host_copy_engine, py::arg("threads") = 0,
        R"(A copy engine for memory that the CPU addresses.

threads: 0 copies inside `submit`, in the caller's thread; otherwise batches queue, first in first out. Raises
RuntimeError when KVARTER_COPY names a kernel this CPU lacks.)");
  m.def(
      "CudaCopyEngine",
      [](int device, std::string driver, unsigned threads, std::int64_t kernel_below) {
        return make_cuda_copy_engine({device, std::move(driver), threads, kernel_below});
      },
      py::arg("device"), py::kw_only(), py::arg("driver") = "", py::arg("threads") = 2,
      py::arg("kernel_below") = -1, py::call_guard<py::gil_scoped_release>(),
      R"(A copy engine for memory of a CUDA device.

device: its ordinal, as torch counts. driver: path of the driver's library; "": libcuda.so.1. threads: that compute
checksums, in each direction. kernel_below: runs shorter than this many bytes are moved by a kernel; 0: none; -1: as
measured when the pool is prepared. Raises RuntimeError, saying what was found, without a driver or such a device.)");
  m.def(
      "find_cuda_driver",
      [](const std::string& driver) {
        const DriverFound found = find_cuda_driver(driver);
        py::dict what;
        what["missing"] = found.missing;
        what["version"] = found.version;
        what["batches"] = found.batches;
        what["devices"] = found.devices;
        return what;
      },
      py::arg("driver") = "",
      "What is found as a driver: \"missing\" says why there is none; \"version\" 12080 is 12.8.");
  m.def(
      "FaultyCopyEngine",
      [](std::shared_ptr<CopyEngine> inner, double delay, std::uint64_t fail_every, std::uint64_t flip_every,
         Status fail_status, std::uint64_t seed) {
        return make_faulty_copy_engine(std::move(inner),
                                       {duration(delay, "delay"), fail_every, flip_every, fail_status, seed});
      },
      py::arg("inner"), py::arg("delay") = 0.0, py::arg("fail_every") = 0, py::arg("flip_every") = 0,
      py::arg("fail_status") = Status::kTimedOut, py::arg("seed") = 0,
      R"(A copy engine that passes blocks on to `inner` one by one, from a thread of its own, and does harm, for tests.

delay: seconds before every block. fail_every: every n-th block is not copied and gets fail_status (TimedOut or
Rejected). flip_every: one byte of every n-th block's slot changes, after a gather and before a scatter. 0: never.)");
  m.def(
      "copy_kernels",
      [] {
        py::dict names;
        names["copy"] = copy_kernel_name();
        return names;
      },
      "The kernel in use. Raises RuntimeError when KVARTER_COPY names one this CPU lacks.");
  m.def(
      "usable_copy_kernels",
      [] {
        py::dict names;
        names["copy"] = copy_kernel_names();
        return names;
      },
      "The kernels this CPU can run, slowest first: the values of KVARTER_COPY.");
}

}  // namespace kvarter::bindings
