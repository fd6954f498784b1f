// What the system gives: kinds of pages, NUMA nodes.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "kvarter/pool.h"

namespace kvarter {

const char* name(Pages pages) noexcept {
  static constexpr const char* kNames[] = {"hugetlb", "thp", "collapsed", "4k"};
  return kNames[static_cast<int>(pages)];
}

Pages pages_at_start(std::uint64_t bytes, const std::string& root) {
  const std::string mm = root + "/sys/kernel/mm/";
  std::uint64_t free = 0, promised = 0;
  std::ifstream(mm + "hugepages/hugepages-2048kB/free_hugepages") >> free;
  std::ifstream(mm + "hugepages/hugepages-2048kB/resv_hugepages") >> promised;
  if ((free - std::min(free, promised)) * kHugePage >= bytes) return Pages::kHugetlb;
  // One line with all the choices, the one in force in brackets: "always within_size [advise] never deny".
  std::string choices;
  std::getline(std::ifstream(mm + "transparent_hugepage/shmem_enabled"), choices);
  for (const char* allowed : {"[always]", "[within_size]", "[advise]", "[force]"})
    if (choices.find(allowed) != std::string::npos) return Pages::kThp;
  return Pages::k4k;
}

std::vector<int> numa_nodes(const std::string& root) {
  std::vector<int> nodes;
  std::ifstream file(root + "/sys/devices/system/node/online");  // "0-1,3"
  for (std::string range; std::getline(file, range, ',');) {
    std::istringstream words(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(words >> first)) continue;
    if (!(words >> dash >> last)) last = first;
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

}  // namespace kvarter
