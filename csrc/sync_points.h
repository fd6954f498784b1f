#pragma once
// Named places in the code at which a test may stop a thread or kill its process, so that a race or a crash
// that needs one exact moment happens every time. Builds without KVARTER_SYNC_POINTS (all but those with the
// C++ tests) have nothing there.
//
// A point stands immediately before the store that it is named after. The hook is called by whoever comes by,
// with whatever locks it holds: it may wait for another thread only if that thread needs none of them.

#ifdef KVARTER_SYNC_POINTS
#include <atomic>

namespace kvarter {

using SyncHook = void (*)(const char* point);
inline std::atomic<SyncHook> sync_hook{nullptr};

inline void sync_point(const char* point) {
  if (const SyncHook hook = sync_hook.load(std::memory_order_acquire)) hook(point);
}

}  // namespace kvarter
#define KVARTER_SYNC_POINT(point) ::kvarter::sync_point(point)
#else
#define KVARTER_SYNC_POINT(point) static_cast<void>(0)
#endif
