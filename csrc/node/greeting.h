#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kvarter/mapping.h"
#include "node/fd.h"
#include "node/socket.h"

namespace kvarter::node {

// How a client comes in: what a mapper and a session have in common.
struct Greeting {
  Fd socket, node;  // the connection, and a pidfd of the node
  std::uint32_t owner = 0;
  std::vector<Exported> granted;  // by descriptors in `files`
  std::vector<Fd> files;
};

// Connects, checks the node's uid, says hello and receives what is granted, before the deadline. `rank` may
// have wire::kSession. Throws NodeRefused with the node's sentence, or NodeError.
Greeting greet(const std::string& path, const std::string& engine, std::uint32_t rank, std::uint32_t layout,
               Steady::time_point deadline);

}  // namespace kvarter::node
