#include "kvarter/embedded.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "node/desk.h"

namespace kvarter {

class EmbeddedNode::IndexListener final : public Listener {
 public:
  IndexListener(Index& index, bool serves, std::shared_ptr<const DiskLog> log)
      : index_(index), serves_(serves), log_(std::move(log)) {}
  void drop_log() { log_.reset(); }
  void serve(NodeServer* server) { server_.store(server, std::memory_order_release); }

  void on_fenced(std::uint32_t owner, std::uint64_t epoch) override {
    index_.fenced(owner, epoch);
    const std::lock_guard lock(mutex_);
    fenced_[owner] = std::max(fenced_[owner], epoch);
  }
  std::optional<std::uint64_t> fenced(std::uint32_t owner) {
    const std::lock_guard lock(mutex_);
    const auto found = fenced_.find(owner);
    return found == fenced_.end() ? std::nullopt : std::optional(found->second);
  }
  void on_dead(std::uint32_t owner) override { index_.owner_dead(owner); }
  void on_gone(std::uint32_t owner) override {
    index_.forget(owner);
    const std::lock_guard lock(mutex_);
    fenced_.erase(owner);
  }
  bool serves() const override { return serves_; }
  bool on_call(std::uint32_t owner, const wire::Call& call, std::span<const std::byte> inbox,
               std::span<std::byte> outbox, wire::Reply& reply) override {
    return node::serve(index_, log_.get(), owner, call, inbox, outbox, reply, latencies_);
  }
  const node::Latencies& latencies() const { return latencies_; }
  void on_tick() override {
    NodeServer* server = server_.load(std::memory_order_acquire);
    if (!server) return;  // the first ticks may come before the constructor has returned
    for (const FenceRequest& fence : index_.tick()) {
      if (fence.owner == 0)
        index_.fenced(0, fence.epoch);
      else
        server->fence(fence.owner, fence.epoch);
    }
  }

 private:
  Index& index_;
  const bool serves_;
  std::shared_ptr<const DiskLog> log_;
  std::atomic<NodeServer*> server_{nullptr};
  node::Latencies latencies_;  // the server's thread writes them
  std::mutex mutex_;
  std::map<std::uint32_t, std::uint64_t> fenced_;
};

EmbeddedNode::EmbeddedNode(Index& index, std::span<const Exported> exported, std::string path,
                           std::uint32_t tick_ms, bool serves, std::shared_ptr<const DiskLog> log,
                           std::uint32_t last_owner)
    : listener_(std::make_shared<IndexListener>(index, serves, std::move(log))),
      server_(std::make_unique<NodeServer>(std::move(path), exported, kLayoutVersion, listener_, tick_ms,
                                           last_owner)) {
  listener_->serve(server_.get());
}

std::vector<std::pair<std::string, Histogram::Counts>> EmbeddedNode::latencies() const {
  std::vector<std::pair<std::string, Histogram::Counts>> all;
  for (std::uint32_t verb = 1; verb < wire::kVerbs; ++verb)
    all.emplace_back(node::name(static_cast<wire::Verb>(verb)), listener_->latencies()[verb].read());
  return all;
}

std::optional<std::uint64_t> EmbeddedNode::fenced(std::uint32_t owner) const {
  return listener_->fenced(owner);
}

void EmbeddedNode::close() noexcept {
  server_->close();
  listener_->drop_log();  // its thread has ended
}

EmbeddedNode::~EmbeddedNode() { close(); }

}  // namespace kvarter
