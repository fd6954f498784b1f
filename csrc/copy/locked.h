#pragma once
// Page-locked host memory: what a device's copy engines and kernels reach by themselves.
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>

#include "copy/device.h"

namespace kvarter {

// A share in a range that is locked for every device of this process: the first locks it, the last lets go.
class LockedRange {
 public:
  // Throws DriverError where the driver refuses. REQUIRES: the context is current; `keep` keeps it mapped.
  LockedRange(const std::shared_ptr<const Context>& context, std::span<std::byte> memory,
              std::shared_ptr<const void> keep);
  ~LockedRange();
  LockedRange(const LockedRange&) = delete;
  LockedRange& operator=(const LockedRange&) = delete;

 private:
  std::byte* begin_;
};

// The ranges that one engine was told of, by address. Any thread.
class LockedMemory {
 public:
  explicit LockedMemory(std::shared_ptr<const Context> context) : context_(std::move(context)) {}

  // Empty, or why not. REQUIRES: the context is current.
  std::string add(std::span<std::byte> memory, std::shared_ptr<const void> keep);
  std::size_t bytes() const;
  std::size_t refused_bytes() const;
  // Where the device finds what is at `memory`; 0 unless all of it is locked.
  DevicePointer pointer(const std::byte* memory, std::size_t bytes) const;

 private:
  struct Range {
    std::unique_ptr<LockedRange> locked;
    std::size_t bytes;
    DevicePointer pointer;
  };
  std::shared_ptr<const Context> context_;
  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, Range> ranges_;
  std::map<const std::byte*, std::size_t> refused_;
};

}  // namespace kvarter
