#include "disk/scan.h"

#include <algorithm>
#include <cstring>

namespace kvarter::disk {
namespace {

constexpr std::uint64_t kPiece = 1u << 20;
constexpr std::size_t kPieces = 8;  // in flight

bool verifies(const Found& block, const std::byte* payload) {
  for (const Shard& shard : block.shards) {
    if (checksum(payload, shard.length) != shard.checksum) return false;
    payload += padded(shard.length);
  }
  return true;
}

// A segment read from front to back, some megabytes at a time.
class Window {
 public:
  Window(Blocking& blocking, int file, std::uint64_t end) : blocking_(blocking), file_(file), end_(end) {}
  // `bytes` from `offset` on, valid until the next call; nullptr when they cannot be read.
  const std::byte* at(std::uint64_t offset, std::uint64_t bytes) {
    if (bytes > end_ || offset > end_ - bytes) return nullptr;
    if (offset < begin_ || offset + bytes > begin_ + size_) {
      begin_ = offset;
      size_ = std::min(std::max(bytes, kWindow), end_ - offset);
      if (size_ > room_) {
        buffer_ = aligned(size_);
        room_ = size_;
      }
      if (!blocking_.read(file_, begin_, buffer_.get(), size_)) size_ = 0;
      if (size_ == 0) return nullptr;
    }
    return buffer_.get() + (offset - begin_);
  }

 private:
  static constexpr std::uint64_t kWindow = 8u << 20;
  Blocking& blocking_;
  int file_;
  std::uint64_t end_, begin_ = 0, size_ = 0, room_ = 0;
  Aligned buffer_;
};

// Keeps the blocks whose payload verifies.
void check_payloads(Window& window, Scanned& scanned, std::vector<Found>& blocks) {
  std::erase_if(blocks, [&](const Found& block) {
    const std::byte* const payload = window.at(block.offset, block.bytes);
    const bool good = payload && verifies(block, payload);
    ++(good ? scanned.verified : scanned.corrupt);
    return !good;
  });
}

void scan_groups(Window& window, Scanned& scanned) {
  const SegmentHeader& header = *scanned.header;
  while (scanned.end + kPage <= header.bytes) {
    const std::byte* at = window.at(scanned.end, kPage);
    const std::uint32_t count = at ? group_pages(at, header, scanned.end) : 0;
    if (count == 0) break;
    at = window.at(scanned.end, count * kPage);
    auto blocks = at ? parse_group(at, count, header, scanned.end) : std::nullopt;
    if (!blocks) break;
    scanned.end = blocks->back().offset + blocks->back().bytes;
    check_payloads(window, scanned, *blocks);
    std::move(blocks->begin(), blocks->end(), std::back_inserter(scanned.blocks));
  }
}

}  // namespace

bool Blocking::transfer(IoOp op, int file, std::uint64_t offset, std::byte* memory, std::uint64_t bytes) {
  struct Piece {
    iovec vector;
    std::uint64_t offset;
  };
  std::vector<Piece> pieces;
  for (std::uint64_t at = 0; at < bytes; at += kPiece)
    pieces.push_back({{memory + at, std::min(kPiece, bytes - at)}, offset + at});
  std::size_t next = 0, in_flight = 0;
  bool good = true;
  std::vector<std::size_t> again;
  std::vector<IoDone> done;
  while (in_flight > 0 || (good && (next < pieces.size() || !again.empty()))) {
    while (good && in_flight < kPieces && (next < pieces.size() || !again.empty())) {
      std::size_t i = next;
      if (again.empty()) {
        ++next;
      } else {
        i = again.back();
        again.pop_back();
      }
      const Io io{op, file, pieces[i].offset, &pieces[i].vector, 1, i};
      device_.submit({&io, 1});
      ++in_flight;
    }
    done.clear();
    device_.reap(done, std::chrono::seconds(1));
    for (const IoDone& d : done) {
      --in_flight;
      Piece& piece = pieces[d.tag];
      const std::uint64_t moved = d.result > 0 ? static_cast<std::uint64_t>(d.result) / kPage * kPage : 0;
      if (moved == 0) {
        good = false;
      } else if (moved < piece.vector.iov_len) {
        piece.vector = {static_cast<std::byte*>(piece.vector.iov_base) + moved, piece.vector.iov_len - moved};
        piece.offset += moved;
        again.push_back(d.tag);
      }
    }
  }
  return good;
}

bool Blocking::read(int file, std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  return transfer(IoOp::kRead, file, offset, to, bytes);
}
bool Blocking::write(int file, std::uint64_t offset, std::byte* from, std::uint64_t bytes) {
  return transfer(IoOp::kWrite, file, offset, from, bytes);
}
bool Blocking::sync(int file) {
  const Io io{IoOp::kSync, file, 0, nullptr, 0, 0};
  device_.submit({&io, 1});
  std::vector<IoDone> done;
  while (done.empty()) device_.reap(done, std::chrono::seconds(1));
  return done[0].result >= 0;
}

Scanned scan_segment(Device& device, int file, std::uint32_t number, std::uint64_t bytes,
                     const std::uint8_t* log_id, bool payloads) {
  Scanned scanned;
  Blocking blocking(device);
  const Aligned page = aligned(kPage);
  if (!blocking.read(file, 0, page.get(), kPage)) {
    scanned.read_error = true;
    return scanned;
  }
  scanned.header = parse_segment(page.get(), number, bytes, log_id);
  if (!scanned.header) return scanned;
  Window window(blocking, file, bytes);
  std::optional<Footer> footer;
  if (blocking.read(file, bytes - kPage, page.get(), kPage))
    footer = parse_footer(page.get(), *scanned.header);
  if (footer) {
    const std::uint64_t size = padded(footer->index_bytes);
    const Aligned index = aligned(size);
    if (size == 0 || blocking.read(file, footer->index_offset, index.get(), size))
      if (auto blocks = parse_index({index.get(), footer->index_bytes}, *footer)) {
        scanned.sealed = true;
        scanned.end = footer->end;
        if (payloads) check_payloads(window, scanned, *blocks);
        scanned.blocks = std::move(*blocks);
        return scanned;
      }
  }
  scan_groups(window, scanned);
  return scanned;
}

std::vector<std::byte> read_file(Device& device, int file, std::uint64_t limit) {
  const std::int64_t size = device.size(file);
  const std::uint64_t bytes =
      std::min(limit, size > 0 ? static_cast<std::uint64_t>(size) : 0) / kPage * kPage;
  const Aligned buffer = aligned(bytes);
  if (bytes == 0 || !Blocking(device).read(file, 0, buffer.get(), bytes)) return {};
  return {buffer.get(), buffer.get() + bytes};
}

}  // namespace kvarter::disk
