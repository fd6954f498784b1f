#include "kvarter/window.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "kvarter/pool.h"

using namespace kvarter;

namespace {

std::vector<Exported> exported(const Pool& pool) {
  std::vector<Exported> arenas;
  for (std::uint32_t i = 0; i < pool.arenas().size(); ++i)
    arenas.push_back({pool.arenas()[i].fd(), pool.arenas()[i].bytes(), ArenaKind::kPayload, i});
  return arenas;
}

// What the kernel says of the mapping that holds an address, by the names of /proc/self/smaps.
std::string flags_at(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
      inside = reinterpret_cast<unsigned long>(address) - from < to - from;
    else if (inside && line.starts_with("VmFlags:"))
      return line;
  }
  return {};
}

}  // namespace

TEST_CASE("arenas lie side by side in a window, and hold what the pool holds") {
  const Pool pool(6 << 20, 2 << 20, false);
  REQUIRE(pool.arenas().size() == 3);
  const Window window(exported(pool));
  REQUIRE(window.bytes().size() == 6 << 20);
  CHECK(reinterpret_cast<std::uintptr_t>(window.bytes().data()) % kHugePage == 0);
  for (std::size_t i = 0; i < 3; ++i) {
    pool.arenas()[i].data()[0] = std::byte(i + 1);
    window.bytes()[(i + 1) * kHugePage - 1] = std::byte(i + 11);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(window.bytes()[i * kHugePage] == std::byte(i + 1));
    CHECK(pool.arenas()[i].data()[kHugePage - 1] == std::byte(i + 11));
  }
}

TEST_CASE("no part of a window goes to a fork or into a core dump") {
  const Pool pool(4 << 20, 2 << 20, false);
  const Window window(exported(pool));
  for (const std::size_t at : {std::size_t{0}, std::size_t{kHugePage}}) {
    const std::string flags = flags_at(window.bytes().data() + at);
    CHECK(flags.find(" dc") != std::string::npos);
    CHECK(flags.find(" dd") != std::string::npos);
  }
}

TEST_CASE("a window over no arenas, or with gaps between them, is refused with the numbers") {
  const Pool pool(4 << 20, 2 << 20, false);
  std::vector<Exported> arenas = exported(pool);
  CHECK_THROWS_WITH_AS(Window({}), "0 arenas, expected at least 1", std::invalid_argument);
  arenas[0].bytes = 4096;
  CHECK_THROWS_WITH_AS(Window{arenas}, "arena 0 has 4096 bytes, expected a multiple of 2097152",
                       std::invalid_argument);
  arenas[0] = {-1, 2 << 20, ArenaKind::kPayload, 0};
  CHECK_THROWS_AS(Window{arenas}, std::system_error);
}
