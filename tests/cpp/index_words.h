#pragma once
// The language of the index tests: a small pool, chains of digests, and blocks whose bytes tell who they are.
#include <cstring>
#include <string>

#include "kvarter/index.h"

namespace kvarter {

inline Digest digest_of(std::uint64_t text, std::uint64_t unit) {
  Digest digest{};
  std::uint64_t x = text * 0x9e3779b97f4a7c15u + unit + 1;
  for (int i = 0; i < 4; ++i) {
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    std::memcpy(digest.data() + 8 * i, &x, 8);
  }
  return digest;
}

// Texts below `shared` units are alike, then they part: every chain is a branch of one tree.
inline std::vector<Digest> text(std::uint64_t id, std::size_t units, std::size_t shared = 0) {
  std::vector<Digest> digests;
  for (std::size_t unit = 0; unit < units; ++unit) digests.push_back(digest_of(unit < shared ? 0 : id, unit));
  return digests;
}

inline constexpr std::uint64_t kForever = ~std::uint64_t{0};

struct World {
  SteppedClock clock;
  Pool pool;
  Index index;
  std::uint32_t ns;
  explicit World(std::uint64_t bytes = 2 << 20, std::vector<GroupShape> groups = {{1, 1, true, {64 << 10}}},
                 std::uint32_t max_slots = 256, double headroom = 0.02)
      : pool(bytes, bytes, false),
        index({max_slots, 0.5, headroom}, pool, clock),
        ns(index.open_namespace({1}, groups)) {}

  Chain chain(std::span<const Digest> digests) const { return {ns, 0, {}, digests}; }

  struct Writing {
    std::vector<Reserved> blocks;
    std::vector<Slot> slots;
    std::vector<Handle> handles;
  };
  Writing reserve(std::span<const Digest> digests, Range range, Owner owner = 1,
                  std::uint64_t deadline = kForever, Shards shards = {}) {
    Writing w;
    w.blocks = index.reserve(chain(digests), range, shards, owner, deadline, w.slots);
    for (const Reserved& block : w.blocks)
      if (block.status == Status::kOk) w.handles.push_back(block.handle);
    return w;
  }
  void complete(const Writing& w, std::uint32_t shard = 0, bool ok = true) {
    const std::vector<std::uint8_t> oks(w.handles.size(), ok);
    const std::vector<std::uint64_t> sums(w.handles.size(), 7);
    index.complete(w.handles, shard, oks, sums);
  }
  std::uint64_t store(std::span<const Digest> digests, std::uint32_t group = 0) {
    const Writing w = reserve(digests, {group, 0, digests.size()});
    complete(w);
    return w.handles.size();
  }
  std::uint64_t leading(std::span<const Digest> digests) const {
    return index.leading(chain(digests), 0, digests.size());
  }
  Status lease(std::span<const Digest> digests, Range range, LeaseId& id, LeaseKind kind = LeaseKind::kRead,
               std::uint64_t deadline = kForever, std::uint64_t bytes = 0) {
    return index.lease(chain(digests), std::span(&range, 1), kind, 1, deadline, bytes, id);
  }
  SlotRecord& record(const Slot& slot) const {
    return reinterpret_cast<SlotRecord*>(index.records().data() + records_bytes(0))[slot.record];
  }
  std::byte* bytes_of(const Slot& slot) const { return pool.arenas()[slot.arena].data() + slot.offset; }
  std::uint64_t reason(Reason r) const { return index.counters().reasons[static_cast<int>(r)]; }
  std::string audit() const {
    std::string all;
    for (const std::string& line : index.audit()) all += line + "\n";
    return all;
  }
};

}  // namespace kvarter
