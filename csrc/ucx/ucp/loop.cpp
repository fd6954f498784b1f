#include "ucx/ucp/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace kvarter::ucx {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSleepMilliseconds = 1000;  // no wake-up of UCX's is known to be lost; one that is costs this
constexpr std::chrono::seconds kCloseGuard{1};  // what is stuck in a connection ends with the worker

static_assert(sizeof(iovec) == sizeof(ucp_dt_iov_t) &&
              offsetof(iovec, iov_base) == offsetof(ucp_dt_iov_t, buffer) &&
              offsetof(iovec, iov_len) == offsetof(ucp_dt_iov_t, length));

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

Tasks::Tasks() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) fail("eventfd");
}

Tasks::~Tasks() { ::close(fd_); }

bool Tasks::push(Task task) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (tasks_.empty()) ::eventfd_write(fd_, 1);
  tasks_.push_back(std::move(task));
  return true;
}

std::vector<Task> Tasks::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(tasks_, {});
}

void Tasks::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void Tasks::drain() noexcept {
  eventfd_t count;
  ::eventfd_read(fd_, &count);
}

struct Loop::Connection final : Transmit {
  Connection(Loop& loop, PeerId id, std::span<const std::byte> address)
      : loop_(loop),
        id_(id),
        endpoint(loop.worker_, address, [this](ucs_status_t status) { end(ucs_status_string(status)); }) {}

  // why: empty when our caller wants it.
  void end(std::string reason) {
    if (ending) return;
    ending = true;
    why = std::move(reason);
    loop_.ending_.push_back(id_);
  }

  Outcome transmit(Operation& operation) override {
    if (ending) return Outcome::kFailed;
    const auto* pieces = reinterpret_cast<const ucp_dt_iov_t*>(operation.pieces.data());
    const Memory* memory = operation.header.kind == Kind::kData ? &loop_.memory_ : nullptr;
    const ucs_status_t status = endpoint.send(kMessageId, std::as_bytes(std::span(&operation.header, 1)),
                                              {pieces, operation.count}, memory, operation);
    if (status == UCS_OK) return Outcome::kDone;
    if (status == UCS_INPROGRESS) return Outcome::kUnderWay;
    end(ucs_status_string(status));
    return Outcome::kFailed;
  }

  Loop& loop_;
  const PeerId id_;
  std::string why;
  bool ending = false, closing = false;
  Endpoint endpoint;
};

Loop::Loop(std::span<std::byte> memory, const Options& options, Tasks& tasks, Events& events,
           Counters& counters)
    : tasks_(tasks),
      events_(events),
      counters_(counters),
      spin_(options.spin),
      receiver_(memory, events, counters),
      sender_(options.settings.segment, options.window, events, counters),
      context_(options.settings),
      memory_(context_, memory, UCS_MEMORY_TYPE_HOST),
      worker_(context_),
      poll_fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (poll_fd_ < 0) fail("epoll_create1");
  for (const int fd : {worker_.fd(), tasks_.fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(poll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
  }
  worker_.receive(kMessageId, [this](auto header, auto payload, bool whole) {
    if (!whole) return counters_.add(Count::kDropMalformed);
    if (const auto flooding = receiver_.arrive(header, payload))
      connections_.at(*flooding)->end("more than " + std::to_string(kMostUnread) +
                                      " bytes of its messages wait");
  });
}

Loop::~Loop() { ::close(poll_fd_); }

void Loop::connect(PeerId peer, std::span<const std::byte> address, std::uint64_t send_token,
                   std::uint64_t receive_token, Queued queued) {
  if (stopping_) throw std::runtime_error("the engine is closed");
  auto connection = std::make_unique<Connection>(*this, peer, address);
  sender_.add(peer, send_token, *connection, std::move(queued));
  receiver_.admit(receive_token, peer);
  connections_[peer] = std::move(connection);
}

void Loop::close_peer(PeerId peer) {
  if (const auto it = connections_.find(peer); it != connections_.end()) it->second->end("");
}

void Loop::stop() {
  stopping_ = true;
  for (const auto& [peer, connection] : connections_) connection->end("");
}

void Loop::run() {
  Clock::time_point busy = Clock::now();
  while (!stopping_ || !connections_.empty()) {
    bool worked = run_tasks();
    worked |= sender_.pump();
    worked |= worker_.progress();
    if (!ending_.empty()) end_some();
    const Clock::time_point now = Clock::now();
    if (worked)
      busy = now;
    else if (stopping_ && now - busy > kCloseGuard)
      break;  // the worker's end is the end of its endpoints
    else if (now - busy > spin_ && ending_.empty())
      sleep();
  }
  tasks_.close();
  run_tasks();  // those that came meanwhile are answered, too
}

bool Loop::run_tasks() {
  std::vector<Task> tasks = tasks_.take();
  for (Task& task : tasks) task();
  return !tasks.empty();
}

void Loop::end_some() {
  std::erase_if(ending_, [this](PeerId peer) {
    Connection& connection = *connections_.at(peer);
    if (!connection.closing) {
      connection.closing = true;
      receiver_.dismiss(peer);
      sender_.lose(peer);
      if (!connection.why.empty()) {
        counters_.add(Count::kLost);
        events_.push(Lost{peer, connection.why});
      }
      connection.endpoint.close(stopping_ || sender_.idle(peer));
    }
    if (!connection.endpoint.closed() || !sender_.idle(peer)) return false;
    sender_.remove(peer);
    connections_.erase(peer);
    events_.push(Closed{peer});
    return true;
  });
}

void Loop::sleep() {
  if (!worker_.arm()) return;
  epoll_event event;
  ::epoll_wait(poll_fd_, &event, 1, kSleepMilliseconds);
  tasks_.drain();
}

}  // namespace kvarter::ucx
