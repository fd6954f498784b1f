#include "copy/move.h"

#include <algorithm>

#include "copy/move_ptx.h"

namespace kvarter {

namespace {

// Enough to fill the bus, few enough to leave the engine's kernels their multiprocessors.
constexpr unsigned kThreadBlocks = 32, kThreads = 256;

}  // namespace

MoveKernel::MoveKernel(std::shared_ptr<const Context> context)
    : context_(std::move(context)), uploads_(context_) {
  const Driver& driver = context_->driver();
  if (driver.module_load(&module_, kMovePtx) != 0) {
    module_ = nullptr;
    return;
  }
  if (driver.module_function(&function_, module_, "kvarter_move") != 0) function_ = nullptr;
}

MoveKernel::~MoveKernel() {
  for (const Table& table : tables_) context_->driver().release(table.at);
  if (module_) context_->driver().module_unload(module_);
}

bool MoveKernel::takes(const Blocks& blocks) const {
  return function_ && std::ranges::all_of(blocks.segments(), [](const Blocks::Segment& segment) {
           return (reinterpret_cast<DevicePointer>(segment.base) | segment.block_stride | segment.bytes) %
                      sizeof(MoveWord) ==
                  0;
         });
}

DevicePointer MoveKernel::table(const std::shared_ptr<const Blocks>& blocks, int& result) {
  const Driver& driver = context_->driver();
  for (const Table& table : tables_)
    if (!table.blocks.owner_before(blocks) && !blocks.owner_before(table.blocks)) return table.at;
  std::erase_if(tables_, [&](const Table& table) {
    if (!table.blocks.expired()) return false;
    driver.release(table.at);
    return true;
  });
  std::vector<MoveSegment> segments;
  unsigned long long offset = 0;
  for (const Blocks::Segment& segment : blocks->segments()) {
    segments.push_back(
        {reinterpret_cast<DevicePointer>(segment.base), segment.block_stride, offset, segment.bytes});
    offset += segment.bytes;
  }
  DevicePointer at = 0;
  const std::size_t bytes = segments.size() * sizeof(MoveSegment);
  if ((result = driver.allocate(&at, bytes)) != 0) return 0;
  if ((result = driver.to_device(at, segments.data(), bytes, uploads_.handle())) != 0 ||
      (result = driver.stream_synchronize(uploads_.handle())) != 0) {
    driver.release(at);
    return 0;
  }
  tables_.push_back({blocks, at});
  return at;
}

int MoveKernel::launch(Direction direction, const std::shared_ptr<const Blocks>& blocks,
                       std::span<const MovePair> pairs, Handle stream) {
  int result = 0;
  DevicePointer segments = table(blocks, result);
  if (result != 0) return result;
  auto num_segments = static_cast<unsigned>(blocks->segments().size());
  unsigned scatter = direction == Direction::kScatter;
  for (std::size_t first = 0; first < pairs.size(); first += kMovePairs) {
    const auto some = pairs.subspan(first, std::min<std::size_t>(kMovePairs, pairs.size() - first));
    MovePairs parameter{};
    std::ranges::copy(some, parameter.at);
    unsigned runs = num_segments * static_cast<unsigned>(some.size());
    void* arguments[] = {&segments, &num_segments, &runs, &scatter, &parameter};
    result = context_->driver().launch(function_, std::min(runs, kThreadBlocks), 1, 1, kThreads, 1, 1, 0,
                                       stream, arguments, nullptr);
    if (result != 0) return result;
  }
  return 0;
}

}  // namespace kvarter
