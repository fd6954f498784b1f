#pragma once
// Blocks between the pools of two hosts. Peers connect by invites, which their callers exchange over a
// connection that has authenticated both; then each may say things to the other (message), name slots that
// the other shall fill (expect), and fill the other's (send). The owner of the blocks drives: it decides what
// it sends, and names no address. Every byte is copied into its slot by the engine that owns the slot, after
// it has looked who sends it, for which open request, and whether it is the next one: what comes late, from
// anyone else or in the wrong place is dropped and counted. XXH3-64 of each block is compared with the
// owner's.
//
// Threads: every method from any thread; connect, expect and forget wait for the engine's own thread to do
// it, and that never waits for anything but its sockets. That thread spins for `spin` after the last thing
// that happened, then sleeps. All that happens is told by events, for which a descriptor wakes a caller.
//
// When full: a peer's calls are Busy while more than `queued_bytes` of it wait; messages that nobody takes
// end the connection with whoever sends them.
//
// It needs UCX at run time, encrypts nothing, and listens on the interfaces it is given: they must be those
// of a network on which every host is trusted.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvarter/status.h"
#include "kvarter/ucx/context.h"
#include "kvarter/ucx/counters.h"
#include "kvarter/ucx/events.h"

namespace kvarter::ucx {

struct Options {
  Settings settings;
  std::size_t window = 16;  // messages under way to one peer
  std::chrono::microseconds spin{50};
  std::size_t queued_bytes = 256 << 20;
};

struct Block {
  std::uint64_t offset = 0, length = 0;  // in the memory
  Status status = Status::kOk;           // only Ok blocks are read and sent
  std::uint64_t checksum = 0;            // XXH3-64
};

class Engine {
 public:
  // Slots and blocks lie in `memory`, which stays mapped until the engine is closed. Throws
  // std::invalid_argument, UcxError.
  Engine(std::span<std::byte> memory, const Options& options);
  // Closes.
  ~Engine();

  std::vector<std::string> transports() const;
  const Counters& counters() const;
  // Readable while there is an event to take. Valid as long as the engine.
  int event_fd() const noexcept;
  // The oldest events, at most `most`. Never waits.
  std::vector<Event> take(std::size_t most);

  // For one connection: our address and a secret that the other side's messages must carry.
  std::vector<std::byte> invite() const;
  // `theirs` was made by the other side for us, `ours` by us for it. Both sides connect; what one sends
  // before the other has connected is dropped. Throws std::invalid_argument for bytes that are no invite,
  // UcxError where UCX cannot use the address, std::runtime_error when closed.
  PeerId connect(std::span<const std::byte> theirs, std::span<const std::byte> ours);
  // Ends a connection. Its requests are answered Closed; the event Closed is its last. The other side is not
  // told, and UCX may leave it waiting for ever: its caller must learn it in another way, and close, too.
  void close_peer(PeerId peer);

  // Says something to the peer's caller; messages arrive in order. Ok, Busy, Closed.
  // Throws std::invalid_argument above kMostMessage bytes.
  Status message(PeerId peer, std::vector<std::byte> data);

  // Opens a request: the peer may fill these slots, of which it is told the number and the generation that is
  // returned and may be by any way. One event Received ends it, at once when the peer is gone. The slots
  // belong to it until then. Throws std::invalid_argument for none or more than kMostBlocks slots, an empty
  // one, one outside the memory, slots that overlap, and a request whose event has not been taken;
  // std::runtime_error when closed.
  std::uint64_t expect(PeerId peer, std::uint64_t request,
                       std::vector<std::pair<std::uint64_t, std::uint64_t>> slots);
  // Ends a request without an event; from the return on no byte enters its slots. False: it had ended, and
  // its event has been or will be taken.
  bool forget(std::uint64_t request);

  // Fills the slots of the peer's request: one block for each, in its order, Ok ones of the slot's length.
  // Ok: one event Sent tells when the blocks are not read any more. Busy and Closed: there is none.
  // Throws std::invalid_argument for none or more than kMostBlocks blocks, and for an Ok one that is empty or
  // outside the memory.
  Status send(PeerId peer, std::uint64_t request, std::uint64_t generation, std::span<const Block> blocks);
  // What has not been sent of it will not be, and the other side is told. Does nothing where all has been.
  void cancel(PeerId peer, std::uint64_t request);

  // Ends all connections, then the thread. Events may still be taken. Calls from now on answer Closed, or
  // throw where they have no status.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarter::ucx
