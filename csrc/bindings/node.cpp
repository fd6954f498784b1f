#include "kvarter/node.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <tuple>

#include "bindings.h"
#include "kvarter/embedded.h"
#include "kvarter/window.h"
#include "log.h"

namespace kvarter::bindings {
namespace {

// The two below serve tests and tools: what production uses is C++ (the index, the copy engine).
class RecordingListener final : public Listener {
 public:
  using Entry = std::tuple<std::string, std::uint32_t, std::uint64_t>;

  void on_fenced(std::uint32_t owner, std::uint64_t epoch) override { record({"fenced", owner, epoch}); }
  void on_dead(std::uint32_t owner) override { record({"dead", owner, 0}); }
  void on_tick() override { ++ticks_; }
  std::vector<Entry> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  std::uint64_t ticks() const { return ticks_; }

 private:
  void record(Entry entry) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(entry));
  }
  mutable std::mutex mutex_;
  std::vector<Entry> events_;
  std::atomic<std::uint64_t> ticks_{0};
};

class ManualFence final : public FenceHandler {
 public:
  void fence(std::uint64_t epoch) override {
    std::unique_lock lock(mutex_);
    seen_.push_back(epoch);
    released_.wait(lock, [this] { return open_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    released_.notify_all();
  }
  std::vector<std::uint64_t> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable released_;
  bool open_ = false;
  std::vector<std::uint64_t> seen_;
};

using ExportedTuple = std::tuple<int, std::uint64_t, std::uint32_t, std::uint32_t>;

std::vector<Exported> exported_from(const std::vector<ExportedTuple>& tuples) {
  std::vector<Exported> exported;
  for (const auto& [fd, bytes, kind, arena] : tuples)
    exported.push_back({fd, bytes, static_cast<ArenaKind>(kind), arena});
  return exported;
}

py::array_t<std::uint8_t> view(const std::shared_ptr<Mapping>& mapping, std::span<const std::byte> bytes,
                               bool writable) {
  py::array_t<std::uint8_t> array(static_cast<py::ssize_t>(bytes.size()),
                                  reinterpret_cast<const std::uint8_t*>(bytes.data()), py::cast(mapping));
  if (!writable) array.attr("flags").attr("writeable") = false;
  return array;
}

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

[[noreturn]] void outside(const std::string& which, std::uint32_t arena, std::uint64_t offset,
                          std::uint64_t length, const Mapping& mapping) {
  throw py::index_error(which + ": arena " + std::to_string(arena) + ", offset " + std::to_string(offset) +
                        ", length " + std::to_string(length) + " is outside the arena's " +
                        std::to_string(mapping.payload(arena).size()) + " bytes");
}

py::array_t<std::uint64_t> addresses(const Mapping& mapping, const Column<std::uint32_t>& arenas,
                                     const Column<std::uint64_t>& offsets,
                                     const Column<std::uint64_t>& lengths) {
  if (arenas.ndim() != 1 || offsets.ndim() != 1 || lengths.ndim() != 1 || arenas.size() != offsets.size() ||
      arenas.size() != lengths.size())
    throw py::value_error("arenas, offsets and lengths have " + std::to_string(arenas.size()) + ", " +
                          std::to_string(offsets.size()) + " and " + std::to_string(lengths.size()) +
                          " elements, expected three equally long one-dimensional arrays");
  py::array_t<std::uint64_t> result(arenas.size());
  for (py::ssize_t i = 0; i < arenas.size(); ++i) {
    const std::byte* const found = mapping.address(arenas.data()[i], offsets.data()[i], lengths.data()[i]);
    if (found == nullptr)
      outside("row " + std::to_string(i), arenas.data()[i], offsets.data()[i], lengths.data()[i], mapping);
    result.mutable_data()[i] = reinterpret_cast<std::uintptr_t>(found);
  }
  return result;
}

void register_mapping(py::module_& m) {
  py::class_<Mapping, std::shared_ptr<Mapping>>(
      m, "Mapping", "The pool as this process sees it. Immutable; safe from any thread.")
      .def(py::init([](const std::vector<ExportedTuple>& exported) {
             return std::make_shared<Mapping>(exported_from(exported));
           }),
           py::arg("exported"), "Maps [(fd, bytes, kind, arena), ...]; the descriptors are only borrowed.")
      .def(
          "address",
          [](const Mapping& self, std::uint32_t arena, std::uint64_t offset, std::uint64_t length) {
            const std::byte* const found = self.address(arena, offset, length);
            if (found == nullptr) outside("address", arena, offset, length, self);
            return reinterpret_cast<std::uintptr_t>(found);
          },
          py::arg("arena"), py::arg("offset"), py::arg("length"),
          "Where those bytes lie in this process. IndexError unless all are inside the arena.")
      .def("addresses", &addresses, py::arg("arenas"), py::arg("offsets"), py::arg("lengths"),
           "u32[n], u64[n], u64[n] -> u64[n]. IndexError names the first row that is outside its arena.")
      .def_property_readonly(
          "pool_id",
          [](const Mapping& self) {
            if (self.records().empty()) return py::bytes();
            const auto* header = reinterpret_cast<const RecordsHeader*>(self.records().data());
            return py::bytes(reinterpret_cast<const char*>(header->pool_id), sizeof header->pool_id);
          },
          "16 bytes that tell one pool from another; empty if the pool came without records.")
      .def(
          "payload",
          [](const std::shared_ptr<Mapping>& self, std::uint32_t arena) {
            return view(self, self->payload(arena), true);
          },
          py::arg("arena"), "A whole payload arena, u8[bytes], writable; empty if there is none of that id.")
      .def(
          "records", [](const std::shared_ptr<Mapping>& self) { return view(self, self->records(), false); },
          "u8[bytes], read-only; empty if the pool came without.")
      .def(
          "index", [](const std::shared_ptr<Mapping>& self) { return view(self, self->index(), false); },
          "u8[bytes], read-only; empty if the pool came without.");
}

void register_window(py::module_& m) {
  py::class_<Window, std::shared_ptr<Window>>(
      m, "Window", "Payload arenas side by side, as one piece of memory. Immutable; safe from any thread.")
      .def(py::init([](const std::vector<ExportedTuple>& arenas) {
             return std::make_shared<Window>(exported_from(arenas));
           }),
           py::arg("arenas"),
           "Maps [(fd, bytes, kind, arena), ...] whole, in this order; the descriptors are only borrowed.\n\n"
           "ValueError for none, or an arena that is no multiple of 2 MiB.")
      .def_property_readonly(
          "address", [](const Window& self) { return reinterpret_cast<std::uintptr_t>(self.bytes().data()); },
          "Where it begins in this process.")
      .def_property_readonly(
          "payload",
          [](const std::shared_ptr<Window>& self) {
            return py::array_t<std::uint8_t>(static_cast<py::ssize_t>(self->bytes().size()),
                                             reinterpret_cast<const std::uint8_t*>(self->bytes().data()),
                                             py::cast(self));
          },
          "All of it, u8[bytes], writable.");
}

void register_handlers(py::module_& m) {
  py::class_<Listener, std::shared_ptr<Listener>>(m, "Listener", "What a NodeServer reports to; C++ only.");
  py::class_<RecordingListener, Listener, std::shared_ptr<RecordingListener>>(
      m, "RecordingListener", "Keeps what it hears: ('fenced', owner, epoch) or ('dead', owner, 0).")
      .def(py::init<>())
      .def("events", &RecordingListener::events)
      .def_property_readonly("ticks", &RecordingListener::ticks);
  py::class_<FenceHandler, std::shared_ptr<FenceHandler>>(m, "FenceHandler",
                                                          "What a NodeClient asks on a fence; C++ only.");
  py::class_<ManualFence, FenceHandler, std::shared_ptr<ManualFence>>(
      m, "ManualFence", "Acknowledges no fence before release(), and then all.")
      .def(py::init<>())
      .def("release", &ManualFence::release)
      .def("seen", &ManualFence::seen, "Epochs of the fences it was asked for, in order.");
}

// A reader whose lease may have ended looks whether its slots still are what they were when it leased them.
py::array_t<bool> unchanged(const Mapping& mapping, const Column<std::uint32_t>& records,
                            const Column<std::uint64_t>& generations) {
  if (records.size() != generations.size())
    throw py::value_error(std::to_string(records.size()) + " records and " +
                          std::to_string(generations.size()) + " generations");
  const auto* slots = reinterpret_cast<const SlotRecord*>(mapping.records().data() + records_bytes(0));
  const std::uint64_t count = (mapping.records().size() - records_bytes(0)) / sizeof(SlotRecord);
  py::array_t<bool> result(records.size());
  std::atomic_thread_fence(std::memory_order_acquire);  // the copy's reads come before the words'
  for (py::ssize_t i = 0; i < records.size(); ++i) {
    const std::uint32_t at = records.data()[i];
    result.mutable_data()[i] =
        at < count && slots[at].word.load(std::memory_order_acquire) ==
                          SlotRecord::make_word(generations.data()[i], SlotState::kCommitted);
  }
  return result;
}

void register_embedded(py::module_& m) {
  m.def("unchanged", &unchanged, py::arg("mapping"), py::arg("records"), py::arg("generations"),
        "u32[n], u64[n] -> bool[n]: whether these slot records are committed at these generations.");
  py::class_<CopyFence, FenceHandler, std::shared_ptr<CopyFence>>(m, "CopyFence",
                                                                  "Answers fences for a copy engine.")
      .def(py::init<std::shared_ptr<CopyEngine>>(), py::arg("engine"));
  py::class_<EmbeddedNode>(m, "EmbeddedNode", "A NodeServer whose listener is the index.",
                           py::release_gil_before_calling_cpp_dtor())
      .def(py::init([](Index& index, const std::vector<ExportedTuple>& exported, std::string path,
                       std::uint32_t tick_ms, bool serves, const BoundLog* log, std::uint32_t last_owner) {
             return std::make_unique<EmbeddedNode>(index, exported_from(exported), std::move(path), tick_ms,
                                                   serves, log == nullptr ? nullptr : log->log(), last_owner);
           }),
           py::arg("index"), py::arg("exported"), py::arg("path"), py::arg("tick_ms"),
           py::arg("serves") = false, py::arg("log").none(true) = nullptr, py::arg("last_owner") = 0,
           py::keep_alive<1, 2>(), py::keep_alive<1, 7>())
      .def(
          "open_engine",
          [](EmbeddedNode& node, const std::string& name, std::uint32_t ranks) {
            return node.server().open_engine(name, ranks);
          },
          py::arg("name"), py::arg("ranks"),
          "Lets `ranks` ranks of engine `name` attach; returns the owner id.")
      .def(
          "attached", [](EmbeddedNode& node, std::uint32_t owner) { return node.server().attached(owner); },
          py::arg("owner"), "Ranks whose mapping stands and can be reached.")
      .def(
          "mappers", [](EmbeddedNode& node, std::uint32_t owner) { return node.server().mappers(owner); },
          py::arg("owner"), "Process ids of the live mappers.")
      .def(
          "counters",
          [](EmbeddedNode& node) {
            const NodeCounters n = node.server().counters();
            py::dict d;
            d["connections"] = n.connections;
            d["refused"] = n.refused;
            d["violations"] = n.violations;
            d["sessions"] = n.sessions;
            d["calls"] = n.calls;
            d["mappers_now"] = n.mappers_now;
            d["sessions_now"] = n.sessions_now;
            return d;
          },
          "What came to the door since start.")
      .def(
          "engines",
          [](EmbeddedNode& node) {
            py::list engines;
            for (const EngineStatus& e : node.server().engines())
              engines.append(py::make_tuple(e.owner, e.name, e.ranks, e.attached, e.session, e.pids));
            return engines;
          },
          "(owner, name, ranks, attached, whether its session stands, process ids) of each engine.")
      .def(
          "latencies",
          [](EmbeddedNode& node) {
            py::dict d;
            for (const auto& [verb, counts] : node.latencies())
              d[verb.c_str()] = py::make_tuple(counts.buckets, counts.nanoseconds);
            return d;
          },
          "By verb: ([calls that took less than 2^b ns and no less than half of that, for each b], "
          "nanoseconds "
          "of all).")
      .def(
          "fence",
          [](EmbeddedNode& node, std::uint32_t owner, std::uint64_t epoch) {
            node.server().fence(owner, epoch);
          },
          py::arg("owner"), py::arg("epoch"))
      .def(
          "kill_behind",
          [](EmbeddedNode& node, double seconds) {
            return node.server().kill_behind(
                std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3)));
          },
          py::arg("seconds"), "Kills mappers found behind with a fence for longer; their process ids.")
      .def("fenced", &EmbeddedNode::fenced, py::arg("owner"),
           "The highest epoch whose fences have ended; None before the first.")
      .def(
          "drain", [](EmbeddedNode& node) { node.server().drain(); }, "Lets nobody new in.")
      .def_property_readonly("path", [](EmbeddedNode& node) { return node.server().path(); })
      .def("close", [](EmbeddedNode& node) { node.close(); }, py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void register_node(py::module_& m) {
  const auto& node_error = py::register_exception<NodeError>(m, "NodeError", PyExc_ConnectionError);
  py::register_exception<NodeRefused>(m, "NodeRefused", node_error);
  register_mapping(m);
  register_window(m);
  register_handlers(m);
  register_embedded(m);
  m.def("default_directory", &default_directory,
        "Where sockets go unless told otherwise: under $XDG_RUNTIME_DIR if usable, else the temporary "
        "directory.");

  py::class_<NodeServer>(m, "NodeServer", "The node's side of attaching (csrc/include/kvarter/node.h).",
                         py::release_gil_before_calling_cpp_dtor())
      .def(
          py::init([](std::string path, const std::vector<ExportedTuple>& exported,
                      std::uint32_t layout_version, std::shared_ptr<Listener> listener,
                      std::uint32_t tick_ms) {
            return std::make_unique<NodeServer>(std::move(path), exported_from(exported), layout_version,
                                                std::move(listener), tick_ms);
          }),
          py::arg("path"), py::arg("exported"), py::arg("layout_version"), py::arg("listener").none(false),
          py::arg("tick_ms") = 100,
          "Listens at `path` and hands [(fd, bytes, kind, arena), ...] to whoever may attach. NodeError says "
          "what is wrong with the path, its directory or what lives there.")
      .def("open_engine", &NodeServer::open_engine, py::arg("name"), py::arg("ranks"),
           "Lets `ranks` ranks of engine `name` attach; returns the owner id.")
      .def("attached", &NodeServer::attached, py::arg("owner"),
           "Ranks whose mapping stands and can be reached.")
      .def("fence", &NodeServer::fence, py::arg("owner"), py::arg("epoch"),
           "Asks every mapper to end its copies of epoch <= `epoch`; ends in the listener's on_fenced.")
      .def("mappers", &NodeServer::mappers, py::arg("owner"), "Process ids of the live mappers.")
      .def_property_readonly("path", &NodeServer::path)
      .def("close", &NodeServer::close, py::call_guard<py::gil_scoped_release>());

  py::class_<NodeClient>(m, "NodeClient",
                         "An engine worker's side of attaching (csrc/include/kvarter/node.h).")
      .def(py::init([](const std::string& path, const std::string& engine, std::uint32_t rank,
                       std::uint32_t layout_version, std::shared_ptr<FenceHandler> handler, double timeout) {
             const py::gil_scoped_release released;
             return std::make_unique<NodeClient>(
                 path, engine, rank, layout_version, std::move(handler),
                 std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1e3)));
           }),
           py::arg("path"), py::arg("engine"), py::arg("rank"), py::arg("layout_version"),
           py::arg("handler").none(true) = nullptr, py::arg("timeout") = 10.0,
           "Attaches and maps the pool, within `timeout` seconds. NodeRefused carries the node's sentence; "
           "NodeError says what else went wrong.")
      .def_property_readonly(
          "mapping", [](const NodeClient& self) { return std::const_pointer_cast<Mapping>(self.mapping()); })
      .def_property_readonly("connected", &NodeClient::connected)
      .def_property_readonly("moved", &NodeClient::moved)
      .def_property_readonly("owner", &NodeClient::owner)
      .def("close", &NodeClient::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace kvarter::bindings
