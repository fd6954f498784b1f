// For ARMv8 (Debian: g++-aarch64-linux-gnu, qemu-user): cmake --workflow --preset aarch64, then
// qemu-aarch64 build/aarch64/kvarter_tests -sf='*hash_test*,*copy_test*,*index*,*readers*'
#include "kvarter/hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "hash/sha256.h"
#include "hash/xxh3.h"

namespace kvarter {

namespace {

using Bytes = std::vector<std::uint8_t>;

std::string hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes)
    text += "0123456789abcdef"[byte >> 4], text += "0123456789abcdef"[byte & 15];
  return text;
}

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::vector<std::uint32_t> counting(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Bytes noise(std::size_t size) {
  std::mt19937_64 random(size);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

Bytes chain(std::span<const std::uint32_t> tokens, std::uint32_t unit_tokens, const Digest& previous,
            std::span<const Extra> extras = {}) {
  Bytes out(tokens.size() / unit_tokens * 32);
  chain_digests(tokens, unit_tokens, previous, extras, out.data());
  return out;
}

std::vector<const Sha256Kernel*> sha256_kernels() {
  std::vector<const Sha256Kernel*> all{&kSha256Portable};
#if defined(__x86_64__)
  if (kSha256Ni.supported()) all.push_back(&kSha256Ni);
#elif defined(__aarch64__)
  if (kSha256Arm.supported()) all.push_back(&kSha256Arm);
#endif
  return all;
}

std::vector<const Xxh3Kernel*> xxh3_kernels() {
  std::vector<const Xxh3Kernel*> all{&kXxh3Scalar};
#if defined(__x86_64__)
  for (const Xxh3Kernel* kernel : {&kXxh3Avx2, &kXxh3Avx512})
    if (kernel->supported()) all.push_back(kernel);
#endif
  return all;
}

}  // namespace

TEST_CASE("the chain gives the format's test vectors") {
  CHECK(hex(root()) == kVectorRoot);
  const auto tokens = counting(0, 32);
  const std::string image = "image", salt = "salt";
  const Extra extras[] = {{1, kTagMultimodal, 3, bytes_of(image)}, {1, kTagSalt, 0, bytes_of(salt)}};
  const Bytes digests = chain(tokens, 16, root(), extras);
  CHECK(hex(std::span(digests).first(32)) == kVectorUnit);
  CHECK(hex(std::span(digests).last(32)) == kVectorExtras);
}

TEST_CASE("SHA-256 gives the vectors of FIPS 180-4") {
  CHECK(hex(sha256(bytes_of(""))) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256(bytes_of("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("every SHA-256 kernel chains alike, at every unit size and number of lanes") {
  for (const Sha256Kernel* kernel : sha256_kernels()) {
    CAPTURE(kernel->name());
    for (std::size_t unit_tokens = 1; unit_tokens <= 70; ++unit_tokens) {
      CAPTURE(unit_tokens);
      for (const std::size_t width : {1, 2, 4}) {
        const std::size_t units = 3;
        std::vector<std::uint32_t> tokens(width * units * unit_tokens);
        const Bytes raw = noise(4 * tokens.size());
        std::memcpy(tokens.data(), raw.data(), raw.size());
        Bytes out(width * units * 32), expected(width * units * 32);
        std::vector<Lane> lanes, reference;
        for (std::size_t i = 0; i < width; ++i) {
          const Digest previous = sha256(std::span(raw).first(i));
          lanes.push_back({tokens.data() + i * units * unit_tokens, out.data() + i * units * 32, previous});
          Digest digest = previous;
          for (std::size_t unit = 0; unit < units; ++unit) {
            Sha256 sha;
            sha.update(digest.data(), 32);
            sha.update(lanes[i].tokens + unit * unit_tokens, 4 * unit_tokens);
            digest = sha.digest();
            std::copy(digest.begin(), digest.end(), expected.data() + (i * units + unit) * 32);
          }
        }
        kernel->chain(lanes, unit_tokens, units);
        REQUIRE(out == expected);
        for (std::size_t i = 0; i < width; ++i)
          REQUIRE(std::memcmp(lanes[i].digest.data(), out.data() + ((i + 1) * units - 1) * 32, 32) == 0);
      }
    }
  }
}

TEST_CASE("sequences of different lengths with extras give the same digests together as alone") {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const std::uint32_t unit_tokens = 1 + random() % 20;
    const std::size_t count = random() % 9;
    std::vector<std::vector<std::uint32_t>> tokens(count);
    std::vector<std::vector<Extra>> extras(count);
    std::vector<Bytes> together(count);
    std::vector<TokenChain> chains;
    const Bytes payload = noise(100);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t units = random() % 12;
      tokens[i] = counting(random() % 1000, units * unit_tokens + random() % unit_tokens);
      for (std::uint64_t unit = 0; unit < units; ++unit)
        for (; random() % 3 == 0;)
          extras[i].push_back({unit, static_cast<std::uint8_t>(1 + random() % 4),
                               static_cast<std::uint32_t>(random() % unit_tokens),
                               std::span(payload).first(random() % 100)});
      together[i].resize(units * 32);
      chains.push_back({tokens[i], sha256(std::span(payload).first(i)), extras[i], together[i].data()});
    }
    chain_digests(chains, unit_tokens);
    for (std::size_t i = 0; i < count; ++i)
      REQUIRE(together[i] == chain(tokens[i], unit_tokens, chains[i].previous, extras[i]));
  }
}

TEST_CASE("a chain extended from its last digest equals the chain in one go") {
  const auto tokens = counting(5, 160);
  const Bytes whole = chain(tokens, 16, root());
  Digest last;
  std::copy_n(whole.begin() + 3 * 32, 32, last.begin());
  const Bytes rest = chain(std::span(tokens).subspan(64), 16, last);
  CHECK(std::equal(rest.begin(), rest.end(), whole.begin() + 4 * 32, whole.end()));
}

TEST_CASE("an extra that names nothing is refused before anything is written") {
  const auto tokens = counting(0, 33);
  Bytes out(64, 0xee);
  const auto hash = [&](std::vector<Extra> extras, std::uint32_t unit_tokens = 16) {
    chain_digests(tokens, unit_tokens, root(), extras, out.data());
  };
  CHECK_THROWS_WITH_AS(hash({}, 0), "unit_tokens is 0, expected at least 1", std::invalid_argument);
  CHECK_THROWS_WITH_AS(hash({{2, 1, 0, {}}}), "an extra names unit 2, but 33 tokens make 2 full units of 16",
                       std::invalid_argument);
  CHECK_THROWS_AS(hash({{0, 0, 0, {}}}), std::invalid_argument);
  CHECK_THROWS_AS(hash({{0, 5, 0, {}}}), std::invalid_argument);
  CHECK_THROWS_AS(hash({{0, 1, 16, {}}}), std::invalid_argument);
  CHECK_THROWS_AS(hash({{1, 1, 0, {}}, {0, 1, 0, {}}}), std::invalid_argument);
  CHECK_THROWS_AS(tail_digest(root(), {}, {}), std::invalid_argument);
  CHECK(out == Bytes(64, 0xee));
}

TEST_CASE("every XXH3 kernel gives one answer for every length, in one piece and in many") {
  // From the specification's reference implementation: nothing, and one zero byte.
  CHECK(xxh3_64({}) == 0x2d06800538d394c2);
  CHECK(xxh3_64(Bytes(1, 0)) == 0xc44bdff4074eecdb);
  const Bytes bytes = noise(6000);
  std::mt19937 random(1);
  for (std::size_t size = 0; size < bytes.size(); size += size < 2200 ? 1 : 97) {
    CAPTURE(size);
    const auto whole = std::span(bytes).first(size);
    const std::uint64_t expected = xxh3_64(whole);
    if (size > kXxh3Short) {
      for (const Xxh3Kernel* kernel : xxh3_kernels()) {
        CAPTURE(kernel->name());
        alignas(64) std::array<std::uint64_t, 8> acc = kXxh3Start;
        std::size_t stripe = 0, done = 0;
        for (const std::size_t stripes = (size - 1) / 64; done < stripes;) {
          const std::size_t some = 1 + random() % (stripes - done);
          kernel->accumulate(acc.data(), stripe, bytes.data() + 64 * done, some);
          done += some;
        }
        REQUIRE(xxh3_finish(acc.data(), bytes.data() + size - 64, size) == expected);
      }
    }
    Xxh3 pieces;
    const std::size_t largest = 1 + random() % 700;
    for (std::size_t at = 0; at < size;) {
      const std::size_t some = std::min<std::size_t>(random() % (largest + 1), size - at);
      pieces.update(whole.subspan(at, some));
      at += some;
      if (random() % 8 == 0) REQUIRE(pieces.digest() == xxh3_64(whole.first(at)));
    }
    REQUIRE(pieces.digest() == expected);
  }
}

}  // namespace kvarter
