#include <algorithm>
#include <stdexcept>
#include <string>

#include "kvarter/ucx/engine.h"
#include "ucx/ucp/impl.h"

namespace kvarter::ucx {

namespace {

void check_count(std::size_t count) {
  if (count == 0 || count > kMostBlocks)
    throw std::invalid_argument("a request has " + std::to_string(count) + " blocks, expected 1 to " +
                                std::to_string(kMostBlocks));
}

void check_inside(std::size_t index, std::uint64_t offset, std::uint64_t length, std::size_t size) {
  if (length == 0 || length > size || offset > size - length)
    throw std::invalid_argument("block " + std::to_string(index) + " is " + std::to_string(length) +
                                " bytes at " + std::to_string(offset) + " of a memory of " +
                                std::to_string(size));
}

void check_apart(std::vector<std::pair<std::uint64_t, std::uint64_t>> slots) {
  std::ranges::sort(slots);
  for (std::size_t i = 1; i < slots.size(); ++i)
    if (slots[i - 1].first + slots[i - 1].second > slots[i].first)
      throw std::invalid_argument("slots overlap at " + std::to_string(slots[i].first));
}

}  // namespace

std::uint64_t Engine::expect(PeerId peer, std::uint64_t request,
                             std::vector<std::pair<std::uint64_t, std::uint64_t>> slots) {
  check_count(slots.size());
  std::vector<Extent> extents;
  for (const auto& [offset, length] : slots) {
    check_inside(extents.size(), offset, length, impl_->memory.size());
    extents.push_back({offset, length});
  }
  check_apart(std::move(slots));
  const std::uint64_t generation = random_word();
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->open.insert(request).second)
      throw std::invalid_argument("request " + std::to_string(request) + " is open");
  }
  // Waits: whoever learns the generation, in whatever way, may send at once.
  if (!impl_->now([&] { impl_->loop->receiver().expect(peer, request, generation, std::move(extents)); })) {
    const std::lock_guard lock(impl_->mutex);
    impl_->open.erase(request);
    throw std::runtime_error("the engine is closed");
  }
  return generation;
}

bool Engine::forget(std::uint64_t request) {
  bool open = false;
  impl_->now([&] { open = impl_->loop->receiver().forget(request); });
  if (open) {
    const std::lock_guard lock(impl_->mutex);
    impl_->open.erase(request);
  }
  return open;
}

Status Engine::send(PeerId peer, std::uint64_t request, std::uint64_t generation,
                    std::span<const Block> blocks) {
  check_count(blocks.size());
  Job job;
  job.request = request;
  job.generation = generation;
  for (const Block& block : blocks) {
    job.verdicts.push_back({block.checksum, static_cast<std::uint64_t>(block.status)});
    if (block.status != Status::kOk) continue;
    check_inside(job.verdicts.size() - 1, block.offset, block.length, impl_->memory.size());
    job.pieces.push_back({impl_->memory.data() + block.offset, block.length});
    job.total += block.length;
  }
  Queued account;
  if (const Status status = impl_->admit(peer, job.total + kCallCost, account); status != Status::kOk)
    return status;
  const bool taken = impl_->later([impl = impl_.get(), peer, job = std::move(job)]() mutable {
    impl->loop->sender().send(peer, std::move(job));
  });
  return taken ? Status::kOk : Status::kClosed;
}

void Engine::cancel(PeerId peer, std::uint64_t request) {
  impl_->later([impl = impl_.get(), peer, request] { impl->loop->sender().cancel(peer, request); });
}

}  // namespace kvarter::ucx
