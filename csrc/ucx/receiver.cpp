#include "ucx/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "copy/kernel.h"

namespace kvarter::ucx {

namespace {

bool known(std::uint64_t status) { return status <= static_cast<std::uint64_t>(Status::kClosed); }

}  // namespace

Receiver::Receiver(std::span<std::byte> memory, Events& events, Counters& counters)
    : memory_(memory), events_(events), counters_(counters) {}

void Receiver::admit(std::uint64_t token, PeerId peer) { tokens_[token] = peer; }

void Receiver::dismiss(PeerId peer) {
  std::erase_if(tokens_, [&](const auto& item) { return item.second == peer; });
  for (auto entry = expected_.begin(); entry != expected_.end();) {
    const auto it = entry++;
    if (it->second.peer == peer) finish(it, Status::kClosed);
  }
}

void Receiver::expect(PeerId peer, std::uint64_t request, std::uint64_t generation,
                      std::vector<Extent> slots) {
  const std::size_t count = slots.size();
  const auto entry = expected_
                         .emplace(request, Expected{.peer = peer,
                                                    .generation = generation,
                                                    .slots = std::move(slots),
                                                    .statuses = std::vector<Status>(count, Status::kOk),
                                                    .checksums = std::vector<std::uint64_t>(count)})
                         .first;
  if (std::ranges::none_of(tokens_, [&](const auto& item) { return item.second == peer; }))
    finish(entry, Status::kClosed);
}

bool Receiver::forget(std::uint64_t request) { return expected_.erase(request) != 0; }

std::optional<PeerId> Receiver::arrive(std::span<const std::byte> header_bytes,
                                       std::span<const std::byte> payload) {
  Header header;
  if (header_bytes.size() != sizeof header) {
    counters_.add(Count::kDropMalformed);
    return {};
  }
  std::memcpy(&header, header_bytes.data(), sizeof header);
  if (header.magic != kHeaderMagic) {
    counters_.add(Count::kDropMalformed);
    return {};
  }
  const auto peer = tokens_.find(header.token);
  if (peer == tokens_.end()) {
    counters_.add(Count::kDropStranger);
    return {};
  }
  if (header.kind == Kind::kMessage) {
    if (payload.size() > kMostMessage) {
      counters_.add(Count::kDropMalformed);
    } else if (events_.push_message(peer->second, payload)) {
      counters_.add(Count::kMessagesReceived);
    } else {
      counters_.add(Count::kDropFlood);
      return peer->second;
    }
    return {};
  }
  const auto entry = expected_.find(header.request);
  if (entry == expected_.end() || entry->second.generation != header.generation ||
      entry->second.peer != peer->second)
    counters_.add(Count::kDropUnasked);
  else if (header.kind == Kind::kBegin)
    begin(entry, header, payload);
  else if (header.kind == Kind::kData)
    data(entry, header, payload);
  else if (header.kind == Kind::kEnd && payload.empty() && header.status != Status::kOk &&
           known(static_cast<std::uint64_t>(header.status)))
    finish(entry, header.status);
  else
    counters_.add(Count::kDropMalformed);
  return {};
}

void Receiver::begin(Entry entry, const Header& header, std::span<const std::byte> payload) {
  Expected& expected = entry->second;
  if (expected.begun) return counters_.add(Count::kDropDisordered);
  if (payload.size() != expected.slots.size() * sizeof(Verdict)) return counters_.add(Count::kDropMalformed);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < expected.slots.size(); ++i) {
    Verdict verdict;
    std::memcpy(&verdict, payload.data() + i * sizeof verdict, sizeof verdict);
    expected.statuses[i] = known(verdict.status) ? static_cast<Status>(verdict.status) : Status::kCorrupt;
    expected.checksums[i] = verdict.checksum;
    if (expected.statuses[i] == Status::kOk) total += expected.slots[i].length;
  }
  expected.begun = true;
  expected.total = total;
  skip(expected);
  // The owner's blocks have other lengths than our slots.
  if (header.offset != total)
    finish(entry, Status::kCorrupt);
  else if (total == 0)
    finish(entry, Status::kClosed);
}

void Receiver::skip(Expected& expected) {
  expected.within = expected.stripe = 0;
  expected.mixed = kXxh3Start;
  while (expected.block < expected.slots.size() && expected.statuses[expected.block] != Status::kOk)
    ++expected.block;
}

void Receiver::data(Entry entry, const Header& header, std::span<const std::byte> payload) {
  Expected& expected = entry->second;
  if (!expected.begun || header.offset != expected.at || payload.empty() ||
      payload.size() > expected.total - expected.at)
    return counters_.add(Count::kDropDisordered);
  if (!whole_stripes(expected, payload.size())) return counters_.add(Count::kDropMalformed);
  expected.at += payload.size();
  counters_.add(Count::kBytesReceived, payload.size());
  while (!payload.empty()) {
    const Extent slot = expected.slots[expected.block];
    const std::size_t bytes = std::min<std::size_t>(payload.size(), slot.length - expected.within);
    const auto piece = payload.first(bytes);
    payload = payload.subspan(bytes);
    land(expected, piece, payload.empty() ? piece.data() : payload.data());
    if (expected.within < slot.length) continue;
    const bool same = checksum(expected) == expected.checksums[expected.block];
    if (!same) expected.statuses[expected.block] = Status::kCorrupt;
    counters_.add(same ? Count::kBlocksReceived : Count::kBlocksCorrupt);
    ++expected.block;
    skip(expected);
  }
  copy_kernel().finish();
  if (expected.at == expected.total) finish(entry, Status::kClosed);
}

bool Receiver::whole_stripes(const Expected& expected, std::size_t bytes) const {
  std::size_t block = expected.block;
  std::uint64_t left = expected.slots[block].length - expected.within;
  std::uint64_t within = expected.within;
  for (; bytes > left; left = expected.slots[block].length) {
    bytes -= left;
    within = 0;
    do ++block;
    while (expected.statuses[block] != Status::kOk);
  }
  return bytes == left || (within + bytes) % kXxh3Stripe == 0;
}

void Receiver::land(Expected& expected, std::span<const std::byte> bytes, const std::byte* next) {
  const Extent slot = expected.slots[expected.block];
  std::byte* to = memory_.data() + slot.offset + expected.within;
  // The last stripe is no regular one (hash/xxh3.h), nor is any of a short block.
  const std::size_t regular = slot.length <= kXxh3Short ? 0 : (slot.length - 1) / kXxh3Stripe;
  const std::size_t before = std::min<std::size_t>(expected.within / kXxh3Stripe, regular);
  const std::size_t stripes = std::min(bytes.size() / kXxh3Stripe, regular - before);
  copy_kernel().copy_mixing(to, bytes.data(), stripes, next, expected.mixed.data(), expected.stripe);
  const std::size_t done = stripes * kXxh3Stripe;
  std::memcpy(to + done, bytes.data() + done, bytes.size() - done);
  expected.within += bytes.size();
}

std::uint64_t Receiver::checksum(const Expected& expected) const {
  const Extent slot = expected.slots[expected.block];
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory_.data() + slot.offset);
  if (slot.length <= kXxh3Short) return xxh3_short(bytes, slot.length);
  return xxh3_finish(expected.mixed.data(), bytes + slot.length - kXxh3Stripe, slot.length);
}

void Receiver::finish(Entry entry, Status rest) {
  Expected& expected = entry->second;
  for (std::size_t i = expected.block; i < expected.slots.size(); ++i)
    if (!expected.begun || expected.statuses[i] == Status::kOk) expected.statuses[i] = rest;
  events_.push(
      Received{expected.peer, entry->first, std::move(expected.statuses), std::move(expected.checksums)});
  expected_.erase(entry);
}

}  // namespace kvarter::ucx
