#pragma once
// How keys lie in shared memory: what the table, which one thread at a time changes, and look-ups, which
// anybody does at any time, have in common.

#include <atomic>
#include <cstring>

#include "index/along.h"
#include "kvarter/record.h"

namespace kvarter {

// Columns, cells and keys that are read without the mutex are written through these. Loads that acquire and
// stores that release keep a record's key between its two words for every reader, without fences, and cost
// nothing on x86.
template <class T>
T shared(T& field) {
  return std::atomic_ref(field).load(std::memory_order_acquire);
}
template <class T>
void share(T& field, T value) {
  std::atomic_ref(field).store(value, std::memory_order_release);
}

inline std::uint32_t hash_of(const Key& key) {
  std::uint64_t x;
  std::memcpy(&x, key.digest.data(), sizeof x);  // a digest is uniform: only the rest needs mixing in
  x ^= (std::uint64_t{key.ns} << 32 | std::uint64_t{key.group} << 16 | key.sub) * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return static_cast<std::uint32_t>(x >> 32);
}

// The words of a record's key.
template <class F>
void for_key(SlotRecord& slot, const Key& key, F&& each) {
  std::uint64_t words[4];
  std::memcpy(words, key.digest.data(), sizeof words);
  auto* digest = reinterpret_cast<std::uint64_t*>(slot.digest.data());
  for (int i = 0; i < 4; ++i) each(digest[i], words[i]);
  each(slot.ns, key.ns);
  each(slot.group, key.group);
  each(slot.sub, key.sub);
}

}  // namespace kvarter
