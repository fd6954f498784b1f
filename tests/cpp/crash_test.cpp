// The owner of a pool dies at any instruction: with real processes and SIGKILL, once at random moments of a
// random walk, once before each single store of a record's word in a script that comes by all of them.
//
// Nothing of the parent's mappings is in a child (MADV_DONTFORK), so a child maps the files it inherited, as
// a node that takes over does.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include "index_walk.h"
#include "survivors.h"
#include "sync_points.h"

using namespace kvarter;

namespace {

// Runs in a child; ends it with exit status 0, or 1 if it threw.
pid_t in_child(const std::function<void()>& body) {
  std::fflush(nullptr);  // or a child prints it again
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    body();
  } catch (...) {
    _exit(1);
  }
  _exit(0);
}
// True when it was killed, false when it came to its end.
bool killed(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) {
    REQUIRE(WTERMSIG(status) == SIGKILL);
    return true;
  }
  REQUIRE(WEXITSTATUS(status) == 0);
  return false;
}

// The namespace that is open in these records, or the next one.
std::uint64_t epoch_of(const Memfd& records) {
  std::uint64_t last = 0, state = 1;
  for (std::uint32_t ns = 0; ns < kMaxNamespaces; ++ns) {
    std::uint64_t epoch = 0;
    std::memcpy(&epoch, namespaces_in(records)[ns].digest.data(), sizeof epoch);
    if (epoch-- > last + 1) std::tie(last, state) = std::pair(epoch, namespaces_in(records)[ns].state);
  }
  return state == 1 ? last : last + 1;
}

// --- the script, and the point at which it ends

int points_left = 0;  // in the child: dies at the point that brings it to 0
std::vector<std::string> points_seen;

void die_at_point(const char*) {
  if (--points_left == 0) raise(SIGKILL);
}
void note_point(const char* point) { points_seen.emplace_back(point); }

const std::vector<GroupShape> kGroups{{1, 1, true, {64 << 10, 32 << 10}}, {1, 1, false, {256 << 10}}};
constexpr std::uint32_t kSlots = 64;
const Digest kFirst{1}, kSecond{2};

// Every kind of store there is, in a pool of 2 MiB.
void script(World& w) {
  const auto a = text(1, 6), b = text(2, 2), c = text(3, 2), d = text(4, 2);
  w.write(w.reserve(a, {0, 0, 2}), 2);  // a child that waits for its parent, and both at once
  const auto parent = w.reserve(a, {0, 2, 1});
  w.write(w.reserve(a, {0, 3, 1}), 2);
  w.write(parent, 2);
  w.index.abort(w.reserve(b, {0, 0, 2}).handles);
  const auto late = w.reserve(c, {0, 0, 1}, 5, 100);  // one shard reported, the other late
  w.write_shard(late, 0, 2);
  w.clock.advance(200);
  for (const FenceRequest& fence : w.index.tick()) w.index.fenced(fence.owner, fence.epoch);
  LeaseId lease = 0;
  REQUIRE(w.lease(a, {0, 0, 4}, lease) == Status::kOk);
  const std::uint32_t bad = 1;
  w.index.drop_corrupt(lease, std::span(&bad, 1));
  w.index.release(lease, Outcome::kFailed);
  for (int i = 0; i < 9; ++i) {  // more than there is room for: evicts
    w.clock.advance(1);
    w.write(w.reserve(text(10 + static_cast<std::uint64_t>(i), 1), {1, 0, 1}), 1);
  }
  w.reserve(d, {0, 0, 2}, 6);
  w.index.invalidate(w.ns);
  w.index.tick();
  w.index.owner_dead(6);
  w.index.tick();
  w.ns = w.index.open_namespace(kSecond, kGroups);
  w.write(w.reserve(a, {0, 0, 3}), 2);
  for (std::uint64_t i = 0; i < 7; ++i) w.write(w.reserve(text(30 + i, 1), {0, 0, 1}), 2);
  for (std::uint64_t i = 0; i < 4; ++i) w.write(w.reserve(text(40 + i, 1), {1, 0, 1}), 1);
  for (std::uint64_t i = 0; i < 6; i += 2) {  // holes that together, and only together, hold one more: moves
    const std::uint32_t first = 0;
    REQUIRE(w.lease(text(30 + i, 1), {0, 0, 1}, lease) == Status::kOk);
    w.index.drop_corrupt(lease, std::span(&first, 1));
    w.index.release(lease, Outcome::kFailed);
  }
  w.write(w.reserve(text(44, 1), {1, 0, 1}), 1);
}

std::vector<std::vector<Digest>> script_texts() {
  std::vector<std::vector<Digest>> texts{text(1, 6), text(2, 2), text(3, 2), text(4, 2)};
  for (std::uint64_t i = 0; i < 9; ++i) texts.push_back(text(10 + i, 1));
  for (std::uint64_t i = 30; i < 45; ++i) texts.push_back(text(i, 1));
  return texts;
}

struct Files {  // of a pool and an index that no process has open
  std::vector<Memfd> arenas;
  Memfd records;
  explicit Files(const World& w) : arenas(again(w.pool.arenas())), records(again(w.index.records())) {}
};

}  // namespace

TEST_CASE("an owner killed at any moment leaves whole blocks or none, round after round") {
  const char* option = std::getenv("KVARTER_KILLS");
  const int kills = option ? std::atoi(option) : 60;
  std::mt19937 random(11);
  const Files files(World(2 << 20, Walk::groups(), Walk::kSlots));
  std::vector<std::vector<Digest>> texts;
  for (std::uint64_t id = 0; id < Walk::texts(); ++id) texts.push_back(Walk::digests(id));
  std::uint64_t survivors = 0;
  for (int round = 0; round < kills; ++round) {
    const unsigned seed = random();
    const std::uint64_t epoch = epoch_of(files.records);
    const pid_t child = in_child([&] {
      for (Walk walk(seed, again(files.arenas), again(files.records), epoch);;) walk.step();
    });
    usleep(static_cast<useconds_t>(random() % 20000));
    kill(child, SIGKILL);
    REQUIRE(killed(child));
    survivors += whole_blocks(files.records, Walk::kSlots).size();
    check_survivors(files.arenas, files.records, Walk::kSlots, Walk::groups(),
                    Walk::space(epoch_of(files.records)), texts);
  }
  CHECK(survivors > 0);
}

TEST_CASE("an owner killed before any single store of a record's word leaves whole blocks or none") {
  const auto run = [](int die_at, const Files& files) {
    return in_child([&] {
      World w(again(files.arenas), again(files.records), kFirst, kGroups, kSlots);
      points_left = die_at;
      sync_hook = die_at_point;
      script(w);
    });
  };
  const auto fresh = [] { return Files(World(2 << 20, kGroups, kSlots)); };
  {
    World w(2 << 20, kGroups, kSlots);
    points_seen.clear();
    sync_hook = note_point;
    script(w);
    sync_hook = nullptr;
  }
  const std::set<std::string> names(points_seen.begin(), points_seen.end());
  CHECK(names == std::set<std::string>{"commit: slot", "complete: slot", "free: slot", "move: address",
                                       "move: away", "move: here", "namespace: close", "namespace: free",
                                       "namespace: open", "quarantine: slot", "reserve: owner",
                                       "reserve: slot", "withdraw: slot"});
  const auto points = static_cast<int>(points_seen.size());
  for (int point = 1; point <= points; ++point) {
    CAPTURE(point);
    CAPTURE(points_seen[static_cast<std::size_t>(point) - 1]);
    const Files files = fresh();
    REQUIRE(killed(run(point, files)));
    for (const Digest& space : {kFirst, kSecond})
      check_survivors(files.arenas, files.records, kSlots, kGroups, space, script_texts());
  }
  REQUIRE_FALSE(killed(run(points + 1, fresh())));
}

TEST_CASE("who takes over may be killed as well, and the next one still finds whole blocks or none") {
  int interrupted = 0;
  for (int point = 1;; ++point) {
    const Files files(World(2 << 20, kGroups, kSlots));
    const bool left_work =
        killed(in_child([&] {  // two blocks with a shard each to write, one committed in half
          World w(again(files.arenas), again(files.records), kFirst, kGroups, kSlots);
          w.write(w.reserve(text(1, 2), {0, 0, 2}), 2);
          w.write_shard(w.reserve(text(2, 2), {0, 0, 2}, 5), 0, 2);
          points_left = 6;
          sync_hook = [](const char* name) {
            if (std::string_view(name) == "commit: slot") die_at_point(name);
          };
          w.write(w.reserve(text(3, 3), {0, 0, 3}), 2);
        }));
    REQUIRE(left_work);
    const bool again_killed = killed(in_child([&] {
      points_left = point;
      sync_hook = die_at_point;
      World w(again(files.arenas), again(files.records), kFirst, kGroups, kSlots);
    }));
    interrupted += again_killed;
    check_survivors(files.arenas, files.records, kSlots, kGroups, kFirst,
                    {text(1, 2), text(2, 2), text(3, 3)});
    if (!again_killed) break;
  }
  CHECK(interrupted > 6);
}
