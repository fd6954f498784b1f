#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
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
#include "node/greeting.h"
#include "node/wire.h"

namespace kvarter {

using namespace node;

class NodeClient::Impl {
 public:
  Impl(const std::string& path, const std::string& engine, std::uint32_t rank, std::uint32_t layout,
       std::shared_ptr<FenceHandler> handler, std::chrono::milliseconds timeout);
  void close() noexcept;

  std::shared_ptr<const Mapping> mapping_;
  std::atomic<bool> connected_{false}, moved_{false};
  std::uint32_t owner_ = 0;

 private:
  void run();
  bool answer();
  bool send(const wire::Notice& notice) const {
    return send_packet(socket_.get(), std::as_bytes(std::span(&notice, 1)));
  }

  const std::shared_ptr<FenceHandler> handler_;
  const pid_t process_ = ::getpid();
  Fd socket_, node_, wake_;
  std::vector<Fd> files_;  // the pool, for the next node, should this one die
  std::mutex closing_;
  std::unique_ptr<std::thread> thread_;
};

NodeClient::Impl::Impl(const std::string& path, const std::string& engine, std::uint32_t rank,
                       std::uint32_t layout, std::shared_ptr<FenceHandler> handler,
                       std::chrono::milliseconds timeout)
    : handler_(std::move(handler)) {
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) fail("eventfd");
  Greeting node = greet(path, engine, rank, layout, Steady::now() + timeout);
  mapping_ = std::make_shared<const Mapping>(node.granted);
  owner_ = node.owner;
  socket_ = std::move(node.socket);
  node_ = std::move(node.node);
  files_ = std::move(node.files);
  if (!send({.type = wire::kMapped, .zero = 0, .epoch = 0})) fail("send to the node at '" + path + "'");

  connected_ = true;
  thread_ = std::make_unique<std::thread>([this] { run(); });
}

void NodeClient::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "kvarter-client");
  for (;;) {
    std::array<pollfd, 3> wait{{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                {.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                {.fd = node_.get(), .events = POLLIN, .revents = 0}}};
    if (::poll(wait.data(), wait.size(), -1) < 0) continue;
    if (wait[0].revents != 0 || wait[2].revents != 0 || !answer()) break;
  }
  connected_ = false;
}

bool NodeClient::Impl::answer() {
  wire::Notice notice{};
  std::size_t size = 0;
  const Received got = receive_packet(socket_.get(), bytes_of(notice), size);
  if (got == Received::kNothing) return true;
  if (got == Received::kEnd || size != sizeof notice) return false;
  if (notice.type == wire::kMoved) return moved_ = true;
  if (notice.type != wire::kFence) return false;
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
  files_.clear();
}

NodeClient::NodeClient(const std::string& path, const std::string& engine, std::uint32_t rank,
                       std::uint32_t layout_version, std::shared_ptr<FenceHandler> handler,
                       std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(path, engine, rank, layout_version, std::move(handler), timeout)) {}

NodeClient::~NodeClient() { close(); }

std::shared_ptr<const Mapping> NodeClient::mapping() const noexcept { return impl_->mapping_; }
bool NodeClient::connected() const noexcept { return impl_->connected_; }
bool NodeClient::moved() const noexcept { return impl_->moved_; }
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
