#pragma once
#include <cstdint>

namespace kvarter {

// The one vocabulary of the data path. The same seven words name Python's `kvarter.Status` and the metrics.
// A status is a value, never an exception: a miss is not an error, and nothing below the engine throws into
// it.
enum class Status : std::uint8_t {
  kOk = 0,
  kNotFound = 1,  // no such block, here or any more
  kRejected = 2,  // refused by a rule or for lack of room; the caller's counter says which
  kBusy = 3,      // someone else holds or is making it
  kCorrupt = 4,   // its checksum, length or key did not verify
  kTimedOut = 5,  // its deadline passed
  kClosed = 6,    // its owner is gone, fenced or shut down
};

const char* name(Status status) noexcept;

}  // namespace kvarter
