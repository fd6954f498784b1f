#include "kvarter/ucx/events.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace kvarter::ucx {

namespace {

constexpr std::size_t kMessageCost = 128;  // what a message weighs besides its bytes

}  // namespace

Events::Events() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Events::~Events() { ::close(fd_); }

void Events::put(Event event) {
  if (queue_.empty()) ::eventfd_write(fd_, 1);
  queue_.push_back(std::move(event));
}

void Events::push(Event event) {
  const std::lock_guard lock(mutex_);
  put(std::move(event));
}

bool Events::push_message(PeerId peer, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  std::size_t& unread = unread_[peer];
  if (unread + data.size() + kMessageCost > kMostUnread) return false;
  unread += data.size() + kMessageCost;
  put(Message{peer, {data.begin(), data.end()}});
  return true;
}

std::vector<Event> Events::take(std::size_t most) {
  const std::lock_guard lock(mutex_);
  std::vector<Event> taken;
  while (!queue_.empty() && taken.size() < most) {
    taken.push_back(std::move(queue_.front()));
    queue_.pop_front();
    if (const auto* message = std::get_if<Message>(&taken.back()))
      unread_[message->peer] -= message->data.size() + kMessageCost;
    else if (const auto* closed = std::get_if<Closed>(&taken.back()))
      unread_.erase(closed->peer);
  }
  if (queue_.empty()) {
    eventfd_t count;
    ::eventfd_read(fd_, &count);
  }
  return taken;
}

}  // namespace kvarter::ucx
