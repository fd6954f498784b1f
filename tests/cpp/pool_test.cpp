#include "kvarter/pool.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
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

TEST_CASE("holes never overlap, coalesce, and add up") {
  Extents extents({1 << 20, 1 << 20});
  std::mt19937 random(7);
  std::vector<Extent> taken;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 || taken.empty()) {
      if (const auto extent = extents.allocate(1 + random() % 70000)) taken.push_back(*extent);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      extents.release(taken.back());
      taken.pop_back();
    }
    std::uint64_t used = 0;
    for (const Extent& extent : taken) used += extent.bytes;
    REQUIRE(extents.free_bytes() + used == 2 << 20);
  }
  for (const Extent& extent : taken) extents.release(extent);
  CHECK(extents.holes().size() == 2);
  CHECK(extents.largest_hole() == 1 << 20);
}

TEST_CASE("the smallest hole that fits is taken") {
  Extents extents({1 << 20});
  const auto a = extents.allocate(8192), keep = extents.allocate(4096), b = extents.allocate(4096),
             keep2 = extents.allocate(4096);
  extents.release(*a);
  extents.release(*b);
  CHECK(extents.allocate(4096)->offset == b->offset);
  CHECK(keep->offset < keep2->offset);
}

TEST_CASE("an extent that is taken or out of bounds cannot be claimed") {
  Extents extents({1 << 20});
  CHECK(extents.claim({0, 4096, 8192}));
  CHECK_FALSE(extents.claim({0, 8192, 8192}));
  CHECK_FALSE(extents.claim({0, 1 << 20, 4096}));
  CHECK_FALSE(extents.claim({1, 0, 4096}));
  CHECK(extents.claim({0, 0, 4096}));
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
