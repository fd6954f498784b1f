#include "hash/sha256.h"

#include <algorithm>
#include <cstring>

#include "hash/kernel.h"

namespace kvarter {

namespace {

std::span<const Sha256Kernel* const> kernels() {
#if defined(__x86_64__)
  static const Sha256Kernel* const all[] = {&kSha256Portable, &kSha256Ni};
#elif defined(__aarch64__)
  static const Sha256Kernel* const all[] = {&kSha256Portable, &kSha256Arm};
#else
  static const Sha256Kernel* const all[] = {&kSha256Portable};
#endif
  return all;
}

}  // namespace

const Sha256Kernel& sha256_kernel() {
  static const Sha256Kernel& chosen = choose_kernel("KVARTER_SHA256", kernels());
  return chosen;
}

std::string sha256_kernel_name() { return sha256_kernel().name(); }
std::vector<std::string> sha256_kernel_names() { return supported_names(kernels()); }

void Sha256::update(const void* bytes, std::size_t size) {
  if (size == 0) return;
  auto in = static_cast<const std::uint8_t*>(bytes);
  const std::size_t held = total_ % 64;
  total_ += size;
  if (held) {
    const std::size_t fill = std::min(size, 64 - held);
    std::memcpy(buffer_.data() + held, in, fill);
    if (held + fill < 64) return;
    kernel_.compress(state_.data(), buffer_.data(), 1);
    in += fill;
    size -= fill;
  }
  kernel_.compress(state_.data(), in, size / 64);
  if (size % 64) std::memcpy(buffer_.data(), in + size / 64 * 64, size % 64);
}

Digest Sha256::digest() {
  std::array<std::uint8_t, 128> end;
  const std::size_t held = total_ % 64;
  std::copy_n(buffer_.begin(), held, end.begin());
  pad_message(end.data() + held, padded_size(held) - held, total_);
  kernel_.compress(state_.data(), end.data(), padded_size(held) / 64);
  Digest digest;
  store_digest(state_.data(), digest.data());
  return digest;
}

Digest sha256(std::span<const std::uint8_t> bytes) {
  Sha256 sha;
  sha.update(bytes.data(), bytes.size());
  return sha.digest();
}

}  // namespace kvarter
