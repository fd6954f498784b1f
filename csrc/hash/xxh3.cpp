#include "hash/xxh3.h"

#include <algorithm>
#include <cstring>

#include "hash/kernel.h"

namespace kvarter {

namespace {

std::span<const Xxh3Kernel* const> kernels() {
#if defined(__x86_64__)
  static const Xxh3Kernel* const all[] = {&kXxh3Scalar, &kXxh3Avx2, &kXxh3Avx512};
#else
  static const Xxh3Kernel* const all[] = {&kXxh3Scalar};
#endif
  return all;
}

std::uint64_t secret(std::size_t offset) {
  std::uint64_t word;
  std::memcpy(&word, kXxh3Secret.data() + offset, 8);
  return word;
}

}  // namespace

const Xxh3Kernel& xxh3_kernel() {
  static const Xxh3Kernel& chosen = choose_kernel("KVARTER_XXH3", kernels());
  return chosen;
}

std::string xxh3_kernel_name() { return xxh3_kernel().name(); }
std::vector<std::string> xxh3_kernel_names() { return supported_names(kernels()); }

std::uint64_t xxh3_finish(const std::uint64_t* acc, const std::uint8_t* last, std::uint64_t total) {
  std::uint64_t hash = total * kPrime64[0];
  std::array<std::uint64_t, 8> mixed;
  for (std::size_t i = 0; i < 8; ++i) {
    std::uint64_t word, other;
    std::memcpy(&word, last + 8 * i, 8);
    std::memcpy(&other, last + 8 * (i ^ 1), 8);
    const std::uint64_t key = word ^ secret(kXxh3ScrambleSecret - 7 + 8 * i);
    mixed[i] = acc[i] + other + (key & 0xffffffff) * (key >> 32);
  }
  for (std::size_t i = 0; i < 8; i += 2)
    hash += xxh3_multiply_fold(mixed[i] ^ secret(11 + 8 * i), mixed[i + 1] ^ secret(19 + 8 * i));
  return xxh3_avalanche(hash);
}

std::uint64_t xxh3_64(std::span<const std::uint8_t> bytes) {
  if (bytes.size() <= kXxh3Short) return xxh3_short(bytes.data(), bytes.size());
  alignas(64) std::array<std::uint64_t, 8> acc = kXxh3Start;
  std::size_t stripe = 0;
  xxh3_kernel().accumulate(acc.data(), stripe, bytes.data(), (bytes.size() - 1) / kXxh3Stripe);
  return xxh3_finish(acc.data(), bytes.data() + bytes.size() - kXxh3Stripe, bytes.size());
}

Xxh3::Xxh3() : kernel_(&xxh3_kernel()), accumulators_(kXxh3Start) {}

// The buffer always keeps at least one byte back, because only what has a byte after it is a regular stripe,
// and keeps the 64 bytes before its content, because the last 64 bytes may begin there.
void Xxh3::update(std::span<const std::uint8_t> bytes) {
  const std::uint8_t* in = bytes.data();
  std::size_t size = bytes.size();
  total_ += size;
  if (buffered_ + size > buffer_.size()) {
    if (buffered_) {
      const std::size_t fill = buffer_.size() - buffered_;
      std::memcpy(buffer_.data() + buffered_, in, fill);
      kernel_->accumulate(accumulators_.data(), stripe_, buffer_.data(), buffer_.size() / kXxh3Stripe);
      in += fill;
      size -= fill;
      buffered_ = 0;
    }
    if (size > buffer_.size()) {
      const std::size_t stripes = (size - 1) / kXxh3Stripe;
      kernel_->accumulate(accumulators_.data(), stripe_, in, stripes);
      in += stripes * kXxh3Stripe;
      size -= stripes * kXxh3Stripe;
      std::memcpy(buffer_.data() + buffer_.size() - kXxh3Stripe, in - kXxh3Stripe, kXxh3Stripe);
    }
  }
  if (size) std::memcpy(buffer_.data() + buffered_, in, size);
  buffered_ += size;
}

std::uint64_t Xxh3::digest() const {
  if (total_ <= kXxh3Short) return xxh3_short(buffer_.data(), buffered_);
  alignas(64) std::array<std::uint64_t, 8> acc = accumulators_;
  std::size_t stripe = stripe_;
  kernel_->accumulate(acc.data(), stripe, buffer_.data(), (buffered_ - 1) / kXxh3Stripe);
  if (buffered_ >= kXxh3Stripe)
    return xxh3_finish(acc.data(), buffer_.data() + buffered_ - kXxh3Stripe, total_);
  std::array<std::uint8_t, kXxh3Stripe> last;
  std::memcpy(last.data(), buffer_.data() + buffer_.size() - (kXxh3Stripe - buffered_),
              kXxh3Stripe - buffered_);
  std::memcpy(last.data() + kXxh3Stripe - buffered_, buffer_.data(), buffered_);
  return xxh3_finish(acc.data(), last.data(), total_);
}

}  // namespace kvarter
