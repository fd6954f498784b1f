#pragma once
// XXH3-64's long form, for inputs above 240 bytes, in the pieces that a copy fuses with its own loop. An
// input is a run of 64-byte stripes mixed into eight accumulators, which are scrambled after every 16; the
// last 64 bytes are mixed once more at the end, so the last whole stripe of an input is never mixed as a
// regular one.
#include <array>
#include <cstddef>
#include <cstdint>

#include "kvarter/hash.h"

namespace kvarter {

inline constexpr std::size_t kXxh3Stripe = 64;
inline constexpr std::size_t kXxh3ScrambleEvery = 16;  // stripes
inline constexpr std::size_t kXxh3Short = 240;         // bytes; up to here the short forms answer
extern const std::array<std::uint8_t, 192> kXxh3Secret;
inline constexpr std::size_t kXxh3ScrambleSecret = 192 - 64;  // offset of the secret that scrambles

inline constexpr std::uint32_t kPrime32[] = {0x9e3779b1, 0x85ebca77, 0xc2b2ae3d};
inline constexpr std::uint64_t kPrime64[] = {0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
                                             0x85ebca77c2b2ae63, 0x27d4eb2f165667c5};
inline constexpr std::array<std::uint64_t, 8> kXxh3Start{kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                                                         kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};

class Xxh3Kernel {
 public:
  virtual ~Xxh3Kernel() = default;
  virtual const char* name() const noexcept = 0;
  virtual bool supported() const noexcept = 0;
  // Mixes `stripes` regular stripes into acc (64-byte aligned); `stripe` counts since the last scramble.
  virtual void accumulate(std::uint64_t* acc, std::size_t& stripe, const std::uint8_t* in,
                          std::size_t stripes) const noexcept = 0;
};

const Xxh3Kernel& xxh3_kernel();
extern const Xxh3Kernel& kXxh3Scalar;
#if defined(__x86_64__)
extern const Xxh3Kernel& kXxh3Avx2;
extern const Xxh3Kernel& kXxh3Avx512;
#endif

// The hash, from the accumulators after the last regular stripe and the input's last 64 bytes.
std::uint64_t xxh3_finish(const std::uint64_t* acc, const std::uint8_t* last, std::uint64_t total);

// REQUIRES: size <= kXxh3Short.
std::uint64_t xxh3_short(const std::uint8_t* in, std::size_t size);

// What the forms share.
std::uint64_t xxh3_avalanche(std::uint64_t hash);
std::uint64_t xxh3_multiply_fold(std::uint64_t a, std::uint64_t b);

}  // namespace kvarter
