// What the kernels with SHA instructions share: whole messages and chains on top of 64 rounds. No header of
// its own: a kernel's file includes it inside its anonymous namespace, after KVARTER_TARGET (the attributes
// of its functions), Words (four words in a register), load, store, swap_bytes, States<N>, from_words,
// to_words and rounds<N>.

KVARTER_TARGET void compress_blocks(std::uint32_t* state, const std::uint8_t* blocks, std::size_t count) {
  States<1> s;
  from_words(state, s, 0);
  for (std::size_t i = 0; i < count; ++i) {
    Words w[1][4];
    for (int j = 0; j < 4; ++j) w[0][j] = swap_bytes(load(blocks + 64 * i + 16 * j));
    rounds<1>(s, w);
  }
  Words abcd, efgh;
  to_words(s, 0, abcd, efgh);
  store(state, abcd);
  store(state + 4, efgh);
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
  Words abcd[N], efgh[N];
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
      Words w[N][4];
      for (int n = 0; n < N; ++n) {
        const std::uint8_t* first = whole ? tokens[n] : ends[n][unit];
        w[n][0] = abcd[n], w[n][1] = efgh[n];
        w[n][2] = swap_bytes(load(first)), w[n][3] = swap_bytes(load(first + 16));
        from_words(kSha256Start.data(), s, n);
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
        to_words(s, n, abcd[n], efgh[n]);
        std::uint8_t* out = lanes[n].out + 32 * unit;
        store(out, swap_bytes(abcd[n]));
        store(out + 16, swap_bytes(efgh[n]));
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

KVARTER_TARGET void chain_any(std::span<Lane> lanes, std::size_t unit_tokens, std::size_t units) {
  if (lanes.size() == 1) chain_lanes<1>(lanes.data(), unit_tokens, units);
  if (lanes.size() == 2) chain_lanes<2>(lanes.data(), unit_tokens, units);
  if (lanes.size() == 4) chain_lanes<4>(lanes.data(), unit_tokens, units);
}
