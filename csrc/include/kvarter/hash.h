#pragma once
// Names and checksums. A *chain digest* names a run of tokens and everything before it: SHA-256 over the
// previous digest, the tokens and what else the run depends on. It is the content half of a key, the same in
// every process, on every host and in every file, so the bytes below never change; a new scheme gets a new
// root. XXH3-64 guards payload against accidents; it is no defence against somebody who forges bytes.
//
// Every function may be called from any thread at any time. Nothing here keeps state or allocates per unit.
// The kernel is chosen at first use: the fastest this CPU has, or the one that KVARTER_SHA256 (`portable`,
// `sha-ni`) or KVARTER_XXH3 (`scalar`, `avx2`, `avx512`) names. A name that is unknown, or that this CPU
// cannot run, throws std::runtime_error at that first use and at every one after it.
//
//   root          SHA-256("kvarter/chain/1")
//   full unit     SHA-256(previous, 32 B | unit_tokens tokens, u32 little-endian | extras)
//   partial tail  SHA-256(previous, 32 B | "tail" | number of tokens, u32 LE | tokens | extras)
//   extras        per item, in order: tag u8 | offset in the unit, u32 LE | length, u32 LE | bytes
//
// Test vectors, for whoever implements this elsewhere (hexadecimal):
//   root()                                                       kVectorRoot
//   the unit of the 16 tokens 0..15 after root(), no extras      kVectorUnit
//   the unit of the 16 tokens 16..31 after kVectorUnit, with the extras
//     (tag 1, offset 3, "image") and (tag 2, offset 0, "salt")   kVectorExtras
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvarter {

inline constexpr char kVectorRoot[] = "59f97bac10d94397f9d341a081b7d15b8c3767df0fd15f5fea447bb829cafc38";
inline constexpr char kVectorUnit[] = "39fafbfba58b22e5a149d02b0d7059f575458119691675d75a3ff2fb2d16c24d";
inline constexpr char kVectorExtras[] = "249dfd7c1d1e8baae30b7b7fb6cf511d9566c5c7a0cfe466cfed660829858596";

using Digest = std::array<std::uint8_t, 32>;

// What an extra says. A multimodal item's hash goes in whole, in every unit that the item touches; the cache
// salt goes into the first unit only, the chain carries it on.
inline constexpr std::uint8_t kTagMultimodal = 1;
inline constexpr std::uint8_t kTagSalt = 2;
inline constexpr std::uint8_t kTagPromptEmbedding = 3;
inline constexpr std::uint8_t kTagEngine = 4;

// One thing besides its tokens that a unit depends on. `offset` counts tokens from the unit's first. The
// bytes are borrowed for the call.
struct Extra {
  std::uint64_t unit = 0;
  std::uint8_t tag = 0;
  std::uint32_t offset = 0;
  std::span<const std::uint8_t> bytes;
};

// Tokens that continue the chain at `previous`. `out` has room for 32 bytes per full unit.
struct TokenChain {
  std::span<const std::uint32_t> tokens;
  Digest previous;
  std::span<const Extra> extras;
  std::uint8_t* out = nullptr;
};

// The digest before the first unit of every sequence.
const Digest& root();

// Writes the digest of every full unit of `tokens` to `out`, 32 bytes each; tokens past the last full unit
// are left alone. REQUIRES: extras sorted by unit (the order within a unit is kept, and hashed); out has 32
// bytes for each of tokens.size() / unit_tokens units. Throws std::invalid_argument, before anything is
// written, for unit_tokens 0, extras out of order, and an extra with an unknown tag, a unit that is not a
// full unit of `tokens`, an offset >= unit_tokens, or 4 GiB of bytes.
void chain_digests(std::span<const std::uint32_t> tokens, std::uint32_t unit_tokens, const Digest& previous,
                   std::span<const Extra> extras, std::uint8_t* out);

// The same for several sequences. Up to four advance together: SHA-256 is bound by its latency, so two
// sequences cost little more than one. REQUIRES, throws: as chain_digests, for each chain; the outputs do not
// overlap.
void chain_digests(std::span<const TokenChain> chains, std::uint32_t unit_tokens);

// The digest of a partial tail: of any number of tokens > 0. It equals no full unit's digest, since "tail"
// reads as token 1,818,845,556, which no vocabulary has. REQUIRES: every extra's unit is 0. Throws
// std::invalid_argument for no tokens, and for extras as chain_digests does with one unit of tokens.size().
Digest tail_digest(const Digest& previous, std::span<const std::uint32_t> tokens,
                   std::span<const Extra> extras);

Digest sha256(std::span<const std::uint8_t> bytes);

// XXH3-64 with seed 0 and the default secret: what PyPI `xxhash.xxh3_64_intdigest` and XXH3_64bits() answer.
std::uint64_t xxh3_64(std::span<const std::uint8_t> bytes);

class Xxh3Kernel;

// XXH3-64 of bytes that arrive in pieces. One thread at a time; a copy continues on its own.
class Xxh3 {
 public:
  Xxh3();
  void update(std::span<const std::uint8_t> bytes);
  // The hash of everything so far; update() may go on afterwards.
  std::uint64_t digest() const;

 private:
  const Xxh3Kernel* kernel_;
  std::uint64_t total_ = 0;
  std::size_t stripe_ = 0;    // stripes since the last scramble
  std::size_t buffered_ = 0;  // after the first fill, buffer_'s rest still holds the bytes before these
  alignas(64) std::array<std::uint64_t, 8> accumulators_;
  alignas(64) std::array<std::uint8_t, 256> buffer_{};
};

// Names of the kernels in use, and of those this CPU can run, slowest first.
std::string sha256_kernel_name();
std::string xxh3_kernel_name();
std::vector<std::string> sha256_kernel_names();
std::vector<std::string> xxh3_kernel_names();

}  // namespace kvarter
