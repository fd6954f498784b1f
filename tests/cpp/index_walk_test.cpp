// KVARTER_WALK_STEPS says how many steps; CI takes the default, a release 1000000.
#include "index_walk.h"

#include <algorithm>
#include <cstdlib>

using namespace kvarter;

TEST_CASE(
    "the ledger agrees at every step of a random walk, no byte is foreign, and nothing is held when idle") {
  constexpr long kAudited = 2000;  // of each seed; a recount costs 100 steps, later every 50th gets one
  const char* steps = std::getenv("KVARTER_WALK_STEPS");
  const long total = steps ? std::atol(steps) : 100000;
  std::uint64_t reads = 0, moved_reads = 0, moved = 0, offered = 0;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    Walk walk(seed);
    for (long i = 0; i < total / 5; ++i) {
      walk.step();
      if (i < kAudited || i % 50 == 0) walk.audit();
    }
    walk.settle();
    reads += walk.reads;
    moved_reads += walk.moved_reads;
    moved += walk.moved();
    offered += walk.evicted_offered();
  }
  MESSAGE(reads, " reads, ", moved, " slots moved, ", moved_reads, " reads of a place that a block has left");
  CHECK(moved > static_cast<std::uint64_t>(total) / 100);
  CHECK(moved_reads > 0);
  CHECK(offered > static_cast<std::uint64_t>(total) / 1000);
  CHECK(reads > static_cast<std::uint64_t>(total) / 10);
}
