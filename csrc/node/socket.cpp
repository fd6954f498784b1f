#include "node/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kvarter/node.h"
#include "node/wire.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5, absent from older headers
#endif

namespace kvarter::node {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof address.sun_path)
    throw NodeError("socket path '" + path + "' has " + std::to_string(path.size()) +
                    " bytes, expected 1 to " + std::to_string(sizeof address.sun_path - 1) +
                    ": choose a shorter directory");
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Fd unix_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) fail("socket");
  return socket;
}

bool connects(int socket, const sockaddr_un& address) {
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::string octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", mode & 07777u);
  return text;
}

// The directory of `path`, ours alone, opened and locked: two nodes starting at once take turns.
Fd owner_only_directory_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) fail("mkdir '" + directory + "'");
  Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) fail("open directory '" + directory + "'");
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) fail("fstat '" + directory + "'");
  if (status.st_uid != ::geteuid() || (status.st_mode & 077u) != 0)
    throw NodeError("socket directory '" + directory + "' has mode " + octal(status.st_mode) + " and owner " +
                    std::to_string(status.st_uid) + ", expected mode 0700 and owner " +
                    std::to_string(::geteuid()) + ": chmod 700 it or choose another");
  if (::flock(fd.get(), LOCK_EX) != 0) fail("flock '" + directory + "'");
  return fd;
}

// A socket at the path may be a dead node's leftover. Its listening descriptor may even have outlived it in a
// forked child, so a connect that succeeds is asked for its process.
void clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode))
    throw NodeError("'" + path + "' exists and is no socket: choose another path");
  const Fd probe = unix_socket();
  ::fcntl(probe.get(), F_SETFL, O_NONBLOCK);
  if (connects(probe.get(), address)) {
    const Fd process = watch_peer(probe.get());
    const pid_t pid = peer_of(probe.get()).pid;
    const bool dead = process ? ended(process.get()) : ::kill(pid, 0) != 0 && errno == ESRCH;
    if (!dead)
      throw NodeError("a live node, pid " + std::to_string(pid) + ", listens at '" + path +
                      "': attach to it, stop it, or choose another path");
  } else if (errno != ECONNREFUSED) {
    throw NodeError("'" + path + "' answers with \"" + std::strerror(errno) +
                    "\" where a dead node's socket refuses connections: stop what listens or choose another");
  }
  if (::unlink(path.c_str()) != 0) fail("unlink '" + path + "'");
}

}  // namespace

void fail(const std::string& what) { throw NodeError(what + ": " + std::strerror(errno)); }

Fd listen_at(const std::string& path) {
  const sockaddr_un address = address_of(path);
  const Fd lock = owner_only_directory_of(path);
  clear_path(path, address);
  Fd socket = unix_socket();
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("bind '" + path + "'");
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(socket.get(), 128) != 0) fail("listen at '" + path + "'");
  return socket;
}

Fd connect_to(const std::string& path, Steady::time_point deadline) {
  const sockaddr_un address = address_of(path);
  Fd socket = unix_socket();
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Steady::now());
  const auto micros = std::max<std::int64_t>(left.count(), 1);
  const timeval wait{.tv_sec = micros / 1'000'000, .tv_usec = micros % 1'000'000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);  // connect waits for the backlog
  if (!connects(socket.get(), address)) fail("no node answers at '" + path + "'");
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

Peer peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) fail("SO_PEERCRED");
  return {credentials.pid, credentials.uid};
}

Fd watch_peer(int socket) {
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) return Fd(pidfd);
  if (errno != ENOPROTOOPT) return Fd();
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer_of(socket).pid, 0)));
}

bool ended(int pidfd) {
  pollfd poll{.fd = pidfd, .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, 0) == 1;
}

bool of_one_process(int pidfd, int other) {
  constexpr auto kPidFs = 0x50494446;  // its inodes are processes; those of older kernels' pidfds are all one
  struct statfs system{};
  struct stat one{}, two{};
  return ::fstatfs(pidfd, &system) == 0 && system.f_type == kPidFs && ::fstat(pidfd, &one) == 0 &&
         ::fstat(other, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

bool hung_up(int socket) {
  pollfd poll{.fd = socket, .events = 0, .revents = 0};
  return ::poll(&poll, 1, 0) == 1 && (poll.revents & (POLLHUP | POLLERR)) != 0;
}

Fd duplicate(int fd) {
  Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) fail("duplicate descriptor " + std::to_string(fd));
  return copy;
}

Fd reopen_read_only(int fd) {
  Fd copy(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
  if (!copy) fail("reopen descriptor " + std::to_string(fd) + " read-only");
  return copy;
}

bool send_packet(int socket, std::span<const std::byte> packet, std::span<const int> descriptors) {
  iovec part{.iov_base = const_cast<std::byte*>(packet.data()), .iov_len = packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * wire::kDescriptorsPerGrant)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(packet.size());
}

Received receive_packet(int socket, std::span<std::byte> into, std::size_t& size,
                        std::vector<Fd>* descriptors) {
  iovec part{.iov_base = into.data(), .iov_len = into.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * wire::kDescriptorsPerGrant)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  ssize_t got;
  do {
    // ECONNRESET comes once, before what the other end sent and then closed with: read on.
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0 && errno == EAGAIN) return Received::kNothing;
  if (got <= 0) return Received::kEnd;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      descriptors->emplace_back(fd);
    }
  }
  size = static_cast<std::size_t>(got);
  return Received::kPacket;
}

std::string printable(std::string_view text) {
  std::string clean(text);
  for (char& c : clean)
    if (c < 0x20 || c > 0x7e) c = '?';
  return clean;
}

}  // namespace kvarter::node
