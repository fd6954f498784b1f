#pragma once
// The language of the index tests: a small pool, chains of digests, and blocks whose bytes tell who they are.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kvarter/hash.h"
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

// What the payload of a block's shard holds in tests: one word over and over, a function of its whole key.
inline std::uint64_t pattern_of(const Digest& ns, const Digest& digest, std::uint32_t group,
                                std::uint32_t sub, std::uint32_t shard) {
  std::uint8_t key[64 + 3];
  std::memcpy(key, ns.data(), 32);
  std::memcpy(key + 32, digest.data(), 32);
  key[64] = static_cast<std::uint8_t>(group);
  key[65] = static_cast<std::uint8_t>(sub);
  key[66] = static_cast<std::uint8_t>(shard);
  return xxh3_64(key);
}
inline void fill(std::byte* payload, std::uint64_t length, std::uint64_t pattern) {
  std::fill_n(reinterpret_cast<std::uint64_t*>(payload), length / 8, pattern);
}
inline bool holds(const std::byte* payload, std::uint64_t length, std::uint64_t pattern) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(payload);
  return std::all_of(words, words + length / 8, [&](std::uint64_t word) { return word == pattern; });
}

inline constexpr std::uint64_t kForever = ~std::uint64_t{0};

inline const NamespaceRecord* namespaces_in(const Memfd& records) {
  return reinterpret_cast<const NamespaceRecord*>(records.data() + 4096);
}
inline const SlotRecord* records_in(const Memfd& records) {
  return reinterpret_cast<const SlotRecord*>(namespaces_in(records) + kMaxNamespaces);
}

// What a process leaves behind for the next one: the descriptors of its memory files.
inline Memfd again(const Memfd& file) {
  const int fd = dup(file.fd());
  return Memfd::adopt(fd);
}
inline std::vector<Memfd> again(const std::vector<Memfd>& files) {
  std::vector<Memfd> copies;
  for (const Memfd& file : files) copies.push_back(again(file));
  return copies;
}

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
  // Goes on with what another world's process left.
  World(std::vector<Memfd> arenas, Memfd records, const Digest& space, const std::vector<GroupShape>& groups,
        std::uint32_t max_slots)
      : pool(std::move(arenas)),
        index({max_slots, 0.5}, pool, clock, std::move(records)),
        ns(index.open_namespace(space, groups)) {}

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
  const SlotRecord& record_of(const Slot& slot) const { return record(slot); }
  // Fills slots just reserved with the pattern of their keys, and reports every shard of them.
  void write(const Writing& w, std::uint32_t shards) {
    for (std::uint32_t shard = 0; shard < shards; ++shard) write_shard(w, shard, shards);
  }
  void write_shard(const Writing& w, std::uint32_t shard, std::uint32_t shards) {
    std::vector<std::uint64_t> sums;
    for (std::size_t i = shard; i < w.slots.size(); i += shards) {
      const Slot& slot = w.slots[i];
      const SlotRecord& r = record_of(slot);
      const Digest& space = namespaces_in(index.records())[r.ns].digest;
      fill(bytes_of(slot), slot.length, pattern_of(space, r.digest, r.group, r.sub, r.shard));
      sums.push_back(checksum_of(slot));
    }
    index.complete(w.handles, shard, std::vector<std::uint8_t>(w.handles.size(), 1), sums);
  }
  std::uint64_t checksum_of(const Slot& slot) const {
    return xxh3_64({reinterpret_cast<const std::uint8_t*>(bytes_of(slot)), slot.length});
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
