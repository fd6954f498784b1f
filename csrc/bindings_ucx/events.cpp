#include "kvarter/ucx/events.h"

#include "bindings_ucx/bindings.h"

namespace kvarter::ucx {

namespace {

Octets octets(const std::vector<Status>& statuses) {
  return Octets(static_cast<py::ssize_t>(statuses.size()),
                reinterpret_cast<const std::uint8_t*>(statuses.data()));
}

Words words(const std::vector<std::uint64_t>& values) {
  return Words(static_cast<py::ssize_t>(values.size()), values.data());
}

}  // namespace

void register_events(py::module_& m) {
  py::class_<Message>(m, "Message", "The other side said this. Immutable, as all events.")
      .def_readonly("peer", &Message::peer)
      .def_property_readonly("data", [](const Message& self) { return to_bytes(self.data); });
  py::class_<Received>(m, "Received",
                       R"(The answer to `expect`: from now on no byte of it enters a slot.

statuses: uint8[n] of Status. Ok: the block is in its slot and has the checksum beside it. Corrupt: it came with another
length or checksum, and its slot holds anything. Closed: the peer was lost, or cancelled, before all of it was there.
Any other is the owner's, and nothing was written.
checksums: uint64[n], XXH3-64, as the owner said.)")
      .def_readonly("peer", &Received::peer)
      .def_readonly("request", &Received::request)
      .def_property_readonly("statuses", [](const Received& self) { return octets(self.statuses); })
      .def_property_readonly("checksums", [](const Received& self) { return words(self.checksums); });
  py::class_<Sent>(m, "Sent",
                   R"(The end of a `send`: its blocks are not read any more.

status: a Status; Ok, all was given to the transport; Closed, the peer was lost or the request cancelled.)")
      .def_readonly("peer", &Sent::peer)
      .def_readonly("request", &Sent::request)
      .def_property_readonly("status", [](const Sent& self) { return static_cast<int>(self.status); });
  py::class_<Lost>(m, "Lost", "UCX cannot reach the peer; what it owed has been answered, Closed follows.")
      .def_readonly("peer", &Lost::peer)
      .def_readonly("why", &Lost::why);
  py::class_<Closed>(m, "Closed", "The last event of a peer, but for the answers to calls that crossed it.")
      .def_readonly("peer", &Closed::peer);
}

}  // namespace kvarter::ucx
