#pragma once
// What an engine tells its caller, in the order in which it happened, and the queue that holds it. The
// engine's thread pushes, any thread takes, and a descriptor is readable while something waits, for poll() or
// an event loop.
//
// The queue is bounded by what the caller has asked for: a request and a peer end once. Only messages come
// unasked, and so each peer may have no more than kMostUnread bytes of them waiting.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "kvarter/status.h"

namespace kvarter::ucx {

// Counts up from 1 in each engine and is never used again.
using PeerId = std::uint32_t;

inline constexpr std::size_t kMostBlocks = 8192;        // of one request
inline constexpr std::size_t kMostMessage = 256 << 10;  // bytes
inline constexpr std::size_t kMostUnread = 16 << 20;    // bytes

// The other side's caller said this.
struct Message {
  PeerId peer;
  std::vector<std::byte> data;
};

// The answer to expect(); from now on no byte of it enters a slot. Ok: the block is in its slot and has the
// checksum that stands beside. Corrupt: it came with another length or checksum, and the slot holds anything.
// Closed: the peer was lost, or cancelled, first. Any other status is the owner's, and no byte was written.
struct Received {
  PeerId peer;
  std::uint64_t request;
  std::vector<Status> statuses;
  std::vector<std::uint64_t> checksums;
};

// The end of a send(): the blocks are not read any more. Ok: all has been given to the transport; Closed:
// the peer was lost or the request cancelled.
struct Sent {
  PeerId peer;
  std::uint64_t request;
  Status status;
};

// UCX says that the peer cannot be reached. What it owed has been answered; Closed follows.
struct Lost {
  PeerId peer;
  std::string why;
};

// The last event of a peer, but for the answers to calls that crossed it.
struct Closed {
  PeerId peer;
};

using Event = std::variant<Message, Received, Sent, Lost, Closed>;

class Events {
 public:
  Events();
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  // Readable while there is something to take. Valid until the queue is destroyed.
  int fd() const noexcept { return fd_; }
  void push(Event event);
  // False, and nothing is queued: the peer's messages have filled its share.
  bool push_message(PeerId peer, std::span<const std::byte> data);
  // The oldest events, at most `most`. Never waits.
  std::vector<Event> take(std::size_t most);

 private:
  void put(Event event);

  int fd_;
  std::mutex mutex_;
  std::deque<Event> queue_;
  std::unordered_map<PeerId, std::size_t> unread_;  // bytes
};

}  // namespace kvarter::ucx
