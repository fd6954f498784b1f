#include "index/columns.h"

#include <bit>
#include <cstddef>

namespace kvarter {
namespace {

constexpr std::uint64_t kHeader = 4096;

std::uint64_t buckets_for(std::uint32_t max_rows) { return std::bit_ceil(std::uint64_t{max_rows} * 2); }

// Places one array after the other; with a null base it only measures.
struct Layout {
  std::byte* base;
  std::uint64_t at;
  template <class T>
  void place(T*& column, std::uint64_t count) {
    column = reinterpret_cast<T*>(base + at);
    at = round_up(at + count * sizeof(T), 64);
  }
};

std::uint64_t place_all(Columns& c, std::byte* base, std::uint64_t rows) {
  Layout layout{base, 0};
  layout.place(c.header, kHeader / sizeof(ColumnsHeader));
  layout.at = kHeader;
  layout.place(c.gates, kMaxNamespaces);
  c.buckets = buckets_for(static_cast<std::uint32_t>(rows));
  layout.place(c.cells, c.buckets);
  for (auto* column :
       {&c.slot, &c.generation, &c.parent, &c.first_child, &c.next_sibling, &c.previous_sibling, &c.children,
        &c.leases, &c.pins, &c.hits, &c.depth, &c.ns, &c.next_shard})
    layout.place(*column, rows);
  layout.place(c.last_use, rows);
  layout.place(c.bytes, rows);
  layout.place(c.group, rows);
  layout.place(c.shards, rows);
  layout.place(c.klass, rows);
  layout.place(c.state, rows);
  layout.place(c.queued, rows);
  return layout.at;
}

}  // namespace

void Gate::open(std::span<const GroupShape> shapes) {
  for (std::size_t g = 0; g < shapes.size(); ++g)
    strides[g].store(std::uint64_t{shapes[g].unit_stride} << 32 | shapes[g].subs, std::memory_order_release);
  const std::uint64_t times = (word.load(std::memory_order_relaxed) >> 16) + 1;
  word.store(times << 16 | shapes.size() << 2 | kOpen, std::memory_order_release);
}

std::uint64_t columns_bytes(std::uint32_t max_rows) {
  Columns unused;
  return place_all(unused, nullptr, max_rows);
}

Columns columns_at(std::byte* base, std::uint32_t max_rows) {
  Columns columns;
  place_all(columns, base, max_rows);
  return columns;
}

}  // namespace kvarter
