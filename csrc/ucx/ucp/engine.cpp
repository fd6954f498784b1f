#include "kvarter/ucx/engine.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "ucx/ucp/impl.h"

namespace kvarter::ucx {

namespace {

struct Invite {
  std::array<char, 8> magic = kInviteMagic;
  std::uint64_t token = 0;
};

// Its token; the address follows.
std::uint64_t token_of(std::span<const std::byte> bytes, const char* whose) {
  Invite invite;
  if (bytes.size() > sizeof invite) {
    std::memcpy(&invite, bytes.data(), sizeof invite);
    if (invite.magic == kInviteMagic) return invite.token;
  }
  throw std::invalid_argument(std::string(whose) + " is no invite of this version (" +
                              std::to_string(bytes.size()) + " bytes)");
}

void check(const Options& options, std::span<std::byte> memory) {
  const std::size_t segment = options.settings.segment;
  if (memory.empty()) throw std::invalid_argument("the memory is empty");
  if (segment < 4096 || segment > (1 << 20))
    throw std::invalid_argument("segment is " + std::to_string(segment) + ", expected 4096 to 1048576");
  if (options.window == 0) throw std::invalid_argument("window is 0, expected at least 1");
}

}  // namespace

Engine::Engine(std::span<std::byte> memory, const Options& options) {
  check(options, memory);
  impl_ = std::make_unique<Impl>(memory, options.queued_bytes);
  impl_->thread = std::thread([impl = impl_.get(), options] { impl->run(options); });
  try {
    impl_->started.get_future().get();
  } catch (...) {
    impl_->thread.join();
    throw;
  }
}

Engine::~Engine() { close(); }

std::vector<std::string> Engine::transports() const { return impl_->transports; }
const Counters& Engine::counters() const { return impl_->counters; }
int Engine::event_fd() const noexcept { return impl_->events.fd(); }

std::vector<Event> Engine::take(std::size_t most) {
  std::vector<Event> events = impl_->events.take(most);
  const std::lock_guard lock(impl_->mutex);
  for (const Event& event : events) {
    if (const auto* received = std::get_if<Received>(&event)) impl_->open.erase(received->request);
    if (const auto* closed = std::get_if<Closed>(&event)) impl_->queued.erase(closed->peer);
  }
  return events;
}

std::vector<std::byte> Engine::invite() const {
  const Invite invite{.token = random_word()};
  std::vector<std::byte> all(sizeof invite + impl_->address.size());
  std::memcpy(all.data(), &invite, sizeof invite);
  std::ranges::copy(impl_->address, all.begin() + sizeof invite);
  return all;
}

PeerId Engine::connect(std::span<const std::byte> theirs, std::span<const std::byte> ours) {
  const std::uint64_t send_token = token_of(theirs, "theirs"), receive_token = token_of(ours, "ours");
  const auto address = theirs.subspan(sizeof(Invite));
  const auto queued = std::make_shared<std::atomic<std::size_t>>(0);
  PeerId peer = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    peer = ++impl_->last_peer;
    impl_->queued[peer] = queued;
  }
  try {
    if (impl_->now([&] { impl_->loop->connect(peer, address, send_token, receive_token, queued); }))
      return peer;
    throw std::runtime_error("the engine is closed");
  } catch (...) {
    const std::lock_guard lock(impl_->mutex);
    impl_->queued.erase(peer);
    throw;
  }
}

void Engine::close_peer(PeerId peer) {
  impl_->later([impl = impl_.get(), peer] { impl->loop->close_peer(peer); });
}

Status Engine::message(PeerId peer, std::vector<std::byte> data) {
  if (data.size() > kMostMessage)
    throw std::invalid_argument("a message has " + std::to_string(data.size()) + " bytes, expected at most " +
                                std::to_string(kMostMessage));
  Queued account;
  if (const Status status = impl_->admit(peer, data.size() + kCallCost, account); status != Status::kOk)
    return status;
  const bool taken = impl_->later([impl = impl_.get(), peer, data = std::move(data)]() mutable {
    impl->loop->sender().message(peer, std::move(data));
  });
  return taken ? Status::kOk : Status::kClosed;
}

void Engine::close() {
  const std::lock_guard lock(impl_->closing);
  if (!impl_->thread.joinable()) return;
  impl_->later([impl = impl_.get()] { impl->loop->stop(); });
  impl_->thread.join();
}

}  // namespace kvarter::ucx
