#pragma once
// SHA-256 behind one kernel object, for the chain: not public.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvarter/hash.h"

namespace kvarter {

static_assert(std::endian::native == std::endian::little, "digests are over little-endian tokens");

inline constexpr std::array<std::uint32_t, 8> kSha256Start{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
extern const std::array<std::uint32_t, 64> kSha256Constants;

// One sequence under way: the last digest, the next tokens and where the next digest goes.
struct Lane {
  const std::uint32_t* tokens;
  std::uint8_t* out;
  Digest digest;
};

class Sha256Kernel {
 public:
  virtual ~Sha256Kernel() = default;
  virtual const char* name() const noexcept = 0;
  virtual bool supported() const noexcept = 0;
  // Absorbs `count` 64-byte blocks into `state` (words a..h).
  virtual void compress(std::uint32_t* state, const std::uint8_t* blocks, std::size_t count) const = 0;
  // Advances every lane by `units` units without extras. REQUIRES: 1, 2 or 4 lanes.
  virtual void chain(std::span<Lane> lanes, std::size_t unit_tokens, std::size_t units) const = 0;
};

const Sha256Kernel& sha256_kernel();
extern const Sha256Kernel& kSha256Portable;
#if defined(__x86_64__)
extern const Sha256Kernel& kSha256Ni;
#elif defined(__aarch64__)
extern const Sha256Kernel& kSha256Arm;
#endif

// A message that arrives in pieces.
class Sha256 {
 public:
  void update(const void* bytes, std::size_t size);
  Digest digest();

 private:
  const Sha256Kernel& kernel_ = sha256_kernel();
  std::array<std::uint32_t, 8> state_ = kSha256Start;
  std::array<std::uint8_t, 64> buffer_;
  std::uint64_t total_ = 0;
};

// A digest is the state's words, big-endian.
inline void store_digest(const std::uint32_t* state, std::uint8_t* out) {
  for (int i = 0; i < 32; ++i) out[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
}

// Bytes of a message once padded: 0x80, zeros and the length in bits fill it up to whole blocks.
constexpr std::size_t padded_size(std::size_t message) { return (message + 9 + 63) / 64 * 64; }

// Pads a message of `message` bytes whose last part lies at `end`, `room` bytes before the padded end.
inline void pad_message(std::uint8_t* end, std::size_t room, std::uint64_t message) {
  end[0] = 0x80;
  for (std::size_t i = 1; i < room - 8; ++i) end[i] = 0;
  for (std::size_t i = 0; i < 8; ++i)
    end[room - 8 + i] = static_cast<std::uint8_t>((message * 8) >> (56 - 8 * i));
}

}  // namespace kvarter
