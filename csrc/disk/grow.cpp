// New segment files: allocated, begun, and only then given their name. The calls block, without the mutex.
#include "disk/impl.h"

namespace kvarter {

using namespace disk;

bool DiskLog::Impl::grow() {
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex);
    if (!grow_wanted) return false;
    grow_wanted = false;
    if (growth_stopped || present >= max_segments || closing_down) return false;
    while (number < segments.size() && segments[number].file >= 0) ++number;
  }
  int file = -1;
  if (device->free_bytes() >= segment_bytes + options.reserve_bytes)
    file = device->create(segment_name(number) + ".new", segment_bytes, options.sparse);
  const std::lock_guard lock(mutex);
  if (file < 0) {
    growth_stopped = true;
    next_space_check = clock.now() + kRetry;
    return true;
  }
  if (number == segments.size()) segments.emplace_back();
  segments[number] = Segment{};
  segments[number].file = file;
  segments[number].fresh = true;
  ++present;
  open_segment(number);
  return true;
}

bool DiskLog::Impl::name_new_segments() {
  std::vector<std::uint32_t> fresh;
  {
    const std::lock_guard lock(mutex);
    for (std::uint32_t number = 0; opening > 0 && number < segments.size(); ++number)
      if (segments[number].state == SegmentState::kNaming) fresh.push_back(number);
  }
  for (const std::uint32_t number : fresh) {
    const std::string name = segment_name(number);
    const bool named = device->rename(name + ".new", name) == 0 && device->sync_directory() == 0;
    const std::lock_guard lock(mutex);
    Segment& segment = segments[number];
    --opening;
    if (named) {
      segment.fresh = false;
      segment.state = SegmentState::kReady;
      ready.push_back(number);
      continue;
    }
    device->close(segment.file);
    segment = Segment{};
    --present;
    growth_stopped = true;
    next_space_check = clock.now() + kRetry;
    ++counts.io_errors;
  }
  return !fresh.empty();
}

}  // namespace kvarter
