#include "node/greeting.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "kvarter/node.h"
#include "node/wire.h"

namespace kvarter::node {
namespace {

// One packet that fills `packet`, before the deadline.
void receive(const Greeting& to, const std::string& path, Steady::time_point deadline,
             std::span<std::byte> packet, std::vector<Fd>* descriptors = nullptr) {
  for (;;) {
    std::size_t size = 0;
    switch (receive_packet(to.socket.get(), packet, size, descriptors)) {
      case Received::kPacket:
        if (size == packet.size()) return;
        throw NodeError("the node at '" + path + "' sent " + std::to_string(size) + " bytes, expected " +
                        std::to_string(packet.size()));
      case Received::kEnd:
        throw NodeError("the node at '" + path + "' closed the connection before the pool was handed over");
      case Received::kNothing:
        break;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now());
    std::array<pollfd, 2> wait{{{.fd = to.socket.get(), .events = POLLIN, .revents = 0},
                                {.fd = to.node.get(), .events = POLLIN, .revents = 0}}};
    const int ready =
        ::poll(wait.data(), wait.size(), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready == 0) throw NodeError("the node at '" + path + "' did not answer in time: is it stopped?");
    if (ready > 0 && wait[0].revents == 0) throw NodeError("the node at '" + path + "' died");
  }
}

void receive_files(Greeting& to, const std::string& path, Steady::time_point deadline,
                   std::uint32_t descriptors) {
  while (to.granted.size() < descriptors) {
    wire::Grant grant{};
    receive(to, path, deadline, bytes_of(grant), &to.files);
    if (grant.count == 0 ||
        grant.count > std::min<std::size_t>(wire::kDescriptorsPerGrant, descriptors - to.granted.size()))
      throw NodeError("the node at '" + path + "' grants " + std::to_string(grant.count) +
                      " descriptors of " + std::to_string(descriptors));
    // The kernel leaves out what the table has no room for.
    if (to.files.size() != to.granted.size() + grant.count) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      throw NodeError("received " + std::to_string(to.files.size()) + " of " + std::to_string(descriptors) +
                      " descriptors: raise the limit of open files (ulimit -n), now " +
                      std::to_string(limit.rlim_cur));
    }
    for (std::size_t i = 0; i < grant.count; ++i)
      to.granted.push_back({to.files[to.granted.size()].get(), grant.items[i].bytes,
                            static_cast<ArenaKind>(grant.items[i].kind), grant.items[i].arena});
  }
}

}  // namespace

Greeting greet(const std::string& path, const std::string& engine, std::uint32_t rank, std::uint32_t layout,
               Steady::time_point deadline) {
  if (engine.empty() || engine.size() > wire::kNameBytes)
    throw std::invalid_argument("engine name has " + std::to_string(engine.size()) +
                                " bytes, expected 1 to " + std::to_string(wire::kNameBytes));
  Greeting to;
  to.socket = connect_to(path, deadline);
  const Peer node = peer_of(to.socket.get());
  if (node.uid != ::geteuid())
    throw NodeRefused(Refusal::kUid, "the node at '" + path + "' has uid found " + std::to_string(node.uid) +
                                         ", expected " + std::to_string(::geteuid()));
  to.node = watch_peer(to.socket.get());
  if (!to.node) fail("watch the node at '" + path + "', pid " + std::to_string(node.pid));

  wire::Hello hello{.magic = wire::kMagic,
                    .protocol = wire::kProtocol,
                    .layout = layout,
                    .rank = rank,
                    .name_bytes = static_cast<std::uint32_t>(engine.size()),
                    .name = {}};
  std::memcpy(hello.name, engine.data(), engine.size());
  if (!send_packet(to.socket.get(), bytes_of(hello))) fail("send to the node at '" + path + "'");
  wire::Answer answer{};
  receive(to, path, deadline, bytes_of(answer));
  if (answer.magic != wire::kMagic || answer.text_bytes > wire::kTextBytes)
    throw NodeError("what answers at '" + path + "' is no node");
  if (answer.refusal != 0)
    throw NodeRefused(static_cast<Refusal>(answer.refusal), printable({answer.text, answer.text_bytes}));
  to.owner = answer.owner;
  receive_files(to, path, deadline, answer.descriptors);
  return to;
}

}  // namespace kvarter::node
