#if defined(__aarch64__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstring>

#include "hash/sha256.h"

// CMake compiles this file with the instructions (Clang 15 does not give them to single functions). Nothing
// of it runs before supported() has said so.
#define KVARTER_TARGET
#define KVARTER_INLINE __attribute__((always_inline)) inline

namespace kvarter {

namespace {

using Words = uint32x4_t;

template <int N>
struct States {
  Words abcd[N], efgh[N];
};

KVARTER_INLINE Words load(const void* p) {
  return vreinterpretq_u32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p)));
}
KVARTER_INLINE void store(void* p, Words v) {
  vst1q_u8(static_cast<std::uint8_t*>(p), vreinterpretq_u8_u32(v));
}
KVARTER_INLINE Words swap_bytes(Words v) { return vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(v))); }

template <int N>
KVARTER_INLINE void from_words(const std::uint32_t* words, States<N>& s, int n) {
  s.abcd[n] = load(words);
  s.efgh[n] = load(words + 4);
}

template <int N>
KVARTER_INLINE void to_words(const States<N>& s, int n, Words& abcd, Words& efgh) {
  abcd = s.abcd[n];
  efgh = s.efgh[n];
}

// 64 rounds of N independent messages, four rounds of each in turn.
template <int N>
KVARTER_INLINE void rounds(States<N>& s, Words (&w)[N][4]) {
  const States<N> before = s;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const Words k = vld1q_u32(kSha256Constants.data() + 4 * i);
    for (int n = 0; n < N; ++n) {
      const Words sum = vaddq_u32(w[n][i & 3], k), abcd = s.abcd[n];
      s.abcd[n] = vsha256hq_u32(abcd, s.efgh[n], sum);
      s.efgh[n] = vsha256h2q_u32(s.efgh[n], abcd, sum);
      if (i < 12)
        w[n][i & 3] = vsha256su1q_u32(vsha256su0q_u32(w[n][i & 3], w[n][(i + 1) & 3]), w[n][(i + 2) & 3],
                                      w[n][(i + 3) & 3]);
    }
  }
  for (int n = 0; n < N; ++n) {
    s.abcd[n] = vaddq_u32(s.abcd[n], before.abcd[n]);
    s.efgh[n] = vaddq_u32(s.efgh[n], before.efgh[n]);
  }
}

#include "hash/sha256_lanes.h"

class Arm final : public Sha256Kernel {
 public:
  const char* name() const noexcept override { return "armv8"; }

  bool supported() const noexcept override { return getauxval(AT_HWCAP) & HWCAP_SHA2; }

  void compress(std::uint32_t* state, const std::uint8_t* blocks, std::size_t count) const override {
    compress_blocks(state, blocks, count);
  }

  void chain(std::span<Lane> lanes, std::size_t unit_tokens, std::size_t units) const override {
    chain_any(lanes, unit_tokens, units);
  }
};

const Arm arm{};

}  // namespace

const Sha256Kernel& kSha256Arm = arm;

}  // namespace kvarter
#endif
