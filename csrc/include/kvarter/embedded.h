#pragma once
// The node: what the index wants of its mappers reaches them, what they acknowledge or die of reaches the
// index, and what sessions ask of it is answered. Also the other end: a mapper whose copy engine answers the
// fences.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvarter/copy.h"
#include "kvarter/disk.h"
#include "kvarter/histogram.h"
#include "kvarter/index.h"
#include "kvarter/node.h"

namespace kvarter {

// A NodeServer whose listener is the index. From construction on its thread keeps the index's time
// (Index::tick). Owner 0, the process itself outside any engine, maps nothing through the node: its fences
// end at once.
class EmbeddedNode {
 public:
  // serves: engines may come by themselves, each with a session (RemoteIndex); else they are opened here.
  // log: what sessions find below the index. last_owner: as NodeServer has it. REQUIRES: index outlives this.
  // Throws as NodeServer does.
  EmbeddedNode(Index& index, std::span<const Exported> exported, std::string path, std::uint32_t tick_ms,
               bool serves = false, std::shared_ptr<const DiskLog> log = nullptr,
               std::uint32_t last_owner = 0);
  ~EmbeddedNode();
  EmbeddedNode(const EmbeddedNode&) = delete;
  EmbeddedNode& operator=(const EmbeddedNode&) = delete;

  NodeServer& server() { return *server_; }
  // How long sessions' calls took at the index, by verb, since start: those that were answered, without the
  // way through the socket. Any thread.
  std::vector<std::pair<std::string, Histogram::Counts>> latencies() const;
  // The highest epoch up to which all fences of an owner have ended; nothing before the first.
  std::optional<std::uint64_t> fenced(std::uint32_t owner) const;
  // Ends the server, and lets go of the log. Idempotent.
  void close() noexcept;

 private:
  class IndexListener;
  std::shared_ptr<IndexListener> listener_;
  std::unique_ptr<NodeServer> server_;
};

// Acknowledges a fence when the copy engine runs no copy of its epochs any more.
class CopyFence final : public FenceHandler {
 public:
  explicit CopyFence(std::shared_ptr<CopyEngine> engine) : engine_(std::move(engine)) {}
  void fence(std::uint64_t epoch) override { engine_->fence(epoch); }

 private:
  std::shared_ptr<CopyEngine> engine_;
};

}  // namespace kvarter
