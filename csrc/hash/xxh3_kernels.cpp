#include <algorithm>
#include <cstring>

#include "hash/xxh3.h"
#include "hash/xxh3_simd.h"

namespace kvarter {

namespace {

std::uint64_t word(const std::uint8_t* p) {
  std::uint64_t value;
  std::memcpy(&value, p, 8);
  return value;
}

class Scalar final : public Xxh3Kernel {
 public:
  const char* name() const noexcept override { return "scalar"; }
  bool supported() const noexcept override { return true; }

  void accumulate(std::uint64_t* acc, std::size_t& stripe, const std::uint8_t* in,
                  std::size_t stripes) const noexcept override {
    for (std::size_t n = 0; n < stripes; ++n, in += kXxh3Stripe) {
      for (std::size_t i = 0; i < 8; ++i) {
        const std::uint64_t data = word(in + 8 * i), key = data ^ word(kXxh3Secret.data() + 8 * (stripe + i));
        acc[i ^ 1] += data;
        acc[i] += (key & 0xffffffff) * (key >> 32);
      }
      if (++stripe < kXxh3ScrambleEvery) continue;
      stripe = 0;
      for (std::size_t i = 0; i < 8; ++i)
        acc[i] =
            (acc[i] ^ acc[i] >> 47 ^ word(kXxh3Secret.data() + kXxh3ScrambleSecret + 8 * i)) * kPrime32[0];
    }
  }
};

const Scalar scalar{};

#if defined(__x86_64__)

class Avx2 final : public Xxh3Kernel {
 public:
  const char* name() const noexcept override { return "avx2"; }
  bool supported() const noexcept override { return __builtin_cpu_supports("avx2"); }

  KVARTER_AVX2 void accumulate(std::uint64_t* acc, std::size_t& stripe, const std::uint8_t* in,
                               std::size_t stripes) const noexcept override {
    Accumulators256 a;
    a.load(acc);
    while (stripes) {
      const std::size_t run = std::min(stripes, kXxh3ScrambleEvery - stripe);
      for (std::size_t n = 0; n < run; ++n, in += kXxh3Stripe)
        for (int i = 0; i < 2; ++i)
          a.mix(i, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 32 * i)),
                kXxh3Secret.data() + 8 * (stripe + n));
      stripes -= run;
      stripe = (stripe + run) % kXxh3ScrambleEvery;
      if (stripe == 0) a.scramble();
    }
    a.store(acc);
  }
};

class Avx512 final : public Xxh3Kernel {
 public:
  const char* name() const noexcept override { return "avx512"; }
  bool supported() const noexcept override { return __builtin_cpu_supports("avx512f"); }

  KVARTER_AVX512 void accumulate(std::uint64_t* acc, std::size_t& stripe, const std::uint8_t* in,
                                 std::size_t stripes) const noexcept override {
    Accumulators512 a;
    a.load(acc);
    // A stripe's secret is never aligned, and every such load crosses a cache line: keep all 16 in registers.
    __m512i secret[kXxh3ScrambleEvery];
    for (std::size_t n = 0; n < kXxh3ScrambleEvery; ++n)
      secret[n] = _mm512_loadu_si512(kXxh3Secret.data() + 8 * n);
    while (stripes) {
      if (stripe == 0 && stripes >= kXxh3ScrambleEvery) {
#pragma GCC unroll 16
        for (std::size_t n = 0; n < kXxh3ScrambleEvery; ++n)
          a.mix(_mm512_loadu_si512(in + n * kXxh3Stripe), secret[n]);
        in += kXxh3ScrambleEvery * kXxh3Stripe;
        stripes -= kXxh3ScrambleEvery;
        a.scramble();
        continue;
      }
      a.mix(_mm512_loadu_si512(in), _mm512_loadu_si512(kXxh3Secret.data() + 8 * stripe));
      in += kXxh3Stripe;
      --stripes;
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

const Xxh3Kernel& kXxh3Scalar = scalar;
#if defined(__x86_64__)
const Xxh3Kernel& kXxh3Avx2 = avx2;
const Xxh3Kernel& kXxh3Avx512 = avx512;
#endif

}  // namespace kvarter
