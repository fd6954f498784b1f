#include <algorithm>
#include <cstring>

#include "copy/kernel.h"
#include "hash/xxh3.h"
#include "hash/xxh3_simd.h"

namespace kvarter {

namespace {

class Scalar final : public CopyKernel {
 public:
  const char* name() const noexcept override { return "scalar"; }
  bool supported() const noexcept override { return true; }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes,
            const std::byte*) const noexcept override {
    std::memcpy(to, from, bytes);
  }

  void copy_mixing(std::byte* to, const std::byte* from, std::size_t stripes, const std::byte*,
                   std::uint64_t* acc, std::size_t& stripe) const noexcept override {
    constexpr std::size_t kPiece = 64;  // stripes: 4 KiB stay in the nearest cache between the two passes
    while (stripes) {
      const std::size_t piece = std::min(stripes, kPiece), bytes = piece * kXxh3Stripe;
      std::memcpy(to, from, bytes);
      kXxh3Scalar.accumulate(acc, stripe, reinterpret_cast<const std::uint8_t*>(from), piece);
      to += bytes, from += bytes, stripes -= piece;
    }
  }
};

const Scalar scalar{};

#if defined(__x86_64__)

// Both vector kernels store around the caches: a block is not read again soon by this core, and a store that
// does not first fetch its line saves a third of the memory traffic. They fetch this far ahead, across
// segments.
constexpr std::size_t kAhead = 2048;

inline const std::byte* ahead(const std::byte* from, std::size_t at, std::size_t bytes,
                              const std::byte* next) {
  return at + kAhead < bytes ? from + at + kAhead : next + (at + kAhead - bytes);
}

inline bool aligned(const void* p, std::size_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }

// Bytes to copy the plain way until `to` is aligned for a vector store.
inline std::size_t head_of(const std::byte* to, std::size_t bytes) {
  return std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
}

class Avx2 final : public CopyKernel {
 public:
  const char* name() const noexcept override { return "avx2"; }
  bool supported() const noexcept override { return __builtin_cpu_supports("avx2"); }

  KVARTER_AVX2 void copy(std::byte* to, const std::byte* from, std::size_t bytes,
                         const std::byte* next) const noexcept override {
    const std::size_t head = head_of(to, bytes);
    std::memcpy(to, from, head);
    std::size_t at = head;
    for (; at + 64 <= bytes; at += 64) {
      _mm_prefetch(ahead(from, at, bytes, next), _MM_HINT_T0);
      const __m256i low = load(from + at), high = load(from + at + 32);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), high);
    }
    std::memcpy(to + at, from + at, bytes - at);
  }

  void copy_mixing(std::byte* to, const std::byte* from, std::size_t stripes, const std::byte* next,
                   std::uint64_t* acc, std::size_t& stripe) const noexcept override {
    aligned(to, 32) ? mixing<true>(to, from, stripes, next, acc, stripe)
                    : mixing<false>(to, from, stripes, next, acc, stripe);
  }

  void finish() const noexcept override { _mm_sfence(); }

 private:
  KVARTER_AVX2_INLINE static __m256i load(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }

  template <bool Stream>
  KVARTER_AVX2 static void mixing(std::byte* to, const std::byte* from, std::size_t stripes,
                                  const std::byte* next, std::uint64_t* acc, std::size_t& stripe) {
    Accumulators256 a;
    a.load(acc);
    const std::size_t bytes = stripes * kXxh3Stripe;
    for (std::size_t at = 0; at < bytes; at += kXxh3Stripe) {
      _mm_prefetch(ahead(from, at, bytes, next), _MM_HINT_T0);
      for (int i = 0; i < 2; ++i) {
        const __m256i data = load(from + at + 32 * i);
        auto target = reinterpret_cast<__m256i*>(to + at + 32 * i);
        if constexpr (Stream)
          _mm256_stream_si256(target, data);
        else
          _mm256_storeu_si256(target, data);
        a.mix(i, data, kXxh3Secret.data() + 8 * stripe);
      }
      if (++stripe < kXxh3ScrambleEvery) continue;
      stripe = 0;
      a.scramble();
    }
    a.store(acc);
  }
};

class Avx512 final : public CopyKernel {
 public:
  const char* name() const noexcept override { return "avx512"; }
  bool supported() const noexcept override { return __builtin_cpu_supports("avx512f"); }

  KVARTER_AVX512 void copy(std::byte* to, const std::byte* from, std::size_t bytes,
                           const std::byte* next) const noexcept override {
    const std::size_t head = head_of(to, bytes);
    std::memcpy(to, from, head);
    std::size_t at = head;
    for (; at + 256 <= bytes; at += 256) {
      __m512i data[4];
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        _mm_prefetch(ahead(from, at, bytes, next) + 64 * i, _MM_HINT_T0);
        data[i] = _mm512_loadu_si512(from + at + 64 * i);
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 64 * i), data[i]);
    }
    std::memcpy(to + at, from + at, bytes - at);
  }

  void copy_mixing(std::byte* to, const std::byte* from, std::size_t stripes, const std::byte* next,
                   std::uint64_t* acc, std::size_t& stripe) const noexcept override {
    aligned(to, 64) ? mixing<true>(to, from, stripes, next, acc, stripe)
                    : mixing<false>(to, from, stripes, next, acc, stripe);
  }

  void finish() const noexcept override { _mm_sfence(); }

 private:
  template <bool Stream>
  KVARTER_AVX512_INLINE static void store(std::byte* to, const __m512i& data) {
    if constexpr (Stream)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), data);
    else
      _mm512_storeu_si512(to, data);
  }

  template <bool Stream>
  KVARTER_AVX512 static void mixing(std::byte* to, const std::byte* from, std::size_t stripes,
                                    const std::byte* next, std::uint64_t* acc, std::size_t& stripe) {
    Accumulators512 a;
    a.load(acc);
    __m512i secret[kXxh3ScrambleEvery];  // as in the hash kernel: unaligned, so kept in registers
    for (std::size_t n = 0; n < kXxh3ScrambleEvery; ++n)
      secret[n] = _mm512_loadu_si512(kXxh3Secret.data() + 8 * n);
    constexpr std::size_t kBlock = kXxh3ScrambleEvery * kXxh3Stripe;
    const std::size_t bytes = stripes * kXxh3Stripe;
    for (std::size_t at = 0; at < bytes;) {
      if (stripe == 0 && at + kBlock <= bytes) {
        const std::byte* fetch = ahead(from, at, bytes, next);
#pragma GCC unroll 4
        for (std::size_t n = 0; n < kXxh3ScrambleEvery; n += 4) {
          __m512i data[4];
#pragma GCC unroll 4
          for (std::size_t i = 0; i < 4; ++i) {
            _mm_prefetch(fetch + (n + i) * kXxh3Stripe, _MM_HINT_T0);
            data[i] = _mm512_loadu_si512(from + at + (n + i) * kXxh3Stripe);
          }
#pragma GCC unroll 4
          for (std::size_t i = 0; i < 4; ++i) store<Stream>(to + at + (n + i) * kXxh3Stripe, data[i]);
#pragma GCC unroll 4
          for (std::size_t i = 0; i < 4; ++i) a.mix(data[i], secret[n + i]);
        }
        at += kBlock;
        a.scramble();
        continue;
      }
      _mm_prefetch(ahead(from, at, bytes, next), _MM_HINT_T0);
      const __m512i data = _mm512_loadu_si512(from + at);
      store<Stream>(to + at, data);
      a.mix(data, _mm512_loadu_si512(kXxh3Secret.data() + 8 * stripe));
      at += kXxh3Stripe;
      stripe = (stripe + 1) % kXxh3ScrambleEvery;
      if (stripe == 0) a.scramble();
    }
    a.store(acc);
  }
};

const Avx2 avx2{};
const Avx512 avx512{};

#endif

}  // namespace

const CopyKernel& kCopyScalar = scalar;
#if defined(__x86_64__)
const CopyKernel& kCopyAvx2 = avx2;
const CopyKernel& kCopyAvx512 = avx512;
#endif

}  // namespace kvarter
