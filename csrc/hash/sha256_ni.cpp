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

// The instructions want the words as (a b e f) and (c d g h), highest first.
template <int N>
struct States {
  __m128i abef[N], cdgh[N];
};

KVARTER_INLINE __m128i load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

KVARTER_INLINE __m128i swap_bytes(__m128i v) {
  return _mm_shuffle_epi8(v, _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
}

KVARTER_INLINE void from_words(const std::uint32_t* words, __m128i& abef, __m128i& cdgh) {
  const __m128i badc = _mm_shuffle_epi32(load(words), 0xb1), efgh = _mm_shuffle_epi32(load(words + 4), 0x1b);
  abef = _mm_alignr_epi8(badc, efgh, 8);
  cdgh = _mm_blend_epi16(efgh, badc, 0xf0);
}

KVARTER_INLINE void to_words(__m128i abef, __m128i cdgh, __m128i& abcd, __m128i& efgh) {
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
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

KVARTER_TARGET void compress_blocks(std::uint32_t* state, const std::uint8_t* blocks, std::size_t count) {
  States<1> s;
  from_words(state, s.abef[0], s.cdgh[0]);
  for (std::size_t i = 0; i < count; ++i) {
    __m128i w[1][4];
    for (int j = 0; j < 4; ++j) w[0][j] = swap_bytes(load(blocks + 64 * i + 16 * j));
    rounds<1>(s, w);
  }
  __m128i abcd, efgh;
  to_words(s.abef[0], s.cdgh[0], abcd, efgh);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), abcd);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), efgh);
}

// A unit's message is digest (32 B), tokens, padding. The digest goes from registers straight into the first
// block and whole blocks of tokens are read where they lie; what shares a block with padding is laid out in
// `ends`, for several units ahead, since a call to memcpy between two units would spill the digest. So a unit
// costs its rounds and hardly more.
template <int N>
KVARTER_TARGET void chain_lanes(Lane* lanes, std::size_t unit_tokens, std::size_t units) {
  constexpr std::size_t kAhead = 16;
  const std::size_t bytes = 4 * unit_tokens, total = padded_size(32 + bytes) - 32;
  const std::size_t whole = bytes < 32 ? 0 : 32 + (bytes - 32) / 64 * 64;  // of tokens, read in place
  alignas(64) std::uint8_t ends[N][kAhead][128];
  __m128i abcd[N], efgh[N];
  for (int n = 0; n < N; ++n) {
    for (auto& end : ends[n]) pad_message(end + (bytes - whole), total - bytes, 32 + bytes);
    abcd[n] = swap_bytes(load(lanes[n].digest.data()));
    efgh[n] = swap_bytes(load(lanes[n].digest.data() + 16));
  }
  for (std::size_t left = units; left > 0;) {
    const std::size_t run = left < kAhead ? left : kAhead;
    const std::uint8_t* tokens[N];
    for (int n = 0; n < N; ++n) {
      tokens[n] = reinterpret_cast<const std::uint8_t*>(lanes[n].tokens);
      for (std::size_t unit = 0; unit < run; ++unit)
        std::memcpy(ends[n][unit], tokens[n] + unit * bytes + whole, bytes - whole);
    }
    for (std::size_t unit = 0; unit < run; ++unit) {
      States<N> s;
      __m128i w[N][4];
      for (int n = 0; n < N; ++n) {
        const std::uint8_t* first = whole ? tokens[n] : ends[n][unit];
        w[n][0] = abcd[n], w[n][1] = efgh[n];
        w[n][2] = swap_bytes(load(first)), w[n][3] = swap_bytes(load(first + 16));
        from_words(kSha256Start.data(), s.abef[n], s.cdgh[n]);
      }
      rounds<N>(s, w);
      for (std::size_t at = 32; at < total; at += 64) {
        for (int n = 0; n < N; ++n) {
          const std::uint8_t* block = at < whole ? tokens[n] + at : ends[n][unit] + (at - whole);
          for (int j = 0; j < 4; ++j) w[n][j] = swap_bytes(load(block + 16 * j));
        }
        rounds<N>(s, w);
      }
      for (int n = 0; n < N; ++n) {
        to_words(s.abef[n], s.cdgh[n], abcd[n], efgh[n]);
        std::uint8_t* out = lanes[n].out + 32 * unit;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), swap_bytes(abcd[n]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), swap_bytes(efgh[n]));
        tokens[n] += bytes;
      }
    }
    for (int n = 0; n < N; ++n) {
      lanes[n].tokens += run * unit_tokens;
      lanes[n].out += 32 * run;
    }
    left -= run;
  }
  for (int n = 0; units && n < N; ++n) std::memcpy(lanes[n].digest.data(), lanes[n].out - 32, 32);
}

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
    if (lanes.size() == 1) chain_lanes<1>(lanes.data(), unit_tokens, units);
    if (lanes.size() == 2) chain_lanes<2>(lanes.data(), unit_tokens, units);
    if (lanes.size() == 4) chain_lanes<4>(lanes.data(), unit_tokens, units);
  }
};

const Ni ni{};

}  // namespace

const Sha256Kernel& kSha256Ni = ni;

}  // namespace kvarter
#endif
