// Who wants to know which blocks come and go.
#include <stdexcept>

#include "index/impl.h"

namespace kvarter {

void Index::Impl::tell(std::uint32_t row, Reason reason) {
  for (auto& [owner, watcher] : watchers) {
    if (watcher.changes.size() >= watcher.at_most) {
      watcher.lost = true;
      watcher.changes.clear();
    }
    if (!watcher.lost) watcher.changes.push_back({handle_of(row), reason});
  }
}

void Index::watch(Owner owner, std::size_t at_most) {
  if (at_most == 0) throw std::invalid_argument("a watcher of 0 changes; expected at least 1");
  const std::lock_guard lock(impl_->mutex);
  impl_->watchers[owner] = {at_most, false, {}};
}

bool Index::changes(Owner owner, std::vector<Change>& since) {
  since.clear();
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->watchers.find(owner);
  if (found == impl_->watchers.end())
    throw std::invalid_argument("owner " + std::to_string(owner) + " does not watch");
  Watcher& self = found->second;
  self.changes.swap(since);
  const bool all = !self.lost;
  self.lost = false;
  return all;
}

std::vector<Handle> Index::handles(const Chain& chain, const Range& range) const {
  const std::lock_guard lock(impl_->mutex);
  const GroupShape& shape = impl_->space(chain.ns, range.group).groups[range.group];
  if (range.count > 0) key_at(chain, shape, range.group, range.first + range.count - 1);  // or it throws here
  std::vector<Handle> handles(range.count);
  for (std::uint64_t i = 0; i < range.count; ++i) {
    const std::uint32_t row = impl_->find(key_at(chain, shape, range.group, range.first + i));
    if (row != kNoRow && impl_->state(row) == RowState::kResident) handles[i] = impl_->handle_of(row);
  }
  return handles;
}

}  // namespace kvarter
