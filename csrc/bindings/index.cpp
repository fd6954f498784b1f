#include "kvarter/index.h"

#include <pybind11/native_enum.h>

#include "bindings.h"
#include "chain.h"
#include "kvarter/remote.h"

namespace kvarter::bindings {
namespace {

template <class I>
py::tuple reserve(I& index, const BoundChain& chain,
                  std::tuple<std::uint32_t, std::uint64_t, std::uint64_t> range,
                  std::pair<std::uint32_t, std::uint32_t> shards, Owner owner, std::uint64_t deadline) {
  std::vector<Slot> slots;
  std::vector<Reserved> blocks;
  {
    const py::gil_scoped_release release;
    const auto [group, first, count] = range;
    blocks = index.reserve(chain.chain, {group, first, count}, {shards.first, shards.second}, owner, deadline,
                           slots);
  }
  py::array_t<std::uint8_t> status(static_cast<py::ssize_t>(blocks.size())), reason(status.size());
  py::array_t<std::uint64_t> handles(status.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    status.mutable_data()[i] = static_cast<std::uint8_t>(blocks[i].status);
    reason.mutable_data()[i] = static_cast<std::uint8_t>(blocks[i].reason);
    handles.mutable_data()[i] = blocks[i].handle;
  }
  return py::make_tuple(status, reason, handles, to_array(std::move(slots)));
}

template <class I>
py::tuple changes(I& index, Owner owner) {
  std::vector<Change> since;
  bool all = false;
  {
    const py::gil_scoped_release release;
    all = index.changes(owner, since);
  }
  py::array_t<std::uint64_t> handles(static_cast<py::ssize_t>(since.size()));
  py::array_t<std::uint8_t> reasons(handles.size());
  for (std::size_t i = 0; i < since.size(); ++i) {
    handles.mutable_data()[i] = since[i].handle;
    reasons.mutable_data()[i] = static_cast<std::uint8_t>(since[i].reason);
  }
  return py::make_tuple(all, handles, reasons);
}

template <class I>
py::array_t<bool> resident(const I& index, const Array<std::uint64_t>& handles) {
  std::vector<bool> there;
  {
    const py::gil_scoped_release release;
    there = index.resident(view(handles));
  }
  py::array_t<bool> result(static_cast<py::ssize_t>(there.size()));
  std::copy(there.begin(), there.end(), result.mutable_data());
  return result;
}

py::dict ledger_dict(const Ledger& l) {
  py::dict d;
  d["capacity"] = l.capacity;
  d["free"] = l.free;
  d["reserved"] = l.reserved;
  d["leased"] = l.leased;
  d["pinned"] = l.pinned;
  d["resident"] = l.resident;
  d["quarantined"] = l.quarantined;
  d["dead"] = l.dead;
  d["overhead"] = l.overhead;
  return d;
}

py::dict counters_dict(const Counters& n) {
  py::dict d;
  d["offered"] = n.offered;
  d["stored"] = n.stored;
  d["in_flight"] = n.in_flight;
  d["resident_blocks"] = n.resident_blocks;
  d["leased"] = n.leased;
  d["loaded"] = n.loaded;
  d["load_failed"] = n.load_failed;
  d["load_unused"] = n.load_unused;
  d["load_expired"] = n.load_expired;
  d["leased_now"] = n.leased_now;
  d["loaded_bytes"] = n.loaded_bytes;
  d["stored_bytes"] = n.stored_bytes;
  d["evicted_bytes"] = n.evicted_bytes;
  d["evicted_offered"] = n.evicted_offered;
  d["moved"] = n.moved;
  d["moved_bytes"] = n.moved_bytes;
  for (int r = 1; r < static_cast<int>(Reason::kCount); ++r) d[name(static_cast<Reason>(r))] = n.reasons[r];
  return d;
}

// Read-only, and alive as long as the index is.
template <class T>
py::array column(const py::object& index, const T* first, std::uint32_t rows,
                 py::ssize_t stride = sizeof(T)) {
  py::array view(py::dtype::of<T>(), {static_cast<py::ssize_t>(rows)}, {stride}, first, index);
  view.attr("flags").attr("writeable") = false;
  return view;
}

py::dict columns_dict(const py::object& self) {
  const View c = self.cast<const Index&>().view();
  const std::uint32_t rows = c.rows;
  py::dict d;
  d["last_use"] = column(self, c.last_use, rows);
  d["hits"] = column(self, c.hits, rows);
  d["depth"] = column(self, c.depth, rows);
  d["klass"] = column(self, c.klass, rows);
  d["bytes"] = column(self, c.bytes, rows);
  d["children"] = column(self, c.children, rows);
  d["leases"] = column(self, c.leases, rows);
  d["pins"] = column(self, c.pins, rows);
  d["parent"] = column(self, c.parent, rows);
  d["ns"] = column(self, c.ns, rows);
  d["group"] = column(self, c.group, rows);
  d["state"] = column(self, c.state, rows);
  d["generation"] = column(self, c.generation, rows);
  d["slot"] = column(self, c.slot, rows);
  d["entry"] = column(self, &c.records->entry, rows, sizeof(SlotRecord));
  return d;
}

// What a scheduler asks, of its own index or of a node's.
template <class I>
void def_calls(py::class_<I>& c) {
  using release = py::call_guard<py::gil_scoped_release>;
  c.def(
       "leading",
       [](const I& index, const BoundChain& chain, std::uint32_t group, std::uint64_t limit) {
         return index.leading(chain.chain, group, limit);
       },
       py::arg("chain"), py::arg("group"), py::arg("limit"), release())
      .def(
          "last_run",
          [](const I& index, const BoundChain& chain, std::uint32_t group, std::uint64_t end,
             std::uint64_t run,
             std::uint64_t step) { return index.last_run(chain.chain, group, end, run, step); },
          py::arg("chain"), py::arg("group"), py::arg("end"), py::arg("run"), py::arg("step"), release())
      .def(
          "contains",
          [](const I& index, const BoundChain& chain, std::uint32_t group, std::uint64_t block) {
            return index.contains(chain.chain, group, block);
          },
          py::arg("chain"), py::arg("group"), py::arg("block"), release())
      .def_property_readonly("version", &I::version)
      .def(
          "lease",
          [](I& index, const BoundChain& chain,
             const std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>>& tuples,
             LeaseKind kind, Owner owner, std::uint64_t deadline, std::uint64_t bytes) {
            LeaseId id = 0;
            const Status status =
                index.lease(chain.chain, ranges_from(tuples), kind, owner, deadline, bytes, id);
            return std::pair(status, id);
          },
          py::arg("chain"), py::arg("ranges"), py::arg("kind"), py::arg("owner"), py::arg("deadline"),
          py::arg("bytes") = 0, release())
      .def(
          "slots",
          [](I& index, LeaseId id) {
            std::vector<Slot> slots;
            {
              const py::gil_scoped_release released;
              slots = index.slots(id);
            }
            return to_array(std::move(slots));
          },
          py::arg("lease"))
      .def("release", &I::release, py::arg("lease"), py::arg("outcome"), release())
      .def(
          "drop_corrupt",
          [](I& index, LeaseId id, const std::vector<std::uint32_t>& positions) {
            index.drop_corrupt(id, positions);
          },
          py::arg("lease"), py::arg("positions"), release())
      .def("reserve", &reserve<I>, py::arg("chain"), py::arg("range"), py::arg("shards"), py::arg("owner"),
           py::arg("deadline"),
           "-> (status uint8[n], reason uint8[n], handles uint64[n], slots SLOT_DTYPE[k])")
      .def(
          "complete",
          [](I& index, const Array<std::uint64_t>& handles, std::uint32_t shard,
             const Array<std::uint8_t>& ok, const Array<std::uint64_t>& checksums) {
            index.complete(view(handles), shard, view(ok), view(checksums));
          },
          py::arg("handles"), py::arg("shard"), py::arg("ok"), py::arg("checksums"), release())
      .def(
          "abort",
          [](I& index, const Array<std::uint64_t>& handles, std::pair<std::uint32_t, std::uint32_t> shards) {
            index.abort(view(handles), {shards.first, shards.second});
          },
          py::arg("handles"), py::arg("shards") = std::pair(0, 0), release())
      .def("epoch", &I::epoch, py::arg("owner"))
      .def(
          "watch", [](I& index, std::size_t at_most, Owner owner) { index.watch(owner, at_most); },
          py::arg("at_most"), py::arg("owner") = 0, release())
      .def("changes", &changes<I>, py::arg("owner") = 0,
           "-> (whether it is all that happened, handles uint64[n], reasons uint8[n]: 0 came, else why it "
           "went)")
      .def(
          "handles",
          [](const I& index, const BoundChain& chain,
             std::tuple<std::uint32_t, std::uint64_t, std::uint64_t> range) {
            std::vector<Handle> handles;
            {
              const py::gil_scoped_release released;
              const auto [group, first, count] = range;
              handles = index.handles(chain.chain, {group, first, count});
            }
            return py::array_t<std::uint64_t>(static_cast<py::ssize_t>(handles.size()), handles.data());
          },
          py::arg("chain"), py::arg("range"), "-> uint64[n]; 0: not resident")
      .def("resident", &resident<I>, py::arg("handles"), "-> bool[n]")
      .def_property_readonly(
          "pool_id",
          [](const I& index) {
            const auto id = index.pool_id();
            return py::bytes(reinterpret_cast<const char*>(id.data()), id.size());
          },
          "16 bytes that tell one pool from another.")
      .def("counters", [](const I& index) { return counters_dict(index.counters()); });
}

}  // namespace

void register_index(py::module_& m) {
  PYBIND11_NUMPY_DTYPE(Slot, record, arena, offset, length, checksum, generation);
  m.attr("SLOT_DTYPE") = py::dtype::of<Slot>();
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("GRANULE") = kGranule;
  m.attr("MOST_OFFERED") = kMostOffered;

  py::native_enum<LeaseKind>(m, "LeaseKind", "enum.IntEnum", "What a lease is for.")
      .value("Read", LeaseKind::kRead)
      .value("Hold", LeaseKind::kHold)
      .value("Pin", LeaseKind::kPin)
      .value("Copy", LeaseKind::kCopy)
      .finalize();
  py::native_enum<Outcome>(m, "Outcome", "enum.IntEnum", "How a read lease ended.")
      .value("Loaded", Outcome::kLoaded)
      .value("Failed", Outcome::kFailed)
      .value("Unused", Outcome::kUnused)
      .value("Expired", Outcome::kExpired)
      .finalize();
  py::list reasons;
  for (int r = 0; r < static_cast<int>(Reason::kCount); ++r) reasons.append(name(static_cast<Reason>(r)));
  m.attr("REASONS") = py::tuple(reasons);

  py::class_<Clock>(m, "Clock", "Nanoseconds since a fixed moment.").def("now", &Clock::now);
  py::class_<SteadyClock, Clock>(m, "SteadyClock", "The system's monotonic clock.").def(py::init<>());
  py::class_<SteppedClock, Clock>(m, "SteppedClock", "Moves only when told to; for tests.")
      .def(py::init<>())
      .def(
          "advance",
          [](SteppedClock& clock, double seconds) {
            clock.advance(static_cast<std::uint64_t>(seconds * 1e9));
          },
          py::arg("seconds"));

  py::class_<BoundChain>(m, "Chain",
                         "Digests uint8[units, 32] of a sequence in one namespace, from first_unit on.")
      .def(py::init<std::uint32_t, ByteArray, std::uint64_t, py::bytes>(), py::arg("ns"), py::arg("digests"),
           py::arg("first_unit") = 0, py::arg("parent") = py::bytes());

  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<Index> index(m, "Index",
                          "What is in the pool, where, and whose; see csrc/include/kvarter/index.h.");
  def_calls(index);
  index
      .def(py::init([](Pool& pool, const Clock& clock, std::uint32_t max_slots, double hold_share,
                       double headroom) {
             return std::make_unique<Index>(Index::Options{max_slots, hold_share, headroom}, pool, clock);
           }),
           py::arg("pool"), py::arg("clock"), py::arg("max_slots"), py::arg("hold_share") = 0.5,
           py::arg("headroom") = 0.02, py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def(
          "open_namespace",
          [](Index& index, const py::bytes& digest,
             const std::vector<std::tuple<std::uint32_t, std::uint32_t, bool, std::vector<std::uint64_t>>>&
                 groups) {
            std::vector<GroupShape> shapes;
            for (const auto& [stride, subs, chained, bytes] : groups)
              shapes.push_back({stride, subs, chained, bytes});
            return index.open_namespace(digest_from(digest, "namespace digest"), shapes);
          },
          py::arg("digest"), py::arg("groups"), "groups: (unit_stride, subs, chained, shard_bytes) of each.")
      .def("invalidate", &Index::invalidate, py::arg("ns"), release())
      .def(
          "lineage",
          [](const Index& index, std::uint32_t ns, std::uint16_t group, std::uint16_t sub,
             const py::bytes& digest) -> py::object {
            const Key key{ns, group, sub, digest_from(digest, "digest")};
            std::optional<Lineage> found;
            {
              const py::gil_scoped_release release;
              found = index.lineage(key);
            }
            if (!found) return py::none();
            ByteArray digests({static_cast<py::ssize_t>(found->digests.size()), py::ssize_t{32}});
            std::memcpy(digests.mutable_data(), found->digests.data(), 32 * found->digests.size());
            return py::make_tuple(digests, found->first_unit, found->block);
          },
          py::arg("ns"), py::arg("group"), py::arg("sub"), py::arg("digest"),
          "Where in its sequence a block is: (digests uint8[n, 32], first_unit, block); None when it is not\n"
          "resident. The digests of units in which no block ends are 0.")
      .def("set_share", &Index::set_share, py::arg("ns"), py::arg("floor"), py::arg("quota"), release())
      .def(
          "classify",
          [](Index& index, const BoundChain& chain, std::uint32_t group, std::uint64_t first,
             const Array<std::uint16_t>& classes) {
            return index.classify(chain.chain, group, first, view(classes));
          },
          py::arg("chain"), py::arg("group"), py::arg("first"), py::arg("classes"))
      .def(
          "offer_victims",
          [](Index& index, const Array<std::uint32_t>& rows, const Array<std::uint32_t>& generations) {
            return index.offer_victims(view(rows), view(generations));
          },
          py::arg("rows"), py::arg("generations"))
      .def("charge", &Index::charge, py::arg("bytes"), release())
      .def_property_readonly("victims_wanted", &Index::victims_wanted)
      .def_property_readonly("columns", &columns_dict,
                             "Read-only arrays, a row an entry; `entry` is by record: entry[slot[row]].")
      .def(
          "tick",
          [](Index& index) {
            std::vector<std::pair<Owner, std::uint64_t>> fences;
            for (const FenceRequest& fence : index.tick()) fences.emplace_back(fence.owner, fence.epoch);
            return fences;
          },
          release())
      .def("fenced", &Index::fenced, py::arg("owner"), py::arg("epoch"), release())
      .def_property_readonly("last_owner", &Index::last_owner)
      .def_property_readonly("first_epoch", &Index::first_epoch)
      .def("owner_dead", &Index::owner_dead, py::arg("owner"), release())
      .def("ledger", [](const Index& index) { return ledger_dict(index.ledger()); })
      .def("evictable", &Index::evictable, release())
      .def("audit", &Index::audit, release())
      .def_property_readonly(
          "memfds",
          [](const Index& index) {
            return py::make_tuple(py::make_tuple(index.records().fd(), index.records().bytes()),
                                  py::make_tuple(index.columns().fd(), index.columns().bytes()));
          },
          "(descriptor, bytes) of the records and of the columns.");
  m.def(
      "adopt_index",
      [](Pool& pool, const Clock& clock, int records, double hold_share, double headroom) {
        Memfd file = Memfd::adopt(records);
        RecordsHeader header;
        std::memcpy(&header, file.data(), sizeof header);
        return std::make_unique<Index>(Index::Options{header.max_slots, hold_share, headroom}, pool, clock,
                                       std::move(file));
      },
      py::arg("pool"), py::arg("clock"), py::arg("records"), py::arg("hold_share") = 0.5,
      py::arg("headroom") = 0.02, py::keep_alive<0, 1>(), py::keep_alive<0, 2>(),
      "Takes over the records of an index whose process is gone, and their descriptor. RuntimeError for "
      "another\n"
      "layout, and for records of another pool.");
}

void register_remote(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<RemoteIndex> remote(m, "RemoteIndex",
                                 "The index of a node in another process; see csrc/include/kvarter/remote.h.",
                                 py::release_gil_before_calling_cpp_dtor());
  def_calls(remote);
  remote
      .def(py::init([](const std::string& path, const std::string& name, std::uint32_t ranks, double timeout,
                       double patience, std::uint32_t layout_version) {
             const py::gil_scoped_release released;
             const auto ms = [](double seconds) {
               return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
             };
             return std::make_unique<RemoteIndex>(path, name, ranks, ms(timeout), ms(patience),
                                                  layout_version);
           }),
           py::arg("path"), py::arg("name"), py::arg("ranks"), py::arg("timeout") = 10.0,
           py::arg("patience") = 0.25, py::arg("layout_version") = kLayoutVersion)
      .def_property_readonly("connected", &RemoteIndex::connected)
      .def_property_readonly("owner", &RemoteIndex::owner)
      .def("look", &RemoteIndex::look, release(), "Asks how things are; the ranks that are attached.")
      .def("know", &RemoteIndex::know, py::arg("ns"), py::arg("most_shards"), release())
      .def("gate", &RemoteIndex::gate, py::arg("ns"),
           "Changes when that namespace is closed, and when another is opened under its number.")
      .def(
          "below_leading",
          [](const RemoteIndex& index, const BoundChain& chain, std::uint32_t group, std::uint64_t from,
             std::uint64_t limit) { return index.below_leading(chain.chain, group, from, limit); },
          py::arg("chain"), py::arg("group"), py::arg("first"), py::arg("limit"), release())
      .def(
          "below_last_run",
          [](const RemoteIndex& index, const BoundChain& chain, std::uint32_t group, std::uint64_t end,
             std::uint64_t run,
             std::uint64_t step) { return index.below_last_run(chain.chain, group, end, run, step); },
          py::arg("chain"), py::arg("group"), py::arg("end"), py::arg("run"), py::arg("step"), release())
      .def(
          "below_contains",
          [](const RemoteIndex& index, const BoundChain& chain, std::uint32_t group, std::uint64_t block) {
            return index.below_contains(chain.chain, group, block);
          },
          py::arg("chain"), py::arg("group"), py::arg("block"), release())
      .def_property_readonly("below_version", &RemoteIndex::below_version)
      .def("close", &RemoteIndex::close, release());
}

}  // namespace kvarter::bindings
