#include <bit>
#include <cstring>

#include "hash/xxh3.h"

namespace kvarter {

alignas(64) const std::array<std::uint8_t, 192> kXxh3Secret{
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

namespace {

constexpr std::uint64_t kMix1 = 0x165667919e3779f9, kMix2 = 0x9fb21c651e98df25;

template <class Word>
Word read(const std::uint8_t* p) {
  Word word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

std::uint64_t secret(std::size_t offset) { return read<std::uint64_t>(kXxh3Secret.data() + offset); }

std::uint64_t avalanche64(std::uint64_t hash) {
  hash = (hash ^ hash >> 33) * kPrime64[1];
  hash = (hash ^ hash >> 29) * kPrime64[2];
  return hash ^ hash >> 32;
}

std::uint64_t mix16(const std::uint8_t* in, std::size_t offset) {
  return xxh3_multiply_fold(read<std::uint64_t>(in) ^ secret(offset),
                            read<std::uint64_t>(in + 8) ^ secret(offset + 8));
}

std::uint64_t up_to_16(const std::uint8_t* in, std::size_t size) {
  if (size > 8) {
    const std::uint64_t low = read<std::uint64_t>(in) ^ secret(24) ^ secret(32);
    const std::uint64_t high = read<std::uint64_t>(in + size - 8) ^ secret(40) ^ secret(48);
    return xxh3_avalanche(size + __builtin_bswap64(low) + high + xxh3_multiply_fold(low, high));
  }
  if (size >= 4) {
    const std::uint64_t both =
        read<std::uint32_t>(in + size - 4) + (std::uint64_t{read<std::uint32_t>(in)} << 32);
    std::uint64_t hash = both ^ secret(8) ^ secret(16);
    hash ^= std::rotl(hash, 49) ^ std::rotl(hash, 24);
    hash *= kMix2;
    hash = (hash ^ ((hash >> 35) + size)) * kMix2;
    return hash ^ hash >> 28;
  }
  if (size == 0) return avalanche64(secret(56) ^ secret(64));
  const std::uint32_t all = std::uint32_t{in[0]} << 16 | std::uint32_t{in[size >> 1]} << 24 | in[size - 1] |
                            static_cast<std::uint32_t>(size) << 8;
  return avalanche64(all ^ (secret(0) ^ secret(0) >> 32) % (1ull << 32));
}

}  // namespace

std::uint64_t xxh3_avalanche(std::uint64_t hash) {
  hash = (hash ^ hash >> 37) * kMix1;
  return hash ^ hash >> 32;
}

std::uint64_t xxh3_multiply_fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t xxh3_short(const std::uint8_t* in, std::size_t size) {
  if (size <= 16) return up_to_16(in, size);
  std::uint64_t hash = size * kPrime64[0];
  if (size <= 128) {
    for (std::size_t i = (size - 1) / 32 + 1; i-- > 0;)
      hash += mix16(in + 16 * i, 32 * i) + mix16(in + size - 16 * (i + 1), 32 * i + 16);
    return xxh3_avalanche(hash);
  }
  for (std::size_t i = 0; i < 8; ++i) hash += mix16(in + 16 * i, 16 * i);
  hash = xxh3_avalanche(hash);
  for (std::size_t i = 8; i < size / 16; ++i) hash += mix16(in + 16 * i, 16 * (i - 8) + 3);
  return xxh3_avalanche(hash + mix16(in + size - 16, 136 - 17));
}

}  // namespace kvarter
