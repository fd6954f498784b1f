#pragma once
// Where messages end, and the only place that writes into slots. It knows who may speak (a token for each
// connection), what was asked of whom (a request, with a generation nobody can guess) and how far each answer
// has come; what does not fit is dropped and counted. A block's bytes must come in order, so that its
// checksum is computed on their way, and a message can write only where the answer stands.
//
// One thread. It knows nothing of UCX: bytes come in by arrive().
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "hash/xxh3.h"
#include "kvarter/ucx/counters.h"
#include "kvarter/ucx/events.h"
#include "ucx/wire.h"

namespace kvarter::ucx {

// `length` bytes at `offset` of the memory.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class Receiver {
 public:
  Receiver(std::span<std::byte> memory, Events& events, Counters& counters);

  // Whoever puts `token` into its messages is `peer`.
  void admit(std::uint64_t token, PeerId peer);
  // Its token means nothing any more, and what it owes ends as Closed.
  void dismiss(PeerId peer);

  // Opens a request. Ends at once as all Closed where the peer has been dismissed.
  // REQUIRES: the slots lie in the memory; the request is not open.
  void expect(PeerId peer, std::uint64_t request, std::uint64_t generation, std::vector<Extent> slots);
  bool open(std::uint64_t request) const { return expected_.contains(request); }
  // Ends a request without an event; false if there is none.
  bool forget(std::uint64_t request);

  // A message, from anyone. Returns the peer whose messages outran our caller, which must be closed.
  std::optional<PeerId> arrive(std::span<const std::byte> header, std::span<const std::byte> payload);

 private:
  struct Expected {
    PeerId peer;
    std::uint64_t generation;
    std::vector<Extent> slots;
    std::vector<Status> statuses;
    std::vector<std::uint64_t> checksums;
    bool begun = false;
    std::uint64_t at = 0, total = 0;  // bytes of the Ok blocks
    std::size_t block = 0;            // the one that is landing,
    std::uint64_t within = 0;         // so far, and the state of its checksum
    alignas(64) std::array<std::uint64_t, 8> mixed = kXxh3Start;
    std::size_t stripe = 0;
  };
  using Entry = std::unordered_map<std::uint64_t, Expected>::iterator;

  void begin(Entry entry, const Header& header, std::span<const std::byte> payload);
  void data(Entry entry, const Header& header, std::span<const std::byte> payload);
  // Goes to the next block that bytes are to come for.
  void skip(Expected& expected);
  // Whether the next so many bytes end with a block or a stripe of one.
  bool whole_stripes(const Expected& expected, std::size_t bytes) const;
  // Copies a block's next bytes to where they belong, and mixes them into its checksum. `next`: what is
  // copied after them.
  void land(Expected& expected, std::span<const std::byte> bytes, const std::byte* next);
  std::uint64_t checksum(const Expected& expected) const;
  // Answers a request; blocks that are not complete end as `rest`.
  void finish(Entry entry, Status rest);

  std::span<std::byte> memory_;
  Events& events_;
  Counters& counters_;
  std::unordered_map<std::uint64_t, PeerId> tokens_;
  std::unordered_map<std::uint64_t, Expected> expected_;
};

}  // namespace kvarter::ucx
