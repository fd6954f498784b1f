#pragma once
// What must hold after the process that owned a pool and an index died: judged from the records alone, by a
// second and simpler reading of them, before and after an Index takes them over.
#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "index_words.h"

namespace kvarter {

using FullKey =
    std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, Digest>;  // namespace, group, sub, digest

inline FullKey key_of(const SlotRecord& r) { return {r.ns, r.group, r.sub, r.digest}; }

// Keys of the blocks that are whole: every shard committed, and the same of the block before it.
inline std::set<FullKey> whole_blocks(const Memfd& records, std::uint32_t max_slots) {
  std::map<std::uint64_t, std::vector<const SlotRecord*>> entries;
  for (std::uint32_t i = 0; i < max_slots; ++i) {
    const SlotRecord& r = records_in(records)[i];
    if (r.state() == SlotState::kCommitted) entries[r.entry].push_back(&r);
  }
  std::multimap<std::uint32_t, const SlotRecord*> by_depth;
  for (const auto& [entry, shards] : entries)
    if (shards.size() == shards[0]->shards) by_depth.emplace(shards[0]->depth, shards[0]);
  std::set<FullKey> whole;
  for (const auto& [depth, r] : by_depth) {
    const bool chained = namespaces_in(records)[r->ns].chained >> r->group & 1;
    if (!chained || depth == 0 || whole.contains({r->ns, r->group, r->parent_sub, r->parent}))
      whole.insert(key_of(*r));
  }
  return whole;
}

// Lets an index take the files over, and checks all that a crash must leave. The files can be taken over
// again afterwards. `texts` and `space`: what to look up, in the namespace of this digest.
inline void check_survivors(const std::vector<Memfd>& arenas, const Memfd& records, std::uint32_t max_slots,
                            const std::vector<GroupShape>& groups, const Digest& space,
                            const std::vector<std::vector<Digest>>& texts) {
  const std::set<FullKey> whole = whole_blocks(records, max_slots);
  std::set<std::uint32_t> writing;  // slots that an owner other than the dead process may be writing
  for (std::uint32_t i = 0; i < max_slots; ++i) {
    const SlotRecord& r = records_in(records)[i];
    if ((r.state() == SlotState::kReserved || r.state() == SlotState::kQuarantined) && r.owner != 0)
      writing.insert(i);
  }
  World w(again(arenas), again(records), space, groups, max_slots);
  REQUIRE(w.audit() == "");
  REQUIRE(w.index.counters().resident_blocks == whole.size());

  std::uint64_t quarantined = 0;
  for (std::uint32_t i = 0; i < max_slots; ++i) {
    const SlotRecord& r = records_in(records)[i];
    if (r.state() == SlotState::kFree) {
      REQUIRE_FALSE(writing.contains(i));
      continue;
    }
    if (r.state() == SlotState::kQuarantined) {
      quarantined += r.length;
      continue;
    }
    REQUIRE(r.state() == SlotState::kCommitted);
    REQUIRE(whole.contains(key_of(r)));
    const std::byte* payload = arenas[r.arena].data() + r.offset;
    const Digest& its_space = namespaces_in(records)[r.ns].digest;
    REQUIRE(holds(payload, r.length, pattern_of(its_space, r.digest, r.group, r.sub, r.shard)));
    REQUIRE(r.checksum == xxh3_64({reinterpret_cast<const std::uint8_t*>(payload), r.length}));
  }
  REQUIRE(w.index.ledger().quarantined == quarantined);
  REQUIRE(w.index.ledger().reserved + w.index.ledger().leased + w.index.ledger().dead == 0);

  for (const auto& digests : texts)
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      const GroupShape& shape = groups[g];
      const std::uint64_t blocks = digests.size() / shape.unit_stride * shape.subs;
      std::uint64_t leading = 0;
      for (std::uint64_t block = blocks; block-- > 0;) {
        const Digest& digest = digests[(block / shape.subs + 1) * shape.unit_stride - 1];
        const bool there = whole.contains({w.ns, g, static_cast<std::uint32_t>(block % shape.subs), digest});
        REQUIRE(w.index.contains(w.chain(digests), g, block) == there);
        if (there) leading = std::max(leading, block + 1);
      }
      if (shape.chained) REQUIRE(w.index.leading(w.chain(digests), g, blocks) == leading);
    }

  for (Owner owner = 1; owner <= 9; ++owner) w.index.owner_dead(owner);
  REQUIRE(w.index.ledger().quarantined == 0);
  REQUIRE(w.index.counters().resident_blocks == whole.size());
  REQUIRE(w.audit() == "");
}

}  // namespace kvarter
