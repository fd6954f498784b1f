#pragma once
// Reading a segment as recovery and inspection do: with nothing else in flight, and without changing
// anything.
#include "disk/format.h"
#include "kvarter/device.h"

namespace kvarter::disk {

// Transfers that wait, in pieces of a megabyte, several in flight. REQUIRES: aligned memory, offset and
// length.
class Blocking {
 public:
  explicit Blocking(Device& device) : device_(device) {}
  bool read(int file, std::uint64_t offset, std::byte* to, std::uint64_t bytes);
  bool write(int file, std::uint64_t offset, std::byte* from, std::uint64_t bytes);
  bool sync(int file);

 private:
  bool transfer(IoOp op, int file, std::uint64_t offset, std::byte* memory, std::uint64_t bytes);
  Device& device_;
};

struct Scanned {
  std::optional<SegmentHeader> header;  // nothing: the segment is empty, or its header is damaged
  bool sealed = false;
  bool read_error = false;
  std::vector<Found> blocks;  // of an unsealed segment: only those whose payload verifies
  std::uint64_t end = kPage;  // where its groups end
  std::uint64_t verified = 0, corrupt = 0;
};
// With `payloads`, those of a sealed segment are verified, too, and left out when they do not.
Scanned scan_segment(Device& device, int file, std::uint32_t number, std::uint64_t bytes,
                     const std::uint8_t* log_id, bool payloads);
// All of a file, from its beginning, at most `limit` bytes.
std::vector<std::byte> read_file(Device& device, int file, std::uint64_t limit);

}  // namespace kvarter::disk
