#pragma once
// The index of a node in another process: what a scheduler asks of its own index, asked over a session.
// Look-ups go to the mapped index and cost no message; everything that changes something is one round trip to
// the node's thread. Numbers and arrays travel through memory that the node shares with this session alone.
//
// Threads: every method from any thread; one call is under way at a time. No call waits longer than
// `patience`: a node that has not answered by then, or is gone, is given up for good, and every call from
// then on answers kClosed, or nothing, at once. A new session is a new RemoteIndex.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvarter/index.h"
#include "kvarter/mapping.h"

namespace kvarter {

class RemoteIndex {
 public:
  // Opens engine `name` of so many ranks at the node, which may attach from then on, as this process does as
  // the last but one: rank `ranks` is its own, acknowledges fences at once and is forgotten with its
  // connection, since whoever holds this copies nothing. Where the node's index is of another layout version,
  // look-ups go through the session as well. Returns within about `timeout`. Throws NodeRefused, NodeError,
  // std::invalid_argument.
  RemoteIndex(const std::string& path, const std::string& name, std::uint32_t ranks,
              std::chrono::milliseconds timeout, std::chrono::milliseconds patience,
              std::uint32_t layout_version = kLayoutVersion);
  ~RemoteIndex();
  RemoteIndex(const RemoteIndex&) = delete;
  RemoteIndex& operator=(const RemoteIndex&) = delete;

  bool connected() const noexcept;
  Owner owner() const noexcept;
  // Zeros where the node's index cannot be read.
  std::vector<std::uint8_t> pool_id() const;
  // Asks the node, so that epoch and version are what they are now. Returns the ranks that are attached,
  // without this process.
  std::uint32_t look();
  void close() noexcept;

  // How many shards the blocks of a namespace's groups have at most: what an answer may need room for.
  void know(std::uint32_t ns, std::uint32_t most_shards);

  // As Finder has it; 0 where the node's index cannot be read.
  std::uint64_t gate(std::uint32_t ns) const;

  // As Index's methods of the same names; owners are this session's, whatever is said. Deadlines are those of
  // the steady clock of this host.
  std::uint64_t leading(const Chain& chain, std::uint32_t group, std::uint64_t limit) const;
  std::uint64_t last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                         std::uint64_t step) const;
  bool contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const;
  std::uint64_t version() const;
  Status lease(const Chain& chain, std::span<const Range> ranges, LeaseKind kind, Owner owner,
               std::uint64_t deadline, std::uint64_t bytes, LeaseId& id);
  std::vector<Slot> slots(LeaseId id);
  bool release(LeaseId id, Outcome outcome);
  void drop_corrupt(LeaseId id, std::span<const std::uint32_t> positions);
  std::vector<Reserved> reserve(const Chain& chain, const Range& range, Shards shards, Owner owner,
                                std::uint64_t deadline, std::vector<Slot>& slots);
  void complete(std::span<const Handle> handles, std::uint32_t shard, std::span<const std::uint8_t> ok,
                std::span<const std::uint64_t> checksums);
  void abort(std::span<const Handle> handles, Shards shards = {});
  // As the node's last answer said.
  std::uint64_t epoch(Owner owner) const;
  // Of at most 932,067 changes, which is what an answer holds; where there is no node, not all is told.
  void watch(Owner owner, std::size_t at_most);
  bool changes(Owner owner, std::vector<Change>& since);
  std::vector<Handle> handles(const Chain& chain, const Range& range) const;
  std::vector<bool> resident(std::span<const Handle> handles) const;
  // As DiskLog's methods, of the log below the node's index. False, or nothing, where there is none.
  std::uint64_t below_leading(const Chain& chain, std::uint32_t group, std::uint64_t from,
                              std::uint64_t limit) const;
  std::uint64_t below_last_run(const Chain& chain, std::uint32_t group, std::uint64_t end, std::uint64_t run,
                               std::uint64_t step) const;
  bool below_contains(const Chain& chain, std::uint32_t group, std::uint64_t block) const;
  std::uint64_t below_version() const;  // as the last answer said
  // Of this session alone: what it offered and leased. What the node does with blocks is in the node's own.
  Counters counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarter
