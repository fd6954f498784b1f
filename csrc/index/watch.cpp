// Who wants to know which blocks come and go.
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {

void Index::Impl::tell(std::uint32_t row, Reason reason) {
  for (Watcher& watcher : watchers) {
    if (watcher.changes.size() >= watcher.at_most) {
      watcher.lost = true;
      watcher.changes.clear();
    }
    if (!watcher.lost) watcher.changes.push_back({handle_of(row), reason});
  }
}

std::uint32_t Index::watch(std::size_t at_most) {
  if (at_most == 0) throw std::invalid_argument("a watcher of 0 changes; expected at least 1");
  const std::lock_guard lock(impl_->mutex);
  impl_->watchers.push_back({at_most, false, {}});
  return static_cast<std::uint32_t>(impl_->watchers.size() - 1);
}

bool Index::changes(std::uint32_t watcher, std::vector<Change>& since) {
  since.clear();
  const std::lock_guard lock(impl_->mutex);
  if (watcher >= impl_->watchers.size())
    throw std::invalid_argument("watcher " + std::to_string(watcher) + ", and there are " +
                                std::to_string(impl_->watchers.size()));
  Watcher& self = impl_->watchers[watcher];
  self.changes.swap(since);
  const bool all = !self.lost;
  self.lost = false;
  return all;
}

}  // namespace kvarter
