#include "kvarter/node.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "node/roster.h"
#include "temp_directory.h"

using namespace kvarter;
using namespace kvarter::node;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kLayout = 3;

class Ear final : public Listener {
 public:
  void on_fenced(std::uint32_t owner, std::uint64_t epoch) override {
    hear([&] { fenced[owner] = epoch; });
  }
  void on_dead(std::uint32_t owner) override {
    hear([&] { dead.insert(owner); });
  }
  void on_tick() override {
    if (tick) tick();
  }
  void wait(const std::function<bool()>& true_at_last) {
    std::unique_lock lock(mutex);
    REQUIRE(heard.wait_for(lock, 60s, true_at_last));
  }

  std::function<void()> tick;
  std::map<std::uint32_t, std::uint64_t> fenced;
  std::set<std::uint32_t> dead;

 private:
  void hear(const std::function<void()>& note) {
    const std::lock_guard lock(mutex);
    note();
    heard.notify_all();
  }
  std::mutex mutex;
  std::condition_variable heard;
};

struct Counter final : FenceHandler {
  std::atomic<std::uint64_t> last{0};
  void fence(std::uint64_t epoch) override { last = epoch; }
};

struct Pool {
  explicit Pool(std::shared_ptr<Ear> listener = std::make_shared<Ear>()) : ear(std::move(listener)) {
    payload = ::memfd_create("payload", MFD_CLOEXEC);
    records = ::memfd_create("records", MFD_CLOEXEC);
    REQUIRE(::ftruncate(payload, 1 << 20) == 0);
    REQUIRE(::ftruncate(records, 4096) == 0);
    const std::array<Exported, 2> exported{
        {{payload, 1 << 20, ArenaKind::kPayload, 2}, {records, 4096, ArenaKind::kRecords, 0}}};
    server = std::make_unique<NodeServer>(directory.path() + "/socket", exported, kLayout, ear, 1);
  }
  ~Pool() {
    server.reset();
    ::close(payload);
    ::close(records);
  }
  std::unique_ptr<NodeClient> attach(std::uint32_t rank, std::shared_ptr<FenceHandler> handler = nullptr) {
    return std::make_unique<NodeClient>(server->path(), "e", rank, kLayout, std::move(handler), 60s);
  }

  TempDirectory directory;
  int payload, records;
  std::shared_ptr<Ear> ear;
  std::unique_ptr<NodeServer> server;
};

Mapper mapper(std::uint32_t owner, std::uint32_t rank) {
  return {.owner = owner, .rank = rank, .pid = 1, .pidfd = Fd(), .connection = 1};
}

}  // namespace

TEST_CASE("an address is given only for bytes that lie in an arena that exists") {
  Pool pool;
  pool.server->open_engine("e", 1);
  const auto client = pool.attach(0);
  const auto mapping = client->mapping();
  const std::uint64_t size = 1 << 20;
  std::byte* const base = mapping->address(2, 0, size);
  REQUIRE(base != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(base) % (2u << 20) == 0);
  CHECK(mapping->address(2, size, 0) == base + size);
  CHECK(mapping->address(2, size, 1) == nullptr);
  CHECK(mapping->address(2, 1, size) == nullptr);
  CHECK(mapping->address(2, ~0ull, 2) == nullptr);
  CHECK(mapping->address(2, 2, ~0ull) == nullptr);
  for (const std::uint32_t absent : {0u, 1u, 3u, ~0u}) CHECK(mapping->address(absent, 0, 0) == nullptr);
  CHECK(mapping->records().size() == 4096);
  CHECK(mapping->index().empty());
}

TEST_CASE("the mapping outlives its client and sees what the node writes") {
  Pool pool;
  pool.server->open_engine("e", 1);
  auto client = pool.attach(0);
  const auto mapping = client->mapping();
  client.reset();
  REQUIRE(::pwrite(pool.records, "r", 1, 9) == 1);
  CHECK(mapping->records()[9] == std::byte{'r'});
}

TEST_CASE("fences from several threads end while mappers of many ranks come and go") {
  Pool pool;
  const std::uint32_t owner = pool.server->open_engine("e", 8);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 10; ++i) pool.attach(rank, std::make_shared<Counter>());
    });
  for (std::uint64_t thread = 0; thread < 2; ++thread)
    threads.emplace_back([&, thread] {
      for (std::uint64_t epoch = 1; epoch <= 100; ++epoch) pool.server->fence(owner, 2 * epoch + thread);
    });
  for (auto& thread : threads) thread.join();
  // Every rank's process lives on without a connection: it must come back before its fences can end.
  pool.server->fence(owner, 1000);
  std::vector<std::unique_ptr<NodeClient>> clients;
  std::vector<std::shared_ptr<Counter>> counters;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    counters.push_back(std::make_shared<Counter>());
    clients.push_back(pool.attach(rank, counters.back()));
  }
  pool.ear->wait([&] { return pool.ear->fenced[owner] == 1000; });
  for (const auto& counter : counters) CHECK(counter->last == 1000);
  CHECK(pool.server->mappers(owner) == std::vector<pid_t>(4, ::getpid()));
}

TEST_CASE("a listener may call the node from its callbacks") {
  const auto ear = std::make_shared<Ear>();
  std::atomic<NodeServer*> server{nullptr};
  std::atomic<std::uint64_t> epoch{0};
  ear->tick = [&] {
    if (server != nullptr) server.load()->fence(1, ++epoch);
  };
  Pool pool(ear);
  const std::uint32_t owner = pool.server->open_engine("e", 1);
  server = pool.server.get();
  ear->wait([&] { return ear->fenced[owner] >= 3; });
  pool.server->close();  // ticks that fall into it still call
  CHECK_NOTHROW(pool.server->fence(owner, ++epoch));
}

TEST_CASE("a killed mapper ends its fences and then its owner") {
  struct Never final : FenceHandler {
    void fence(std::uint64_t) override { ::pause(); }
  };
  int pipe[2];
  REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
  const pid_t child = ::fork();  // before there are threads; the path follows
  if (child == 0) {
    char path[108];
    const auto size = ::read(pipe[0], path, sizeof path);
    const NodeClient client({path, static_cast<std::size_t>(size)}, "e", 0, kLayout,
                            std::make_shared<Never>(), 60s);
    for (;;) ::pause();
  }
  Pool pool;
  const std::uint32_t owner = pool.server->open_engine("e", 1);
  const std::string& path = pool.server->path();
  REQUIRE(::write(pipe[1], path.data(), path.size()) == static_cast<ssize_t>(path.size()));
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (pool.server->attached(owner) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  pool.server->fence(owner, 7);
  CHECK(pool.server->mappers(owner) == std::vector<pid_t>{child});
  ::kill(child, SIGKILL);
  pool.ear->wait([&] { return pool.ear->dead.contains(owner); });
  CHECK(pool.ear->fenced[owner] == 7);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_CASE("a fence ends when its last mapper has acknowledged or died, lower ones with it") {
  Roster roster;
  const std::uint32_t owner = roster.open("e", 2);
  roster.add(1, mapper(owner, 0));
  roster.add(2, mapper(owner, 1));
  std::vector<Event> events;
  roster.fence(owner, 0, events);
  CHECK(roster.next_fence(*roster.find(1)) == 0);
  roster.fence(owner, 5, events);
  CHECK_FALSE(roster.next_fence(*roster.find(1)));  // one in flight
  CHECK(roster.next_fence(*roster.find(2)) == 5);
  roster.find(1)->fenced_below = 1;
  roster.settle(owner, events);
  CHECK(events.empty());
  roster.remove(2, events);
  REQUIRE(events.size() == 1);
  CHECK(events[0].epoch == 0);
  roster.remove(1, events);
  REQUIRE(events.size() == 3);
  CHECK(events[1].epoch == 5);
  CHECK(events[2].kind == Event::Kind::kDead);
}

TEST_CASE("an engine that came with a session is forgotten when that has ended and nobody maps for it") {
  Roster roster;
  std::vector<Event> events;
  const std::uint32_t owner = roster.open_session("e", 1, 7);
  CHECK_THROWS_AS(roster.open_session("e", 1, 8), NodeRefused);
  roster.add(1, mapper(owner, 0));
  roster.end_session(owner, events);
  CHECK(events.empty());
  roster.remove(1, events);
  REQUIRE(events.size() == 2);
  CHECK(events[1].kind == Event::Kind::kGone);
  CHECK(roster.engines().empty());
  roster.fence(owner, 3, events);  // what it had reserved may still expire: there is nobody to ask
  CHECK(events[2].epoch == 3);
  CHECK(roster.open_session("e", 1, 9) == owner + 1);
}

TEST_CASE("values no engine can have are refused") {
  Roster roster;
  std::vector<Event> events;
  CHECK_THROWS_AS(roster.open("", 1), std::invalid_argument);
  CHECK_THROWS_AS(roster.open(std::string(109, 'n'), 1), std::invalid_argument);
  CHECK_THROWS_AS(roster.open("e", 0), std::invalid_argument);
  CHECK_THROWS_AS(roster.open("e", 65537), std::invalid_argument);
  CHECK_THROWS_AS(roster.fence(1, 0, events), std::invalid_argument);
  CHECK_THROWS_AS(roster.attached(0), std::invalid_argument);
  const std::uint32_t owner = roster.open("e", 1);
  CHECK_THROWS_AS(roster.fence(owner, ~0ull, events), std::invalid_argument);
  CHECK_THROWS_AS(roster.owner_of("e", 1), NodeRefused);
  CHECK_THROWS_AS(roster.owner_of("f", 0), NodeRefused);
  CHECK(roster.owner_of("e", 0) == owner);
}
