#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "kvarter/node.h"
#include "node/socket.h"
#include "node/wire.h"

namespace kvarter {

using namespace node;

class NodeClient::Impl {
 public:
  Impl(const std::string& path, const std::string& engine, std::uint32_t rank, std::uint32_t layout,
       std::shared_ptr<FenceHandler> handler, std::chrono::milliseconds timeout);
  void close() noexcept;

  std::shared_ptr<const Mapping> mapping_;
  std::atomic<bool> connected_{false};
  std::uint32_t owner_ = 0;

 private:
  void receive(std::span<std::byte> packet, std::vector<Fd>* descriptors = nullptr);
  void receive_pool(std::uint32_t descriptors);
  void run();
  bool answer_fence();
  bool send(const wire::Notice& notice) const {
    return send_packet(socket_.get(), std::as_bytes(std::span(&notice, 1)));
  }

  const std::string path_;
  const Steady::time_point deadline_;
  const std::shared_ptr<FenceHandler> handler_;
  const pid_t process_ = ::getpid();
  Fd socket_, node_, wake_;
  std::mutex closing_;
  std::unique_ptr<std::thread> thread_;
};

NodeClient::Impl::Impl(const std::string& path, const std::string& engine, std::uint32_t rank,
                       std::uint32_t layout, std::shared_ptr<FenceHandler> handler,
                       std::chrono::milliseconds timeout)
    : path_(path), deadline_(Steady::now() + timeout), handler_(std::move(handler)) {
  if (engine.empty() || engine.size() > wire::kNameBytes)
    throw std::invalid_argument("engine name has " + std::to_string(engine.size()) +
                                " bytes, expected 1 to " + std::to_string(wire::kNameBytes));
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) fail("eventfd");
  socket_ = connect_to(path, deadline_);
  const Peer node = peer_of(socket_.get());
  if (node.uid != ::geteuid())
    throw NodeRefused(Refusal::kUid, "the node at '" + path + "' has uid found " + std::to_string(node.uid) +
                                         ", expected " + std::to_string(::geteuid()));
  node_ = watch_peer(socket_.get());
  if (!node_) fail("watch the node at '" + path + "', pid " + std::to_string(node.pid));

  wire::Hello hello{.magic = wire::kMagic,
                    .protocol = wire::kProtocol,
                    .layout = layout,
                    .rank = rank,
                    .name_bytes = static_cast<std::uint32_t>(engine.size()),
                    .name = {}};
  std::memcpy(hello.name, engine.data(), engine.size());
  if (!send_packet(socket_.get(), bytes_of(hello))) fail("send to the node at '" + path + "'");
  wire::Answer answer{};
  receive(bytes_of(answer));
  if (answer.magic != wire::kMagic || answer.text_bytes > wire::kTextBytes)
    throw NodeError("what answers at '" + path + "' is no node");
  if (answer.refusal != 0)
    throw NodeRefused(static_cast<Refusal>(answer.refusal), printable({answer.text, answer.text_bytes}));
  owner_ = answer.owner;
  receive_pool(answer.descriptors);
  if (!send({.type = wire::kMapped, .zero = 0, .epoch = 0})) fail("send to the node at '" + path + "'");

  connected_ = true;
  thread_ = std::make_unique<std::thread>([this] { run(); });
}

// One packet that fills `packet`, before the deadline.
void NodeClient::Impl::receive(std::span<std::byte> packet, std::vector<Fd>* descriptors) {
  for (;;) {
    std::size_t size = 0;
    switch (receive_packet(socket_.get(), packet, size, descriptors)) {
      case Received::kPacket:
        if (size == packet.size()) return;
        throw NodeError("the node at '" + path_ + "' sent " + std::to_string(size) + " bytes, expected " +
                        std::to_string(packet.size()));
      case Received::kEnd:
        throw NodeError("the node at '" + path_ + "' closed the connection before the pool was handed over");
      case Received::kNothing:
        break;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Steady::now());
    std::array<pollfd, 2> wait{{{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                {.fd = node_.get(), .events = POLLIN, .revents = 0}}};
    const int ready =
        ::poll(wait.data(), wait.size(), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready == 0) throw NodeError("the node at '" + path_ + "' did not answer in time: is it stopped?");
    if (ready > 0 && wait[0].revents == 0) throw NodeError("the node at '" + path_ + "' died");
  }
}

void NodeClient::Impl::receive_pool(std::uint32_t descriptors) {
  std::vector<Exported> pool;
  std::vector<Fd> files;
  while (pool.size() < descriptors) {
    wire::Grant grant{};
    receive(bytes_of(grant), &files);
    if (grant.count == 0 ||
        grant.count > std::min<std::size_t>(wire::kDescriptorsPerGrant, descriptors - pool.size()))
      throw NodeError("the node at '" + path_ + "' grants " + std::to_string(grant.count) +
                      " descriptors of " + std::to_string(descriptors));
    // The kernel leaves out what the table has no room for.
    if (files.size() != pool.size() + grant.count) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      throw NodeError("received " + std::to_string(files.size()) + " of " + std::to_string(descriptors) +
                      " descriptors: raise the limit of open files (ulimit -n), now " +
                      std::to_string(limit.rlim_cur));
    }
    for (std::size_t i = 0; i < grant.count; ++i)
      pool.push_back({files[pool.size()].get(), grant.items[i].bytes,
                      static_cast<ArenaKind>(grant.items[i].kind), grant.items[i].arena});
  }
  mapping_ = std::make_shared<const Mapping>(pool);
}

void NodeClient::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "kvarter-client");
  for (;;) {
    std::array<pollfd, 3> wait{{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                {.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                {.fd = node_.get(), .events = POLLIN, .revents = 0}}};
    if (::poll(wait.data(), wait.size(), -1) < 0) continue;
    if (wait[0].revents != 0 || wait[2].revents != 0 || !answer_fence()) break;
  }
  connected_ = false;
}

bool NodeClient::Impl::answer_fence() {
  wire::Notice notice{};
  std::size_t size = 0;
  const Received got = receive_packet(socket_.get(), bytes_of(notice), size);
  if (got == Received::kNothing) return true;
  if (got == Received::kEnd || size != sizeof notice || notice.type != wire::kFence) return false;
  try {
    if (handler_ != nullptr) handler_->fence(notice.epoch);
  } catch (...) {
    return false;
  }
  return send({.type = wire::kFenced, .zero = 0, .epoch = notice.epoch});
}

void NodeClient::Impl::close() noexcept {
  if (::getpid() != process_) {
    // A forked child has the descriptors but not the thread.
    static_cast<void>(thread_.release());
    return;
  }
  const std::lock_guard once(closing_);
  if (thread_ == nullptr) return;
  ::eventfd_write(wake_.get(), 1);
  thread_->join();
  thread_.reset();
  socket_.reset();
}

NodeClient::NodeClient(const std::string& path, const std::string& engine, std::uint32_t rank,
                       std::uint32_t layout_version, std::shared_ptr<FenceHandler> handler,
                       std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(path, engine, rank, layout_version, std::move(handler), timeout)) {}

NodeClient::~NodeClient() { close(); }

std::shared_ptr<const Mapping> NodeClient::mapping() const noexcept { return impl_->mapping_; }
bool NodeClient::connected() const noexcept { return impl_->connected_; }
std::uint32_t NodeClient::owner() const noexcept { return impl_->owner_; }
void NodeClient::close() noexcept { impl_->close(); }

std::string default_directory() {
  namespace fs = std::filesystem;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0') {
    std::error_code error;
    if (fs::is_directory(runtime, error) && ::access(runtime, W_OK | X_OK) == 0)
      return (fs::path(runtime) / "kvarter").string();
  }
  return (fs::temp_directory_path() / ("kvarter-" + std::to_string(::geteuid()))).string();
}

}  // namespace kvarter
