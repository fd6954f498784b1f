#include "kvarter/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvarter {
namespace {

std::vector<std::uint64_t> arena_sizes(std::uint64_t bytes, std::uint64_t arena_bytes) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t left = round_up(bytes, kHugePage); left > 0;) {
    sizes.push_back(std::min(left, round_up(arena_bytes, kHugePage)));
    left -= sizes.back();
  }
  return sizes;
}

std::vector<Memfd> make_arenas(const std::vector<std::uint64_t>& sizes) {
  std::vector<Memfd> arenas;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    arenas.emplace_back("kvarter-arena-" + std::to_string(i), sizes[i]);
  return arenas;
}

std::vector<std::uint64_t> sizes_of(const std::vector<Memfd>& arenas) {
  std::vector<std::uint64_t> sizes;
  for (const Memfd& arena : arenas) sizes.push_back(arena.bytes());
  return sizes;
}

}  // namespace

Pool::Pool(std::uint64_t bytes, std::uint64_t arena_bytes, bool populate)
    : arenas_(make_arenas(arena_sizes(bytes, arena_bytes))), extents_(arena_sizes(bytes, arena_bytes)) {
  for (const Memfd& arena : arenas_) bytes_ += arena.bytes();
  if (populate) populator_ = std::thread([this] { this->populate(); });
}

Pool::Pool(std::vector<Memfd> arenas)
    : arenas_(std::move(arenas)), extents_(sizes_of(arenas_)), populated_(true) {
  for (const Memfd& arena : arenas_) bytes_ += arena.bytes();
}

Pool::~Pool() {
  stop_ = true;
  if (populator_.joinable()) populator_.join();
}

void Pool::populate() {
  // In steps, so that close does not wait for a terabyte. A refusal is no error: pages then come at first
  // touch.
  constexpr std::uint64_t kStep = 64u << 20;
  for (const Memfd& arena : arenas_)
    for (std::uint64_t at = 0; at < arena.bytes() && !stop_; at += kStep)
      if (madvise(arena.data() + at, std::min(kStep, arena.bytes() - at), MADV_POPULATE_WRITE)) return;
  populated_.store(!stop_, std::memory_order_release);
}

}  // namespace kvarter
