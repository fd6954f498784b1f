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
  std::uint64_t at = kHeader;
  template <class T>
  void place(T*& column, std::uint64_t count) {
    column = reinterpret_cast<T*>(base + at);
    at = round_up(at + count * sizeof(T), 64);
  }
};

std::uint64_t place_all(Columns& c, std::byte* base, std::uint64_t rows) {
  Layout layout{base};
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
