#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <cstring>

#include "hash/sha256.h"

// GCC and Clang inline across functions only when the targets agree, so every function here carries them.
#define KVARTER_TARGET __attribute__((target("sha,sse4.1")))
#define KVARTER_INLINE __attribute__((target("sha,sse4.1"), always_inline)) inline

namespace kvarter {

namespace {

using Words = __m128i;

// The instructions want the words as (a b e f) and (c d g h), highest first.
template <int N>
struct States {
  __m128i abef[N], cdgh[N];
};

KVARTER_INLINE __m128i load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

KVARTER_INLINE __m128i swap_bytes(__m128i v) {
  return _mm_shuffle_epi8(v, _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
}

KVARTER_INLINE void store(void* p, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }

template <int N>
KVARTER_INLINE void from_words(const std::uint32_t* words, States<N>& s, int n) {
  const __m128i badc = _mm_shuffle_epi32(load(words), 0xb1), efgh = _mm_shuffle_epi32(load(words + 4), 0x1b);
  s.abef[n] = _mm_alignr_epi8(badc, efgh, 8);
  s.cdgh[n] = _mm_blend_epi16(efgh, badc, 0xf0);
}

template <int N>
KVARTER_INLINE void to_words(const States<N>& s, int n, __m128i& abcd, __m128i& efgh) {
  const __m128i feba = _mm_shuffle_epi32(s.abef[n], 0x1b), dchg = _mm_shuffle_epi32(s.cdgh[n], 0xb1);
  abcd = _mm_blend_epi16(feba, dchg, 0xf0);
  efgh = _mm_alignr_epi8(dchg, feba, 8);
}

// 64 rounds of N independent messages, four rounds of each in turn: the latency of one hides behind the
// others.
template <int N>
KVARTER_INLINE void rounds(States<N>& s, __m128i (&w)[N][4]) {
  const States<N> before = s;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m128i k = load(kSha256Constants.data() + 4 * i);
    for (int n = 0; n < N; ++n) {
      const __m128i now = w[n][i & 3], last = w[n][(i + 3) & 3];
      const __m128i sum = _mm_add_epi32(now, k);
      s.cdgh[n] = _mm_sha256rnds2_epu32(s.cdgh[n], s.abef[n], sum);
      s.abef[n] = _mm_sha256rnds2_epu32(s.abef[n], s.cdgh[n], _mm_shuffle_epi32(sum, 0x0e));
      if (i < 12) {
        const __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[n][(i + 1) & 3]),
                                           _mm_alignr_epi8(last, w[n][(i + 2) & 3], 4));
        w[n][i & 3] = _mm_sha256msg2_epu32(next, last);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    s.abef[n] = _mm_add_epi32(s.abef[n], before.abef[n]);
    s.cdgh[n] = _mm_add_epi32(s.cdgh[n], before.cdgh[n]);
  }
}

#include "hash/sha256_lanes.h"

class Ni final : public Sha256Kernel {
 public:
  const char* name() const noexcept override { return "sha-ni"; }

  // GCC 11 to 13 do not know "sha" in __builtin_cpu_supports.
  bool supported() const noexcept override {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
  }

  void compress(std::uint32_t* state, const std::uint8_t* blocks, std::size_t count) const override {
    compress_blocks(state, blocks, count);
  }

  void chain(std::span<Lane> lanes, std::size_t unit_tokens, std::size_t units) const override {
    chain_any(lanes, unit_tokens, units);
  }
};

const Ni ni{};

}  // namespace

const Sha256Kernel& kSha256Ni = ni;

}  // namespace kvarter
#endif
