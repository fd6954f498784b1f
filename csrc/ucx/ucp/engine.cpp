#include "kvarter/ucx/engine.h"

#include <pthread.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_set>

#include "ucx/ucp/loop.h"

namespace kvarter::ucx {

namespace {

struct Invite {
  std::array<char, 8> magic = kInviteMagic;
  std::uint64_t token = 0;
};

std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word)
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return word;
}

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

void check_count(std::size_t count) {
  if (count == 0 || count > kMostBlocks)
    throw std::invalid_argument("a request has " + std::to_string(count) + " blocks, expected 1 to " +
                                std::to_string(kMostBlocks));
}

void check_inside(std::size_t index, std::uint64_t offset, std::uint64_t length, std::size_t size) {
  if (length == 0 || length > size || offset > size - length)
    throw std::invalid_argument("block " + std::to_string(index) + " is " + std::to_string(length) +
                                " bytes at " + std::to_string(offset) + " of a memory of " +
                                std::to_string(size));
}

void check_apart(std::vector<std::pair<std::uint64_t, std::uint64_t>> slots) {
  std::ranges::sort(slots);
  for (std::size_t i = 1; i < slots.size(); ++i)
    if (slots[i - 1].first + slots[i - 1].second > slots[i].first)
      throw std::invalid_argument("slots overlap at " + std::to_string(slots[i].first));
}

void check(const Options& options, std::span<std::byte> memory) {
  const std::size_t segment = options.settings.segment;
  if (memory.empty()) throw std::invalid_argument("the memory is empty");
  if (segment < 4096 || segment > (1 << 20))
    throw std::invalid_argument("segment is " + std::to_string(segment) + ", expected 4096 to 1048576");
  if (options.window == 0) throw std::invalid_argument("window is 0, expected at least 1");
}

}  // namespace

struct Engine::Impl {
  Impl(std::span<std::byte> bytes, std::size_t most_queued) : memory(bytes), queued_bytes(most_queued) {}

  std::span<std::byte> memory;
  std::size_t queued_bytes;
  Events events;
  Counters counters;
  Tasks tasks;
  std::vector<std::byte> address;
  std::vector<std::string> transports;
  Loop* loop = nullptr;  // the thread's

  std::mutex mutex;  // of what follows
  std::unordered_map<PeerId, Queued> queued;
  std::unordered_set<std::uint64_t> open;  // requests whose event has not been taken
  PeerId last_peer = 0;

  std::mutex closing;
  std::thread thread;

  // Runs on the thread some time, unless that has ended. Exceptions are lost.
  template <class F>
  bool later(F task) {
    return tasks.push(Task(std::move(task)));
  }
  // Runs on the thread, and waits for it. False: the thread has ended.
  template <class F>
  bool now(F function) {
    Task task(std::move(function));
    std::future<void> done = task.get_future();
    if (!tasks.push(std::move(task))) return false;
    try {
      done.get();
    } catch (const std::future_error&) {
      return false;
    }
    return true;
  }

  // Room for a call of so many bytes to a peer.
  Status admit(PeerId peer, std::size_t bytes, Queued& account) {
    const std::lock_guard lock(mutex);
    const auto it = queued.find(peer);
    if (it == queued.end()) return Status::kClosed;
    const std::size_t waiting = it->second->load(std::memory_order_relaxed);
    if (waiting != 0 && waiting + bytes > queued_bytes) return Status::kBusy;
    it->second->fetch_add(bytes, std::memory_order_relaxed);
    account = it->second;
    return Status::kOk;
  }

  void run(const Options& options, std::promise<void>& started) {
    ::pthread_setname_np(::pthread_self(), "kvarter-ucx");
    std::unique_ptr<Loop> owned;
    try {
      owned = std::make_unique<Loop>(memory, options, tasks, events, counters);
      address = owned->address();
      transports = owned->transports();
      loop = owned.get();
      started.set_value();
    } catch (...) {
      started.set_exception(std::current_exception());
      return;
    }
    loop->run();
    tasks.close();
  }
};

Engine::Engine(std::span<std::byte> memory, const Options& options) {
  check(options, memory);
  impl_ = std::make_unique<Impl>(memory, options.queued_bytes);
  std::promise<void> started;
  impl_->thread = std::thread([&, impl = impl_.get(), options] { impl->run(options, started); });
  try {
    started.get_future().get();
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

std::uint64_t Engine::expect(PeerId peer, std::uint64_t request,
                             std::vector<std::pair<std::uint64_t, std::uint64_t>> slots) {
  check_count(slots.size());
  std::vector<Extent> extents;
  for (const auto& [offset, length] : slots) {
    check_inside(extents.size(), offset, length, impl_->memory.size());
    extents.push_back({offset, length});
  }
  check_apart(std::move(slots));
  const std::uint64_t generation = random_word();
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->open.insert(request).second)
      throw std::invalid_argument("request " + std::to_string(request) + " is open");
  }
  // Waits: whoever learns the generation, in whatever way, may send at once.
  if (!impl_->now([&] { impl_->loop->receiver().expect(peer, request, generation, std::move(extents)); })) {
    const std::lock_guard lock(impl_->mutex);
    impl_->open.erase(request);
    throw std::runtime_error("the engine is closed");
  }
  return generation;
}

bool Engine::forget(std::uint64_t request) {
  bool open = false;
  impl_->now([&] { open = impl_->loop->receiver().forget(request); });
  if (open) {
    const std::lock_guard lock(impl_->mutex);
    impl_->open.erase(request);
  }
  return open;
}

Status Engine::send(PeerId peer, std::uint64_t request, std::uint64_t generation,
                    std::span<const Block> blocks) {
  check_count(blocks.size());
  Job job;
  job.request = request;
  job.generation = generation;
  for (const Block& block : blocks) {
    job.verdicts.push_back({block.checksum, static_cast<std::uint64_t>(block.status)});
    if (block.status != Status::kOk) continue;
    check_inside(job.verdicts.size() - 1, block.offset, block.length, impl_->memory.size());
    job.pieces.push_back({impl_->memory.data() + block.offset, block.length});
    job.total += block.length;
  }
  Queued account;
  if (const Status status = impl_->admit(peer, job.total + kCallCost, account); status != Status::kOk)
    return status;
  const bool taken = impl_->later([impl = impl_.get(), peer, job = std::move(job)]() mutable {
    impl->loop->sender().send(peer, std::move(job));
  });
  return taken ? Status::kOk : Status::kClosed;
}

void Engine::cancel(PeerId peer, std::uint64_t request) {
  impl_->later([impl = impl_.get(), peer, request] { impl->loop->sender().cancel(peer, request); });
}

void Engine::close() {
  const std::lock_guard lock(impl_->closing);
  if (!impl_->thread.joinable()) return;
  impl_->later([impl = impl_.get()] { impl->loop->stop(); });
  impl_->thread.join();
}

}  // namespace kvarter::ucx
