#pragma once
// XXH3's accumulators in vector registers: one stripe, and the scramble. Shared by the hash kernels and by
// the copy kernels, which mix a stripe while they hold it. Every method is inlined into a function of the
// same target.
#if defined(__x86_64__)
// GCC 12's own header warns about the vectors it leaves undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "hash/xxh3.h"

#define KVARTER_AVX2 __attribute__((target("avx2")))
#define KVARTER_AVX512 __attribute__((target("avx512f")))
#define KVARTER_AVX2_INLINE __attribute__((target("avx2"), always_inline))
#define KVARTER_AVX512_INLINE __attribute__((target("avx512f"), always_inline))

namespace kvarter {

struct Accumulators256 {
  __m256i half[2];

  KVARTER_AVX2_INLINE void load(const std::uint64_t* acc) {
    for (int i = 0; i < 2; ++i) half[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(acc + 4 * i));
  }
  KVARTER_AVX2_INLINE void store(std::uint64_t* acc) const {
    for (int i = 0; i < 2; ++i) _mm256_store_si256(reinterpret_cast<__m256i*>(acc + 4 * i), half[i]);
  }
  // Half a stripe (`i` 0 or 1), with the stripe's secret.
  KVARTER_AVX2_INLINE void mix(int i, const __m256i& data, const std::uint8_t* secret) {
    const __m256i key = _mm256_xor_si256(data, secret_at(i, secret));
    const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
    half[i] = _mm256_add_epi64(half[i], _mm256_add_epi64(product, _mm256_shuffle_epi32(data, 0x4e)));
  }
  KVARTER_AVX2_INLINE void scramble() {
    const __m256i prime = _mm256_set1_epi64x(kPrime32[0]);
    for (int i = 0; i < 2; ++i) {
      const __m256i shifted = _mm256_xor_si256(half[i], _mm256_srli_epi64(half[i], 47));
      const __m256i key = _mm256_xor_si256(shifted, secret_at(i, kXxh3Secret.data() + kXxh3ScrambleSecret));
      const __m256i high = _mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(key, 32), prime), 32);
      half[i] = _mm256_add_epi64(_mm256_mul_epu32(key, prime), high);
    }
  }

 private:
  KVARTER_AVX2_INLINE static __m256i secret_at(int i, const std::uint8_t* secret) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret + 32 * i));
  }
};

struct Accumulators512 {
  __m512i all;

  KVARTER_AVX512_INLINE void load(const std::uint64_t* acc) { all = _mm512_load_si512(acc); }
  KVARTER_AVX512_INLINE void store(std::uint64_t* acc) const { _mm512_store_si512(acc, all); }
  KVARTER_AVX512_INLINE void mix(const __m512i& data, const __m512i& secret) {
    const __m512i key = _mm512_xor_si512(data, secret);
    const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
    const __m512i swapped = _mm512_shuffle_epi32(data, _MM_PERM_BADC);
    all = _mm512_add_epi64(all, _mm512_add_epi64(product, swapped));
  }
  KVARTER_AVX512_INLINE void scramble() {
    const __m512i prime = _mm512_set1_epi64(kPrime32[0]);
    const __m512i shifted = _mm512_xor_si512(all, _mm512_srli_epi64(all, 47));
    const __m512i key =
        _mm512_xor_si512(shifted, _mm512_loadu_si512(kXxh3Secret.data() + kXxh3ScrambleSecret));
    const __m512i high = _mm512_slli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(key, 32), prime), 32);
    all = _mm512_add_epi64(_mm512_mul_epu32(key, prime), high);
  }
};

}  // namespace kvarter
#endif
