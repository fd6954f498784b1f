#include "kvarter/pool.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

using namespace kvarter;

TEST_CASE("an arena is aligned to huge pages, owner-only, and sealed against resize") {
  const Memfd memfd("test", 4 << 20);
  CHECK(reinterpret_cast<std::uintptr_t>(memfd.data()) % kHugePage == 0);
  struct stat info{};
  fstat(memfd.fd(), &info);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(ftruncate(memfd.fd(), 4096) == -1);
  CHECK(errno == EPERM);
}

namespace {

// The slots that are taken, by number: what an index keeps in its records.
struct Taken {
  Extents extents;
  std::map<std::uint32_t, Extent> slots{};
  std::uint32_t next = 0;

  std::optional<Extent> take(std::uint64_t bytes) {
    const auto extent = extents.allocate(bytes, next);
    if (extent) slots[next++] = *extent;
    return extent;
  }
  void give(std::uint32_t slot) {
    extents.release(slots.at(slot), slot);
    slots.erase(slot);
  }
  // Walks every arena by the links: the slots must come in the order of their addresses, all of them.
  bool linked_in_order(std::uint32_t arenas) const {
    std::size_t met = 0;
    for (std::uint32_t arena = 0; arena < arenas; ++arena) {
      std::uint64_t end = 0;
      std::uint32_t before = kNoSlot;
      for (std::uint32_t at = extents.after(Hole{{arena, 0, 0}, kNoSlot}); at != kNoSlot;
           before = at, at = extents.after(at), ++met) {
        const Extent& extent = slots.at(at);
        if (extent.arena != arena || extent.offset < end || extents.before(at) != before) return false;
        end = extent.offset + extent.bytes;
      }
    }
    return met == slots.size();
  }
};

}  // namespace

TEST_CASE("holes never overlap, coalesce, and add up, and slots are linked in the order of their addresses") {
  Taken t{Extents({1 << 20, 1 << 20})};
  std::mt19937 random(7);
  int moves = 0;
  for (int i = 0; i < 5000; ++i) {
    const bool any = !t.slots.empty();
    const std::uint32_t slot =
        any ? std::next(t.slots.begin(), static_cast<long>(random() % t.slots.size()))->first : 0;
    if (random() % 2 || !any) {
      t.take(1 + random() % 70000);
    } else if (random() % 3) {
      t.give(slot);
    } else if (const auto fresh = t.extents.move(t.slots[slot], slot)) {
      t.slots[slot] = *fresh;
      ++moves;
    }
    std::uint64_t used = 0;
    for (const auto& [at, extent] : t.slots) used += extent.bytes;
    REQUIRE(t.extents.free_bytes() + used == 2 << 20);
    REQUIRE(t.linked_in_order(2));
  }
  CHECK(moves > 100);
  while (!t.slots.empty()) t.give(t.slots.begin()->first);
  CHECK(t.extents.holes().size() == 2);
  CHECK(t.extents.largest_hole() == 1 << 20);
}

TEST_CASE("the smallest hole that fits is taken") {
  Taken t{Extents({1 << 20})};
  t.take(8192);
  t.take(4096);
  const auto small = t.take(4096);
  t.take(4096);
  t.give(0);
  t.give(2);
  CHECK(t.take(4096)->offset == small->offset);
}

TEST_CASE("a hole that touches the withheld window takes nothing until it is restored") {
  Taken t{Extents({10 * kGranule})};
  for (int i = 0; i < 10; ++i) t.take(kGranule);
  for (const std::uint32_t slot : {2u, 3u, 8u}) t.give(slot);
  t.extents.withhold({0, 3 * kGranule, 4 * kGranule});
  CHECK(t.extents.largest_hole() == kGranule);
  const auto fresh = t.extents.move(t.slots[4], 4);
  REQUIRE(fresh);
  CHECK(fresh->offset == 8 * kGranule);
  t.slots[4] = *fresh;
  CHECK_FALSE(t.extents.move(t.slots[5], 5));  // the last hole outside is taken
  CHECK(t.linked_in_order(1));
  t.extents.restore();
  CHECK(t.extents.largest_hole() == 3 * kGranule);
  CHECK(t.extents.largest(9).front().before == 1);
  CHECK(t.take(3 * kGranule)->offset == 2 * kGranule);
  CHECK(t.extents.free_bytes() == 0);
}

TEST_CASE("an extent that is taken or out of bounds cannot be claimed") {
  Extents extents({1 << 20});
  CHECK(extents.claim({0, 4096, 8192}, 0));
  CHECK_FALSE(extents.claim({0, 8192, 8192}, 1));
  CHECK_FALSE(extents.claim({0, 1 << 20, 4096}, 1));
  CHECK_FALSE(extents.claim({1, 0, 4096}, 1));
  CHECK(extents.claim({0, 0, 4096}, 1));
  CHECK(extents.free_bytes() == (1 << 20) - 3 * 4096);
}

TEST_CASE("a pool above the memory available or above its cgroup is refused with the numbers") {
  const auto root = std::filesystem::temp_directory_path() / ("kvarter-limits-" + std::to_string(getpid()));
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 1048576 kB\n");
  write("proc/self/cgroup", "4:memory:/a/b\n0::/c\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "104857600\n");
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "62914560\n");
  write("sys/fs/cgroup/memory/a/memory.stat", "cache 1\ntotal_inactive_file 20971520\n");
  write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/c/memory.max", "max\n");
  const MemoryLimits limits = memory_limits(root.string());
  CHECK(limits.available == 1u << 30);
  CHECK(limits.cgroup_limit == 100 << 20);
  CHECK(limits.cgroup_used == 40 << 20);
  CHECK_NOTHROW(check_memory(60 << 20, limits));
  CHECK_THROWS_WITH(check_memory(61 << 20, limits),
                    doctest::Contains("allows 100 MiB and 40 MiB are in use"));
  CHECK_THROWS_WITH(check_memory(2u << 30, limits), doctest::Contains("1024 MiB of memory are available"));
  write("sys/fs/cgroup/c/memory.max", "52428800\n");
  write("sys/fs/cgroup/c/memory.current", "41943040\n");
  CHECK(memory_limits(root.string()).cgroup_limit == 50 << 20);
  std::filesystem::remove_all(root);
}

namespace {

// A system of the test's own: files under a directory that stands before /sys.
struct System {
  std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("kvarter-" + std::to_string(getpid()));
  ~System() { std::filesystem::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
};

}  // namespace

TEST_CASE("reserved huge pages are taken when they suffice, else those that the kernel makes by itself") {
  const System system;
  const std::string mm = "sys/kernel/mm/", pages = mm + "hugepages/hugepages-2048kB/";
  const auto best = [&] { return std::string(name(pages_at_start(8 << 20, system.root.string()))); };
  CHECK(best() == "4k");
  system.write(mm + "transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n");
  CHECK(best() == "thp");
  system.write(pages + "free_hugepages", "5\n");
  system.write(pages + "resv_hugepages", "2\n");
  CHECK(best() == "thp");
  system.write(pages + "resv_hugepages", "1\n");
  CHECK(best() == "hugetlb");
  system.write(pages + "free_hugepages", "0\n");
  system.write(mm + "transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
  CHECK(best() == "4k");
}

TEST_CASE("a pool whose huge pages were taken by somebody else starts all the same") {
  const System system;
  system.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "99999999\n");
  const Pool pool(8 << 20, 8 << 20, false, true, system.root.string());
  std::memset(pool.arenas()[0].data(), 1, pool.bytes());
  CHECK(pool.bytes() == 8 << 20);
}

TEST_CASE("every NUMA node has an arena, and a node that the kernel refuses is no error") {
  const System system;
  system.write("sys/devices/system/node/online", "0-1,511\n");
  CHECK(numa_nodes(system.root.string()) == std::vector<int>{0, 1, 511});
  const Pool pool(12 << 20, 12 << 20, false, true, system.root.string());
  CHECK(pool.arenas().size() == 3);
  CHECK(pool.nodes().size() == 3);
  CHECK(pool.nodes()[2] == -1);
  system.write("sys/devices/system/node/online", "0\n");
  CHECK(Pool(12 << 20, 12 << 20, false, true, system.root.string()).nodes() == std::vector<int>{-1});
}

TEST_CASE("a pool's bytes are what they were when its pages have been collapsed") {
  const Pool pool(8 << 20, 4 << 20, true), small(8 << 20, 4 << 20, true, false),
      untouched(8 << 20, 4 << 20, false);
  for (const Memfd& arena : pool.arenas())
    for (std::uint64_t at = 0; at < arena.bytes(); at += kGranule)
      arena.data()[at] = std::byte(at / kGranule * 7);
  while (!pool.populated() || !small.populated()) usleep(1000);
  for (int i = 0; i < 2000 && pool.pages() == Pages::k4k; ++i)
    usleep(1000);  // where the kernel cannot, it stays
  for (const Memfd& arena : pool.arenas())
    for (std::uint64_t at = 0; at < arena.bytes(); at += kGranule)
      REQUIRE(arena.data()[at] == std::byte(at / kGranule * 7));
  CHECK(small.pages() == Pages::k4k);
  CHECK(untouched.pages() != Pages::kCollapsed);
  CHECK_FALSE(untouched.populated());
}

TEST_CASE("arenas are populated in the background") {
  const Pool pool(8 << 20, 4 << 20, true);
  CHECK(pool.arenas().size() == 2);
  while (!pool.populated()) usleep(1000);
  unsigned char resident = 0;
  mincore(pool.arenas()[1].data() + (3 << 20), 4096, &resident);
  CHECK((resident & 1) == 1);
}

TEST_CASE("a pool over the arenas of another has its bytes, and takes no file that could be cut") {
  const Pool first(4 << 20, 2 << 20, false);
  first.arenas()[1].data()[77] = std::byte{5};
  std::vector<Memfd> arenas;
  for (const Memfd& arena : first.arenas()) arenas.push_back(Memfd::adopt(dup(arena.fd())));
  const Pool second(std::move(arenas));
  CHECK(second.bytes() == 4 << 20);
  CHECK(second.extents().free_bytes() == 4 << 20);
  CHECK(second.arenas()[1].data()[77] == std::byte{5});
  const int loose = memfd_create("loose", MFD_ALLOW_SEALING);
  CHECK(ftruncate(loose, 4096) == 0);
  CHECK_THROWS_WITH_AS(Memfd::adopt(loose), doctest::Contains("seals 0, expected 7; 4096 bytes"),
                       std::invalid_argument);
  close(loose);
}
