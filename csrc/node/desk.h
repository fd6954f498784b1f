#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvarter/disk.h"
#include "kvarter/histogram.h"
#include "kvarter/index.h"
#include "node/wire.h"

namespace kvarter::node {

// How long each verb's calls took, those that were answered.
using Latencies = std::array<Histogram, wire::kVerbs>;
const char* name(wire::Verb verb) noexcept;

// Where sessions' calls meet the index and the log below it, if there is one: checks what was asked, asks,
// and puts the answer into the outbox. False when the call is malformed, or about something of another
// engine's: then nothing has happened. Never blocks but for the index's mutex, never throws.
bool serve(Index& index, const DiskLog* log, Owner owner, const wire::Call& call,
           std::span<const std::byte> inbox, std::span<std::byte> outbox, wire::Reply& reply,
           Latencies& latencies) noexcept;

}  // namespace kvarter::node
