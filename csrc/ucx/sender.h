#pragma once
// What waits to be sent, for each peer, and whose turn it is. Peers take turns by bytes; each has a window of
// messages under way, so that a slow one delays nobody. What callers say overtakes blocks. Blocks of a
// request are cut into messages of at most `segment` bytes, and small ones share a message.
//
// One thread. It knows nothing of UCX: messages leave through Transmit, which says when one is done.
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvarter/ucx/counters.h"
#include "kvarter/ucx/events.h"
#include "ucx/wire.h"

namespace kvarter::ucx {

// Blocks for one request of a peer. The pieces are the blocks that are Ok.
struct Job {
  std::uint64_t request = 0, generation = 0;
  std::vector<iovec> pieces;
  std::vector<Verdict> verdicts;
  std::uint64_t total = 0;

  bool begun = false, failed = false;
  std::uint64_t at = 0;               // bytes that are under way or done
  std::size_t piece = 0, within = 0;  // where they end
  std::size_t under_way = 0;          // messages
  bool posted() const { return failed || (begun && at == total); }
};

struct Lane;

// A message that is under way. Its bytes, which may be the pool's, stay where they are until it is done.
struct Operation {
  Header header;
  std::array<iovec, 64> pieces;
  std::size_t count = 0, bytes = 0;
  std::vector<std::byte> said;  // by a caller: the piece
  Lane* lane = nullptr;
  std::list<Job>::iterator job;
  bool of_job = false;

  void done(bool ok);  // tells the sender
};

enum class Outcome : std::uint8_t { kDone, kUnderWay, kFailed };

class Transmit {
 public:
  virtual ~Transmit() = default;
  // UnderWay: Sender::done() is called later. Not called from within Sender::done().
  virtual Outcome transmit(Operation& operation) = 0;
};

// What a peer's caller has queued and the sender not yet done with, in bytes. Any thread.
using Queued = std::shared_ptr<std::atomic<std::size_t>>;
inline constexpr std::size_t kCallCost = 256;  // what a call weighs in it besides its bytes

class Sender {
 public:
  Sender(std::size_t segment, std::size_t window, Events& events, Counters& counters);
  ~Sender();

  void add(PeerId peer, std::uint64_t token, Transmit& transmit, Queued queued);
  // For a peer that is not there, the first does nothing and the second answers Closed.
  void message(PeerId peer, std::vector<std::byte> data);
  void send(PeerId peer, Job job);
  void cancel(PeerId peer, std::uint64_t request);
  // Nothing is sent to the peer any more. It is there until nothing is under way either: idle().
  void lose(PeerId peer);
  bool idle(PeerId peer) const;
  // REQUIRES: idle(peer).
  void remove(PeerId peer);

  // Gives each peer one turn. True if anything was sent, or could be by another call.
  bool pump();
  void done(Operation& operation, bool ok);

 private:
  bool take_turn(Lane& lane);
  Operation& next(Lane& lane);
  void wake(Lane& lane);
  void settle(Lane& lane, std::list<Job>::iterator job);
  void release(Operation& operation);

  const std::size_t segment_, window_;
  Events& events_;
  Counters& counters_;
  std::unordered_map<PeerId, std::unique_ptr<Lane>> lanes_;
  std::deque<Lane*> turns_;  // of those that have something to send and room in their window
  std::deque<Operation> operations_;
  std::vector<Operation*> unused_;
};

}  // namespace kvarter::ucx
