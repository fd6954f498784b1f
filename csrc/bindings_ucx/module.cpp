#include "bindings_ucx/bindings.h"
#include "kvarter/ucx/engine.h"
#include "kvarter/ucx/error.h"

namespace kvarter::ucx {

namespace {

std::span<const std::byte> bytes_of(const py::bytes& bytes) {
  const std::string_view view = bytes;
  return std::as_bytes(std::span(view.data(), view.size()));
}

void check_length(const py::array& array, py::ssize_t expected, const char* what) {
  if (array.ndim() != 1 || array.size() != expected)
    throw py::value_error(std::string(what) + " has shape " +
                          py::str(array.attr("shape")).cast<std::string>() + ", expected (" +
                          std::to_string(expected) + ",)");
}

std::unique_ptr<Engine> make(std::uintptr_t base, std::size_t size, const std::vector<std::string>& devices,
                             const std::string& transports,
                             std::optional<std::pair<std::uint16_t, std::uint16_t>> ports,
                             std::size_t segment, std::size_t window, unsigned spin_us,
                             std::size_t queued_bytes) {
  Options options;
  options.settings.devices = devices;
  options.settings.transports = transports;
  if (ports) std::tie(options.settings.first_port, options.settings.last_port) = *ports;
  options.settings.segment = segment;
  options.window = window;
  options.spin = std::chrono::microseconds(spin_us);
  options.queued_bytes = queued_bytes;
  py::gil_scoped_release release;
  return std::make_unique<Engine>(std::span(reinterpret_cast<std::byte*>(base), size), options);
}

std::uint64_t expect(Engine& engine, PeerId peer, std::uint64_t request, const Ints& offsets,
                     const Ints& lengths) {
  check_length(offsets, offsets.size(), "offsets");
  check_length(lengths, offsets.size(), "lengths");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> slots(static_cast<std::size_t>(offsets.size()));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = {static_cast<std::uint64_t>(offsets.data()[i]), static_cast<std::uint64_t>(lengths.data()[i])};
  py::gil_scoped_release release;
  return engine.expect(peer, request, std::move(slots));
}

int send(Engine& engine, PeerId peer, std::uint64_t request, std::uint64_t generation, const Ints& offsets,
         const Ints& lengths, const Octets& statuses, const Words& checksums) {
  check_length(offsets, offsets.size(), "offsets");
  check_length(lengths, offsets.size(), "lengths");
  check_length(statuses, offsets.size(), "statuses");
  check_length(checksums, offsets.size(), "checksums");
  std::vector<Block> blocks(static_cast<std::size_t>(offsets.size()));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (statuses.data()[i] > static_cast<std::uint8_t>(Status::kClosed))
      throw py::value_error("statuses[" + std::to_string(i) + "] is " + std::to_string(statuses.data()[i]) +
                            ", expected 0 to 6");
    blocks[i] = {static_cast<std::uint64_t>(offsets.data()[i]), static_cast<std::uint64_t>(lengths.data()[i]),
                 static_cast<Status>(statuses.data()[i]), checksums.data()[i]};
  }
  py::gil_scoped_release release;
  return static_cast<int>(engine.send(peer, request, generation, blocks));
}

std::vector<Event> poll(Engine& engine, std::size_t most) {
  py::gil_scoped_release release;
  return engine.take(most);
}

}  // namespace

PYBIND11_MODULE(_ucx, m) {
  m.doc() =
      "Blocks between hosts over UCX; import it through kvarter.peers.ucx_library, which loads UCX first.";
  m.def("version", &version, "The UCX that is loaded: (major, minor, release).");
  m.def("available", &available, py::call_guard<py::gil_scoped_release>(),
        "Every transport/device that this UCX could use here. Opens no socket.");
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const UcxError& failed) {
      py::set_error(PyExc_ConnectionError, failed.what());
    }
  });
  register_events(m);

  py::class_<Engine>(
      m, "Engine", py::release_gil_before_calling_cpp_dtor(),
      R"(Sends blocks from, and receives them into, one piece of memory. Every method from any thread.

base, size: address and bytes of the memory, which stays mapped until `close`. Trusted.
devices: network interfaces that UCX may use; it listens on each. Needed where transports include TCP.
transports: as UCX_TLS has it. ports: first and last that TCP may listen on; None: any.
segment: bytes of blocks in one message. window: messages under way to one peer.
spin_us: how long the engine's thread spins before it sleeps.
queued_bytes: of one peer that may wait to be sent before `send` and `message` are Busy.

UCX over TCP and shared memory neither encrypts nor authenticates: the network must be an isolated one.
Raises ValueError for impossible arguments, ConnectionError with UCX's words where UCX cannot do it.)")
      .def(py::init(&make), py::arg("base"), py::arg("size"), py::kw_only(), py::arg("devices"),
           py::arg("transports") = "tcp", py::arg("ports") = py::none(), py::arg("segment") = 256 << 10,
           py::arg("window") = 16, py::arg("spin_us") = 50, py::arg("queued_bytes") = 256 << 20)
      .def_property_readonly("transports", &Engine::transports, "What is in use, as transport/device.")
      .def_property_readonly("event_fd", &Engine::event_fd, "Readable while `poll` has something to return.")
      .def(
          "invite", [](const Engine& self) { return to_bytes(self.invite()); },
          R"(Our address and a fresh secret, for one connection.

Give it to the other side over a connection that authenticates both: whoever has it can speak as that peer.)")
      .def(
          "connect",
          [](Engine& self, const py::bytes& theirs, const py::bytes& ours) {
            const auto their_bytes = bytes_of(theirs), our_bytes = bytes_of(ours);
            py::gil_scoped_release release;
            return self.connect(their_bytes, our_bytes);
          },
          py::arg("theirs"), py::arg("ours"),
          R"(Connects to the engine that made the invite `theirs` for us; `ours` is the one we made for it. Its peer id.

Both sides connect; what one sends before the other has connected is dropped. UCX trusts the bytes: they must come from
an authenticated peer. Raises ValueError for bytes that are no invite, ConnectionError where nobody is there,
RuntimeError when closed.)")
      .def("close_peer", &Engine::close_peer, py::arg("peer"), py::call_guard<py::gil_scoped_release>(),
           R"(Ends a connection at once: its requests are answered Closed, and Closed is its last event.

The other side is not told, and may wait for ever: it must learn it in another way, and close, too.)")
      .def(
          "message",
          [](Engine& self, PeerId peer, const py::bytes& data) {
            const auto bytes = bytes_of(data);
            py::gil_scoped_release release;
            return static_cast<int>(self.message(peer, {bytes.begin(), bytes.end()}));
          },
          py::arg("peer"), py::arg("data"),
          R"(Says something to the peer's caller: a Status, Ok, Busy or Closed.

Messages arrive in order and overtake blocks. Raises ValueError above 256 KiB.)")
      .def("expect", &expect, py::arg("peer"), py::arg("request"), py::arg("offsets"), py::arg("lengths"),
           R"(Opens a request: the peer may fill these slots, until Received or `forget`. Its generation.

request: a number of the caller's. offsets, lengths: int64[n] in bytes, of the slots in the memory, n up to 8192.
Tell the peer request and generation by `message`. Where the peer is gone, Received follows at once.
Raises ValueError for slots outside the memory, empty or overlapping, and for a request whose event has not been taken;
RuntimeError when closed.)")
      .def("forget", &Engine::forget, py::arg("request"), py::call_guard<py::gil_scoped_release>(),
           R"(Ends a request without an event: after the return no byte enters its slots.

False if it had ended: then its Received has been or will be polled.)")
      .def("send", &send, py::arg("peer"), py::arg("request"), py::arg("generation"), py::arg("offsets"),
           py::arg("lengths"), py::arg("statuses"), py::arg("checksums"),
           R"(Fills the slots of a peer's request: a Status, Ok, Busy or Closed. After Ok one Sent follows.

One block for each slot that the peer expects, in its order; only those that are Ok are read, and they have the slot's
length. offsets, lengths: int64[n]; statuses: uint8[n] of Status; checksums: uint64[n], XXH3-64.
Raises ValueError for arrays of other lengths and Ok blocks outside the memory.)")
      .def("cancel", &Engine::cancel, py::arg("peer"), py::arg("request"),
           py::call_guard<py::gil_scoped_release>(),
           "Stops a `send`: the peer is told, and Sent is Closed. Nothing happens where all has been sent.")
      .def("poll", &poll, py::arg("most") = 256, "The oldest events, at most `most`. Never waits.")
      .def(
          "counters",
          [](const Engine& self) {
            py::dict counts;
            for (std::size_t i = 0; i < kCountNames.size(); ++i)
              counts[kCountNames[i]] = self.counters().get(i);
            return counts;
          },
          "What has been done so far, by name.")
      .def("close", &Engine::close, py::call_guard<py::gil_scoped_release>(),
           R"(Ends all connections and the thread. Events can still be polled.

Calls from now on answer Closed, or raise RuntimeError where they have no status.)")
      .def("__enter__", [](py::object self) { return self; })
      .def(
          "__exit__", [](Engine& self, const py::args&) { self.close(); },
          py::call_guard<py::gil_scoped_release>());
}

}  // namespace kvarter::ucx
