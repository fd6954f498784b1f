#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "node/server_impl.h"

namespace kvarter {

bool Listener::on_call(std::uint32_t, const wire::Call&, std::span<const std::byte>, std::span<std::byte>,
                       wire::Reply&) {
  return false;
}

namespace {

constexpr std::size_t kMaxStrangers = 64;

}  // namespace

NodeServer::Impl::Impl(std::string path, std::span<const Exported> exported, std::uint32_t layout,
                       std::shared_ptr<Listener> listener, std::uint32_t tick_ms, std::uint32_t last_owner)
    : path_(std::move(path)),
      roster_(last_owner),
      layout_(layout),
      listener_(std::move(listener)),
      tick_(tick_ms),
      exported_(exported.begin(), exported.end()) {
  if (listener_ == nullptr) throw std::invalid_argument("a node needs a listener");
  if (tick_ms == 0) throw std::invalid_argument("tick_ms is 0, expected at least 1");
  const Mapping checked(exported);  // what a client would refuse is refused here, at start
  for (Exported& file : exported_) {
    files_.push_back(file.kind == ArenaKind::kPayload ? duplicate(file.fd) : reopen_read_only(file.fd));
    file.fd = files_.back().get();
  }
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !wake_) fail("epoll");
  door_ = listen_at(path_);
  ::lstat(path_.c_str(), &file_);
  if (!watch(wake_.get(), tag(kWake)) || !watch(door_.get(), tag(kDoor))) fail("epoll_ctl");
  thread_ = std::make_unique<std::thread>([this] { run(); });
}

bool NodeServer::Impl::watch(int fd, std::uint64_t data) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = data;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void NodeServer::Impl::wake() const noexcept { ::eventfd_write(wake_.get(), 1); }

void NodeServer::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "kvarter-node");
  auto next_tick = Steady::now() + tick_;
  std::array<epoll_event, 64> ready{};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick - Steady::now());
    const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()),
                                   static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    std::vector<Event> events;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      for (int i = 0; i < count; ++i) handle(ready[static_cast<std::size_t>(i)].data.u64);
      for (const std::uint32_t owner : due_) advance(owner);
      due_.clear();
      events = std::exchange(events_, {});
    }
    for (const Event& event : events) {
      switch (event.kind) {
        case Event::Kind::kFenced:
          listener_->on_fenced(event.owner, event.epoch);
          break;
        case Event::Kind::kDead:
          listener_->on_dead(event.owner);
          break;
        case Event::Kind::kGone:
          listener_->on_gone(event.owner);
          break;
      }
    }
    if (Steady::now() < next_tick) continue;
    next_tick = Steady::now() + tick_;
    set_door(true);
    listener_->on_tick();
  }
}

void NodeServer::Impl::handle(std::uint64_t data) {
  const std::uint64_t id = data & (tag(kDoor) - 1);  // kDoor is 1: all below the top byte
  switch (data >> 56) {
    case kWake: {
      eventfd_t count;
      ::eventfd_read(wake_.get(), &count);
      break;
    }
    case kDoor:
      accept_all();
      break;
    case kConnection:
      read_all(id);
      break;
    case kProcess:
      bury(id);
      break;
  }
}

void NodeServer::Impl::accept_all() {
  for (;;) {
    Connection connection;
    connection.socket = Fd(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.socket) {
      // Out of descriptors: the door would be ready for ever, so it is shut until the next tick.
      if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) set_door(false);
      return;
    }
    ++counters_.connections;
    connection.peer = peer_of(connection.socket.get());
    const std::uint64_t id = ++last_connection_;
    if (!watch(connection.socket.get(), tag(kConnection, id))) continue;
    connections_.emplace(id, std::move(connection));
    const auto stranger = [](const auto& entry) { return entry.second.stranger(); };
    if (static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(), stranger)) >
        kMaxStrangers)
      drop(std::find_if(connections_.begin(), connections_.end(), stranger)->first);
  }
}

void NodeServer::Impl::set_door(bool open) {
  if (open == door_open_) return;
  door_open_ = open;
  epoll_event event{};
  event.events = open ? EPOLLIN : 0u;
  event.data.u64 = tag(kDoor);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, door_.get(), &event);
}

void NodeServer::Impl::close() noexcept {
  if (::getpid() != process_) {
    // A forked child has the descriptors but not the thread: leave both and the socket file alone.
    static_cast<void>(thread_.release());
    return;
  }
  const std::lock_guard once(closing_);
  if (thread_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_->join();
  thread_.reset();
  connections_.clear();
  door_.reset();
  struct stat now{};
  if (::lstat(path_.c_str(), &now) == 0 && now.st_ino == file_.st_ino && now.st_dev == file_.st_dev)
    ::unlink(path_.c_str());
}

NodeServer::NodeServer(std::string path, std::span<const Exported> exported, std::uint32_t layout_version,
                       std::shared_ptr<Listener> listener, std::uint32_t tick_ms, std::uint32_t last_owner)
    : impl_(std::make_unique<Impl>(std::move(path), exported, layout_version, std::move(listener), tick_ms,
                                   last_owner)) {}

NodeServer::~NodeServer() { close(); }

std::uint32_t NodeServer::open_engine(const std::string& name, std::uint32_t ranks) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->require_open();
  return impl_->roster_.open(name, ranks);
}

std::uint32_t NodeServer::attached(std::uint32_t owner) const {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->roster_.attached(owner);
}

void NodeServer::fence(std::uint32_t owner, std::uint64_t epoch) {
  const std::lock_guard lock(impl_->mutex_);
  if (impl_->stop_) return;
  impl_->roster_.fence(owner, epoch, impl_->events_);
  impl_->due_.insert(owner);
  impl_->wake();
}

NodeCounters NodeServer::counters() const {
  const std::lock_guard lock(impl_->mutex_);
  NodeCounters counters = impl_->counters_;
  counters.mappers_now = impl_->roster_.mappers();
  return counters;
}

std::vector<EngineStatus> NodeServer::engines() const {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->roster_.engines();
}

std::vector<pid_t> NodeServer::kill_behind(std::chrono::milliseconds longer_than) {
  const std::lock_guard lock(impl_->mutex_);
  std::vector<pid_t> killed;
  for (const std::uint64_t id : impl_->roster_.behind(longer_than)) {
    const Mapper& mapper = *impl_->roster_.find(id);
    if (mapper.pid == ::getpid()) continue;
    if (::syscall(SYS_pidfd_send_signal, mapper.pidfd.get(), SIGKILL, nullptr, 0) == 0)
      killed.push_back(mapper.pid);
  }
  return killed;
}

void NodeServer::drain() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->draining_ = true;
}

std::vector<pid_t> NodeServer::mappers(std::uint32_t owner) const {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->roster_.mappers(owner);
}

const std::string& NodeServer::path() const noexcept { return impl_->path_; }

void NodeServer::close() noexcept { impl_->close(); }

}  // namespace kvarter
