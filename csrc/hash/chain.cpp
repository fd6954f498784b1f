#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>

#include "hash/sha256.h"

namespace kvarter {

namespace {

[[noreturn]] void refuse(const Extra& extra, const std::string& what) {
  throw std::invalid_argument("an extra of unit " + std::to_string(extra.unit) + " has " + what);
}

void check(std::span<const Extra> extras, std::size_t units, std::size_t unit_tokens, std::size_t tokens) {
  std::uint64_t last = 0;
  for (const Extra& extra : extras) {
    if (extra.tag < kTagMultimodal || extra.tag > kTagEngine)
      refuse(extra, "tag " + std::to_string(extra.tag) +
                        ", expected 1 (multimodal), 2 (salt), 3 (prompt embedding) or 4 (engine)");
    if (extra.unit >= units)
      throw std::invalid_argument("an extra names unit " + std::to_string(extra.unit) + ", but " +
                                  std::to_string(tokens) + " tokens make " + std::to_string(units) +
                                  " full units of " + std::to_string(unit_tokens));
    if (extra.offset >= unit_tokens)
      refuse(extra, "offset " + std::to_string(extra.offset) + ", expected less than the unit's " +
                        std::to_string(unit_tokens) + " tokens");
    if (extra.bytes.size() > std::numeric_limits<std::uint32_t>::max())
      refuse(extra, std::to_string(extra.bytes.size()) + " bytes, expected less than 2^32");
    if (extra.unit < last)
      refuse(extra, "its place after unit " + std::to_string(last) + ", expected extras sorted by unit");
    last = extra.unit;
  }
}

void put(Sha256& sha, std::span<const Extra> extras) {
  for (const Extra& extra : extras) {
    const auto length = static_cast<std::uint32_t>(extra.bytes.size());
    sha.update(&extra.tag, 1);
    sha.update(&extra.offset, 4);
    sha.update(&length, 4);
    sha.update(extra.bytes.data(), extra.bytes.size());
  }
}

// A chain under way: `plain` units follow before the next that has extras, or before the end.
struct Cursor {
  Lane lane;
  std::span<const Extra> extras;
  std::size_t unit = 0, units = 0;

  std::size_t plain() const { return (extras.empty() ? units : extras.front().unit) - unit; }

  void hash_units_with_extras(std::size_t unit_tokens) {
    while (unit < units && plain() == 0) {
      const auto end =
          std::find_if(extras.begin(), extras.end(), [&](const Extra& e) { return e.unit != unit; });
      const auto count = static_cast<std::size_t>(end - extras.begin());
      Sha256 sha;
      sha.update(lane.digest.data(), 32);
      sha.update(lane.tokens, 4 * unit_tokens);
      put(sha, extras.first(count));
      lane.digest = sha.digest();
      std::copy(lane.digest.begin(), lane.digest.end(), lane.out);
      lane.tokens += unit_tokens;
      lane.out += 32;
      extras = extras.subspan(count);
      ++unit;
    }
  }
};

}  // namespace

const Digest& root() {
  static const Digest digest = [] {
    constexpr char name[] = "kvarter/chain/1";
    return sha256({reinterpret_cast<const std::uint8_t*>(name), sizeof name - 1});
  }();
  return digest;
}

void chain_digests(std::span<const TokenChain> chains, std::uint32_t unit_tokens) {
  if (unit_tokens == 0) throw std::invalid_argument("unit_tokens is 0, expected at least 1");
  for (const TokenChain& chain : chains)
    check(chain.extras, chain.tokens.size() / unit_tokens, unit_tokens, chain.tokens.size());
  const Sha256Kernel& kernel = sha256_kernel();
  std::array<Cursor, 4> active;
  std::size_t count = 0, next = 0;
  for (;;) {
    while (count < active.size() && next < chains.size()) {
      const TokenChain& chain = chains[next++];
      active[count] = {{chain.tokens.data(), chain.out, chain.previous}, chain.extras};
      active[count++].units = chain.tokens.size() / unit_tokens;
    }
    for (std::size_t i = 0; i < count; ++i) active[i].hash_units_with_extras(unit_tokens);
    const auto end = std::remove_if(active.begin(), active.begin() + static_cast<std::ptrdiff_t>(count),
                                    [](const Cursor& c) { return c.unit == c.units; });
    const auto left = static_cast<std::size_t>(end - active.begin());
    const bool freed = left < count;
    count = left;
    if (freed && next < chains.size()) continue;
    if (count == 0) return;
    const std::size_t width = count == 4 ? 4 : count >= 2 ? 2 : 1;
    std::array<Lane, 4> lanes;
    std::size_t units = std::numeric_limits<std::size_t>::max();
    for (std::size_t i = 0; i < width; ++i) {
      lanes[i] = active[i].lane;
      units = std::min(units, active[i].plain());
    }
    kernel.chain(std::span(lanes).first(width), unit_tokens, units);
    for (std::size_t i = 0; i < width; ++i) {
      active[i].lane = lanes[i];
      active[i].unit += units;
    }
  }
}

void chain_digests(std::span<const std::uint32_t> tokens, std::uint32_t unit_tokens, const Digest& previous,
                   std::span<const Extra> extras, std::uint8_t* out) {
  const TokenChain chain{tokens, previous, extras, out};
  chain_digests(std::span(&chain, 1), unit_tokens);
}

Digest tail_digest(const Digest& previous, std::span<const std::uint32_t> tokens,
                   std::span<const Extra> extras) {
  if (tokens.empty()) throw std::invalid_argument("a tail has 0 tokens, expected at least 1");
  check(extras, 1, tokens.size(), tokens.size());
  const auto count = static_cast<std::uint32_t>(tokens.size());
  Sha256 sha;
  sha.update(previous.data(), 32);
  sha.update("tail", 4);
  sha.update(&count, 4);
  sha.update(tokens.data(), 4 * tokens.size());
  put(sha, extras);
  return sha.digest();
}

}  // namespace kvarter
