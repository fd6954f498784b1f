#pragma once
// What an engine has done since it began. One thread counts, any thread reads.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvarter::ucx {

enum class Count : std::uint8_t {
  kBytesSent,         // of blocks, given to the transport
  kBlocksSent,        // in requests that were sent whole
  kBytesReceived,     // of blocks, written into slots
  kBlocksReceived,    // complete and verified
  kBlocksCorrupt,     // complete, with another checksum than the owner's
  kMessagesSent,      // of callers
  kMessagesReceived,  //
  kStalls,            // a peer had something to send and its window was full
  kDropStranger,      // dropped: a token that is nobody's, or of a connection that has ended
  kDropMalformed,     // dropped: no header of ours, or a payload that its kind cannot have
  kDropUnasked,       // dropped: a request or generation that is not open, or is another peer's
  kDropDisordered,    // dropped: bytes that are not the next ones, or begun twice
  kDropFlood,         // dropped: more unread messages than a peer may have
  kLost,              // peers that UCX could not reach any more
};
inline constexpr std::array kCountNames{
    "bytes_sent",      "blocks_sent",        "bytes_received", "blocks_received",  "blocks_corrupt",
    "messages_sent",   "messages_received",  "stalls",         "dropped_stranger", "dropped_malformed",
    "dropped_unasked", "dropped_disordered", "dropped_flood",  "peers_lost"};

class Counters {
 public:
  void add(Count what, std::uint64_t by = 1) noexcept {
    auto& counter = counts_[static_cast<std::size_t>(what)];
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  std::uint64_t get(std::size_t what) const noexcept { return counts_[what].load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<std::uint64_t>, kCountNames.size()> counts_{};
};

}  // namespace kvarter::ucx
