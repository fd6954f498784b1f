#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "node/fd.h"

// Unix packet sockets and pidfds, as the node and its clients need them. Errors are NodeError.
namespace kvarter::node {

using Steady = std::chrono::steady_clock;

struct Peer {
  pid_t pid;  // as it is seen from here; 0 from an unrelated pid namespace
  uid_t uid;
};

[[noreturn]] void fail(const std::string& what);  // with errno's text

// Listens at path; see NodeServer for what is created, replaced and refused.
Fd listen_at(const std::string& path);
// Non-blocking once connected.
Fd connect_to(const std::string& path, Steady::time_point deadline);

Peer peer_of(int socket);
// A pidfd of the process at the other end, as it was when it connected or began to listen; empty, with errno,
// if the process is gone or the kernel cannot.
Fd watch_peer(int socket);
bool ended(int pidfd);  // its process is dead
// Both are of one process, which is alive; false where the kernel (before 6.9) cannot tell.
bool of_one_process(int pidfd, int other);
bool hung_up(int socket);  // nobody is at the other end

Fd duplicate(int fd);
Fd reopen_read_only(int fd);

// False if the packet could not be sent now.
bool send_packet(int socket, std::span<const std::byte> packet, std::span<const int> descriptors = {});

enum class Received { kPacket, kNothing, kEnd };
// One packet that fills `into` exactly (its true size comes back in `size` in any case). Descriptors that
// come along are adopted, or closed where nobody asks for them.
Received receive_packet(int socket, std::span<std::byte> into, std::size_t& size,
                        std::vector<Fd>* descriptors = nullptr);

template <typename T>
std::span<std::byte> bytes_of(T& packet) {
  return std::as_writable_bytes(std::span(&packet, 1));
}

// For a sentence: what is not printable ASCII becomes '?'.
std::string printable(std::string_view text);

}  // namespace kvarter::node
