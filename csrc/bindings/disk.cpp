#include "kvarter/disk.h"

#include <cmath>
#include <variant>

#include "bindings.h"
#include "chain.h"
#include "disk_account.h"
#include "foreign.h"
#include "log.h"

namespace kvarter::bindings {
namespace {

using RangeTuples = std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>>;

DiskTicket write(const BoundLog& bound, const BoundChain& chain, const RangeTuples& ranges,
                 const Slots& slots) {
  const auto log = bound.log();
  const auto spans = bound.spans(slots);
  const auto of = ranges_from(ranges);
  const py::gil_scoped_release release;
  return log->write(chain.chain, of, spans);
}

DiskTicket read(const BoundLog& bound, const BoundChain& chain, const RangeTuples& ranges, const Slots& slots,
                std::uint64_t deadline) {
  const auto log = bound.log();
  const auto spans = bound.spans(slots);
  const auto of = ranges_from(ranges);
  const py::gil_scoped_release release;
  return log->read(chain.chain, of, spans, deadline);
}

template <class T>
py::array_t<std::uint8_t> small(const std::vector<T>& values) {
  py::array_t<std::uint8_t> array(static_cast<py::ssize_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i)
    array.mutable_data()[i] = static_cast<std::uint8_t>(values[i]);
  return array;
}

py::list poll(const BoundLog& bound) {
  std::vector<DiskDone> done;
  {
    const auto log = bound.log();
    const py::gil_scoped_release release;
    done = log->poll();
  }
  py::list list;
  for (DiskDone& d : done)
    list.append(py::make_tuple(d.ticket, small(d.statuses), small(d.reasons),
                               to_array(std::move(d.sequences)), to_array(std::move(d.checksums))));
  return list;
}

}  // namespace

void register_disk(py::module_& m) {
  py::list reasons;
  for (int r = 0; r < static_cast<int>(DiskReason::kCount); ++r)
    reasons.append(name(static_cast<DiskReason>(r)));
  m.attr("DISK_REASONS") = py::tuple(reasons);
  m.attr("DISK_INDEX_BYTES_PER_BLOCK") = DiskLog::kIndexBytesPerBlock;

  py::class_<BoundLog>(
      m, "DiskLog", py::release_gil_before_calling_cpp_dtor(),
      R"(The disk tier: a crash-safe log of blocks in one directory; see csrc/include/kvarter/disk.h.

path: made, for the owner alone, when it is not there. Refused, with RuntimeError and left untouched, when it is
    another process's, is not a log's, or is of a newer format.
pool: whose slots it reads and writes; or a ForeignArena. clock: of the deadlines.
capacity: bytes of everything in the directory. segment_bytes: of a new directory. above: the index of the pool;
    among blocks used last at the same time those that it has go first.
device: "auto", "io_uring", "threads", or a FaultyDisk.

Raises ValueError for a capacity below two segments, or whose index would not fit max_index_bytes. Every method may
be called from any thread; none waits for the device but the constructor, close and wait.)")
      .def(py::init([](const std::string& path, const Memory& pool, const Clock& clock,
                       std::uint64_t capacity, std::uint64_t segment_bytes,
                       const std::variant<std::string, std::shared_ptr<FaultyDisk>>& device,
                       unsigned queue_depth, std::uint64_t write_queue_bytes, std::uint32_t max_tickets,
                       double live_share, double clean_share, std::uint64_t reserve_bytes,
                       std::uint64_t max_index_bytes, std::uint64_t block_bytes, std::uint64_t sync_bytes,
                       double sync_seconds, bool sparse, bool background, std::uint32_t max_dropped,
                       const Index* above) {
             const DiskLog::Options options{
                 capacity,        segment_bytes, queue_depth, write_queue_bytes,
                 max_tickets,     live_share,    clean_share, reserve_bytes,
                 max_index_bytes, block_bytes,   sync_bytes,  static_cast<std::uint64_t>(sync_seconds * 1e9),
                 sparse,          background,    max_dropped, above};
             return std::make_unique<BoundLog>(path, pool, clock, options, device);
           }),
           py::arg("path"), py::arg("pool"), py::arg("clock"), py::arg("capacity"), py::kw_only(),
           py::arg("segment_bytes") = 256u << 20, py::arg("device") = "auto", py::arg("queue_depth") = 8,
           py::arg("write_queue_bytes") = 256u << 20, py::arg("max_tickets") = 1u << 16,
           py::arg("live_share") = 0.85, py::arg("clean_share") = 0.25, py::arg("reserve_bytes") = 0,
           py::arg("max_index_bytes") = 0, py::arg("block_bytes") = 64u << 10,
           py::arg("sync_bytes") = 256u << 20, py::arg("sync_seconds") = 1.0, py::arg("sparse") = false,
           py::arg("background") = true, py::arg("max_dropped") = 0, py::arg("above") = nullptr,
           py::keep_alive<1, 3>(), py::keep_alive<1, 4>(), py::keep_alive<1, 21>())
      .def(
          "open_namespace",
          [](const BoundLog& bound, const py::bytes& digest,
             const std::vector<std::tuple<std::uint32_t, std::uint32_t, bool, std::vector<std::uint64_t>>>&
                 groups,
             std::optional<std::uint32_t> above) {
            std::vector<GroupShape> shapes;
            for (const auto& [stride, subs, chained, bytes] : groups)
              shapes.push_back({stride, subs, chained, bytes});
            return bound.log()->open_namespace(digest_from(digest, "namespace digest"), shapes, above);
          },
          py::arg("digest"), py::arg("groups"), py::arg("above") = py::none(),
          "groups: (unit_stride, subs, chained, shard_bytes) of each. above: its number in the index above.\n"
          "The one returned is this log's own.")
      .def(
          "invalidate", [](const BoundLog& bound, std::uint32_t ns) { return bound.log()->invalidate(ns); },
          py::arg("ns"), "A ticket that is Ok when no crash can bring anything of the namespace back.")
      .def(
          "leading",
          [](const BoundLog& bound, const BoundChain& chain, std::uint32_t group, std::uint64_t first,
             std::uint64_t limit) {
            const auto log = bound.log();
            const py::gil_scoped_release release;
            return log->leading(chain.chain, group, first, limit);
          },
          py::arg("chain"), py::arg("group"), py::arg("first"), py::arg("limit"),
          "Up to which block, at most limit, all of a chained group from `first` on are here.")
      .def(
          "last_run",
          [](const BoundLog& bound, const BoundChain& chain, std::uint32_t group, std::uint64_t end,
             std::uint64_t run, std::uint64_t step) {
            const auto log = bound.log();
            const py::gil_scoped_release release;
            return log->last_run(chain.chain, group, end, run, step);
          },
          py::arg("chain"), py::arg("group"), py::arg("end"), py::arg("run"), py::arg("step"))
      .def(
          "contains",
          [](const BoundLog& bound, const BoundChain& chain, std::uint32_t group, std::uint64_t block) {
            return bound.log()->contains(chain.chain, group, block);
          },
          py::arg("chain"), py::arg("group"), py::arg("block"))
      .def(
          "touch",
          [](const BoundLog& bound, const BoundChain& chain, std::uint32_t group, std::uint64_t first,
             std::uint64_t count) { bound.log()->touch(chain.chain, {group, first, count}); },
          py::arg("chain"), py::arg("group"), py::arg("first"), py::arg("count"))
      .def(
          "remove",
          [](const BoundLog& bound, const BoundChain& chain, std::uint32_t group, std::uint64_t first,
             std::uint64_t count) { bound.log()->remove(chain.chain, {group, first, count}); },
          py::arg("chain"), py::arg("group"), py::arg("first"), py::arg("count"))
      .def("write", &write, py::arg("chain"), py::arg("ranges"), py::arg("slots"),
           R"(Takes blocks to be written, and returns a ticket; 0 when max_tickets are out.

ranges: (group, first, count) each. slots: SLOT_DTYPE, with checksums, of all shards of each block together, in the
order of the ranges: as Index.slots gives them. They are borrowed until poll returns the ticket.)")
      .def("read", &read, py::arg("chain"), py::arg("ranges"), py::arg("slots"),
           py::arg("deadline") = ~std::uint64_t{0},
           "Takes blocks to be read into slots, until `deadline` of the clock. As write.")
      .def(
          "expired", [](const BoundLog& bound, DiskTicket ticket) { return bound.log()->expired(ticket); },
          py::arg("ticket"), "Whether a read is past its deadline while the device still has its slots.")
      .def(
          "flush", [](const BoundLog& bound) { return bound.log()->flush(); },
          "A ticket that is Ok when everything taken before it is written or refused, and durable.")
      .def("poll", &poll,
           "What is done: [(ticket, status uint8[n], reason uint8[n], sequence uint64[n] | [], checksum "
           "uint64[k] | [])].\n"
           "A write's block is durable when durable_sequence has reached its sequence.")
      .def(
          "wait",
          [](const BoundLog& bound, double seconds) {
            const auto log = bound.log();
            if (!(seconds >= 0)) throw py::value_error("timeout is negative, or not a number");
            const py::gil_scoped_release release;
            return log->wait(
                std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9)));
          },
          py::arg("timeout"),
          "Waits until poll has something, at most so many seconds, and says whether it has.")
      .def(
          "dropped",
          [](const BoundLog& bound) {
            py::list list;
            for (const DiskDropped& d : bound.log()->dropped())
              list.append(py::make_tuple(
                  d.key.ns, d.key.group, d.key.sub,
                  py::bytes(reinterpret_cast<const char*>(d.key.digest.data()), d.key.digest.size()),
                  static_cast<int>(d.reason)));
            return list;
          },
          "Blocks that are gone since the last call, of those that were there, at most max_dropped, the\n"
          "latest: [(namespace, group, sub, digest, number in DISK_REASONS)].")
      .def("step",
           [](const BoundLog& bound) {
             const auto log = bound.log();
             const py::gil_scoped_release release;
             return log->step();
           })
      .def("close", &BoundLog::close, "Ends it, without a flush; waits for what the device has. Idempotent.")
      .def("ledger", [](const BoundLog& bound) { return to_dict(bound.log()->ledger()); })
      .def("counters", [](const BoundLog& bound) { return to_dict(bound.log()->counters()); })
      .def("audit",
           [](const BoundLog& bound) {
             const auto log = bound.log();
             const py::gil_scoped_release release;
             return log->audit();
           })
      .def_property_readonly("version", [](const BoundLog& bound) { return bound.log()->version(); })
      .def_property_readonly("resting", [](const BoundLog& bound) { return bound.log()->resting(); })
      .def_property_readonly("durable_sequence",
                             [](const BoundLog& bound) { return bound.log()->durable_sequence(); })
      .def_property_readonly("device", [](const BoundLog& bound) { return bound.log()->device(); })
      .def_property_readonly("segment_bytes",
                             [](const BoundLog& bound) { return bound.log()->segment_bytes(); });

  const auto released = [](auto f) {
    return [f](const std::string& path) {
      DiskReport r;
      {
        const py::gil_scoped_release release;
        r = f(path);
      }
      return to_dict(r);
    };
  };
  m.def(
      "disk_inspect", released(&disk_inspect), py::arg("path"),
      "What a directory holds, from its indexes; changes nothing. Raises RuntimeError when it is no log's.");
  m.def("disk_verify", released(&disk_verify), py::arg("path"), "As disk_inspect, with every payload read.");
  m.def(
      "disk_clear",
      [](const std::string& path, bool shred) {
        const py::gil_scoped_release release;
        return disk_clear(path, shred);
      },
      py::arg("path"), py::arg("shred") = false,
      "Removes the log's files and nothing else, after overwriting them with `shred`; returns their bytes.");
}

}  // namespace kvarter::bindings
