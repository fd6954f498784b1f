#include "copy/locked.h"

#include <sys/resource.h>
#include <unistd.h>

#include <mutex>

namespace kvarter {

namespace {

constexpr unsigned kForEveryDevice = 1, kMapped = 2;  // CU_MEMHOSTREGISTER_PORTABLE, _DEVICEMAP

// What this process has locked, with the number of its holders.
struct Held {
  std::size_t holders;
  std::size_t bytes;
  std::shared_ptr<const Context> context;
  std::shared_ptr<const void> keep;
};
struct Process {
  std::mutex mutex;  // held while the driver locks: whoever asks meanwhile waits rather than being refused
  std::map<std::byte*, Held> held;
};

Process& process() {
  static Process* const all = new Process;  // never destroyed: engines may outlive static objects
  return *all;
}

std::string limits() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return "ulimit -l allows " +
         (limit.rlim_cur == RLIM_INFINITY ? "any number" : std::to_string(limit.rlim_cur)) +
         " of bytes, the machine has " + std::to_string(memory);
}

}  // namespace

LockedRange::LockedRange(const std::shared_ptr<const Context>& context, std::span<std::byte> memory,
                         std::shared_ptr<const void> keep)
    : begin_(memory.data()) {
  const std::lock_guard lock(process().mutex);
  const auto found = process().held.find(begin_);
  if (found != process().held.end() && found->second.bytes >= memory.size()) {
    ++found->second.holders;
    return;
  }
  const Driver& driver = context->driver();
  if (const int result = driver.host_register(begin_, memory.size(), kForEveryDevice | kMapped); result != 0)
    throw DriverError(driver, "page-locking " + std::to_string(memory.size()) + " bytes of the pool", result);
  process().held.insert_or_assign(begin_, Held{1, memory.size(), context, std::move(keep)});
}

LockedRange::~LockedRange() {
  const std::lock_guard lock(process().mutex);
  const auto found = process().held.find(begin_);
  if (--found->second.holders > 0) return;
  {
    const Current current(*found->second.context, true);
    found->second.context->driver().host_unregister(begin_);
  }
  process().held.erase(found);
}

std::string LockedMemory::add(std::span<std::byte> memory, std::shared_ptr<const void> keep) {
  {
    const std::shared_lock lock(mutex_);
    const auto known = ranges_.find(memory.data());
    if (known != ranges_.end() && known->second.bytes >= memory.size()) return {};
  }
  std::string refused;
  try {
    auto locked = std::make_unique<LockedRange>(context_, memory, std::move(keep));
    DevicePointer pointer = 0;
    const Driver& driver = context_->driver();
    if (const int result = driver.host_pointer(&pointer, memory.data(), 0); result != 0)
      throw DriverError(driver, "finding where the device sees the pool", result);
    const std::unique_lock lock(mutex_);
    ranges_[memory.data()] = {std::move(locked), memory.size(), pointer};
    refused_.erase(memory.data());
  } catch (const std::runtime_error& error) {
    refused = std::string(error.what()) + "; " + limits();
    const std::unique_lock lock(mutex_);
    refused_[memory.data()] = memory.size();
  }
  return refused;
}

std::size_t LockedMemory::bytes() const {
  const std::shared_lock lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [at, range] : ranges_) sum += range.bytes;
  return sum;
}

std::size_t LockedMemory::refused_bytes() const {
  const std::shared_lock lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [at, bytes] : refused_) sum += bytes;
  return sum;
}

DevicePointer LockedMemory::pointer(const std::byte* memory, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  auto after = ranges_.upper_bound(memory);
  if (after == ranges_.begin()) return 0;
  const auto& [begin, range] = *--after;
  const auto offset = static_cast<std::size_t>(memory - begin);
  if (offset > range.bytes || bytes > range.bytes - offset) return 0;
  return range.pointer + offset;
}

}  // namespace kvarter
