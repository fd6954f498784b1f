#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "kvarter/pool.h"

namespace kvarter {
namespace {

std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word) || word.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoull(word.substr(0, 19));
}

std::uint64_t read_field(const std::string& path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == field) return value;
  }
  return 0;
}

struct Controller {
  std::string mount, limit, usage, droppable;
};
const Controller kV1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                     "total_inactive_file"};
const Controller kV2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

// A limit anywhere on the way up binds. Inside a container the path of /proc/self/cgroup may not exist below
// the mount: then the mount itself is the container's own cgroup, which is the last step of the same walk.
void tighten(MemoryLimits& limits, const std::string& root, const Controller& c, std::string path) {
  for (;;) {
    const std::string dir = root + c.mount + (path == "/" ? "" : path) + "/";
    const std::uint64_t limit = read_number(dir + c.limit);
    if (limit > 0 && limit < std::numeric_limits<std::int64_t>::max() / 2) {
      const std::uint64_t usage = read_number(dir + c.usage);
      const std::uint64_t used = usage - std::min(usage, read_field(dir + "memory.stat", c.droppable));
      const std::uint64_t room = limit - std::min(limit, used);
      const std::uint64_t best = limits.cgroup_limit - std::min(limits.cgroup_limit, limits.cgroup_used);
      if (limits.cgroup_limit == 0 || room < best) {
        limits.cgroup_limit = limit;
        limits.cgroup_used = used;
      }
    }
    if (path.empty() || path == "/") return;
    path.resize(path.find_last_of('/'));
  }
}

}  // namespace

MemoryLimits memory_limits(const std::string& root) {
  MemoryLimits limits;
  limits.available = read_field(root + "/proc/meminfo", "MemAvailable:") * 1024;
  std::ifstream cgroups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {  // "4:memory:/a/b" is version 1, "0::/a/b" version 2
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) tighten(limits, root, kV2, path);
    if (("," + controllers + ",").find(",memory,") != std::string::npos) tighten(limits, root, kV1, path);
  }
  return limits;
}

void check_memory(std::uint64_t bytes, const MemoryLimits& limits) {
  const auto mib = [](std::uint64_t n) { return std::to_string(n >> 20) + " MiB"; };
  if (limits.available > 0 && bytes > limits.available)
    throw std::length_error("a pool of " + mib(bytes) + " does not fit: " + mib(limits.available) +
                            " of memory are available on this host; choose a smaller size");
  const std::uint64_t room = limits.cgroup_limit - std::min(limits.cgroup_limit, limits.cgroup_used);
  if (limits.cgroup_limit > 0 && bytes > room)
    throw std::length_error("a pool of " + mib(bytes) + " does not fit: this process's cgroup allows " +
                            mib(limits.cgroup_limit) + " and " + mib(limits.cgroup_used) +
                            " are in use; choose a smaller size or raise the cgroup's memory limit");
}

}  // namespace kvarter
