#include "kvarter/pool.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace kvarter {
namespace {

std::vector<std::uint64_t> arena_sizes(std::uint64_t bytes, std::uint64_t arena_bytes, std::size_t nodes) {
  std::vector<std::uint64_t> sizes;
  const std::uint64_t most = round_up(std::min(arena_bytes, (bytes + nodes - 1) / nodes), kHugePage);
  for (std::uint64_t left = round_up(bytes, kHugePage); left > 0;) {
    sizes.push_back(std::min(left, most));
    left -= sizes.back();
  }
  return sizes;
}

std::vector<Memfd> make_arenas(const std::vector<std::uint64_t>& sizes, bool hugetlb) {
  std::vector<Memfd> arenas;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    arenas.emplace_back("kvarter-arena-" + std::to_string(i), sizes[i], hugetlb);
  return arenas;
}

std::vector<std::uint64_t> sizes_of(const std::vector<Memfd>& arenas) {
  std::vector<std::uint64_t> sizes;
  for (const Memfd& arena : arenas) sizes.push_back(arena.bytes());
  return sizes;
}

// The policy belongs to the file's pages, not to this mapping: it holds for whoever touches them first.
// Preferred, not bound: a full node makes memory slower, not the kernel kill.
bool prefer_node(const Memfd& arena, int node) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<std::size_t>(node) / kBits + 1, 0);
  mask.back() = 1ul << (static_cast<std::size_t>(node) % kBits);
  return syscall(SYS_mbind, arena.data(), arena.bytes(), MPOL_PREFERRED, mask.data(), mask.size() * kBits + 1,
                 0) == 0;
}

}  // namespace

Pool::Pool(std::uint64_t bytes, std::uint64_t arena_bytes, bool populate, bool huge_pages,
           const std::string& root)
    : extents_(arena_sizes(bytes, arena_bytes, numa_nodes(root).size())) {
  const std::vector<int> nodes = numa_nodes(root);
  const std::vector<std::uint64_t> sizes = arena_sizes(bytes, arena_bytes, nodes.size());
  for (const std::uint64_t size : sizes) bytes_ += size;
  Pages pages = huge_pages ? pages_at_start(bytes_, root) : Pages::k4k;
  if (pages == Pages::kHugetlb) try {
      arenas_ = make_arenas(sizes, true);
    } catch (const std::system_error&) {  // somebody else was faster, or a cgroup forbids it
      pages = Pages::k4k;
    }
  if (pages != Pages::kHugetlb) arenas_ = make_arenas(sizes, false);
  if (pages == Pages::kThp && !advise_all(bytes_, MADV_HUGEPAGE)) pages = Pages::k4k;
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    const int node = nodes[i % nodes.size()];
    nodes_.push_back(nodes.size() > 1 && prefer_node(arenas_[i], node) ? node : -1);
  }
  pages_ = pages;
  if (populate) populator_ = std::thread([=, this] { this->populate(huge_pages && pages == Pages::k4k); });
}

Pool::Pool(std::vector<Memfd> arenas)
    : arenas_(std::move(arenas)), extents_(sizes_of(arenas_)), populated_(true) {
  for (const Memfd& arena : arenas_) bytes_ += arena.bytes();
}

Pool::~Pool() {
  stop_ = true;
  if (populator_.joinable()) populator_.join();
}

// In steps, so that close does not wait for a terabyte. False when the kernel refused a step or close came.
bool Pool::advise_all(std::uint64_t step, int advice) const {
  for (const Memfd& arena : arenas_)
    for (std::uint64_t at = 0; at < arena.bytes(); at += step) {
      if (stop_) return false;
      int tries = 10;  // a page may be in use for a moment
      while (madvise(arena.data() + at, std::min(step, arena.bytes() - at), advice))
        if (errno != EAGAIN || --tries == 0) return false;
    }
  return true;
}

void Pool::populate(bool collapse) {
  // A refusal is no error: pages then come at first touch, and of the kind they are.
  if (!advise_all(64u << 20, MADV_POPULATE_WRITE)) return;
  populated_.store(true, std::memory_order_release);
  if (collapse && advise_all(16u << 20, MADV_COLLAPSE))
    pages_.store(Pages::kCollapsed, std::memory_order_release);
}

}  // namespace kvarter
