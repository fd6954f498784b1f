// Operations on their way through the device: made, advanced over short transfers, finished, used again.
#include <algorithm>
#include <cerrno>

#include "disk/impl.h"

namespace kvarter {

using namespace disk;

namespace {

constexpr int kMaxStalls = 16;  // transfers of less than a page in a row, after which it is an error

}  // namespace

Op& DiskLog::Impl::make_op(Op::Kind kind, std::uint32_t segment) {
  if (free_ops.empty()) {
    free_ops.push_back(static_cast<std::uint32_t>(ops.size()));
    ops.push_back(std::make_unique<Op>());
    ops.back()->io.tag = free_ops.back();
  }
  Op& op = *ops[free_ops.back()];
  free_ops.pop_back();
  op.kind = kind;
  op.segment = segment;
  return op;
}

void DiskLog::Impl::submit(Op& op, IoOp what, int file, std::uint64_t offset) {
  op.expected = 0;
  for (const iovec& vector : op.vectors) op.expected += vector.iov_len;
  op.io.op = what;
  op.io.file = file;
  op.io.offset = offset;
  op.io.vectors = op.vectors.data();
  op.io.count = static_cast<unsigned>(op.vectors.size());
  op.data = op.kind == Op::Kind::kGroup || op.kind == Op::Kind::kRead || op.kind == Op::Kind::kCleanRead;
  if (op.data) ++in_flight;
  if (op.kind == Op::Kind::kRead) ++reads_in_flight;
  ++outstanding;
  submissions.push_back(op.io);
}

void DiskLog::Impl::release(Op& op) {
  const auto tag = static_cast<std::uint32_t>(op.io.tag);
  op.vectors.clear();
  op.rest.clear();
  op.writes.clear();
  op.reads.clear();
  op.verdicts.clear();
  op.checksums.clear();
  op.index.clear();
  op.cuts.clear();
  op.sizes.clear();
  op.buffer.reset();
  op.clean.reset();
  op.moved = op.sequence = 0;
  op.error = op.stalls = 0;
  op.finished = op.cleaning = false;
  free_ops.push_back(tag);
}

// True when the operation is over; false when what is left of it has to be submitted.
bool DiskLog::Impl::advance(Op& op, std::int64_t result) {
  if (result < 0) {
    if ((result == -EINTR || result == -EAGAIN) && ++op.stalls < kMaxStalls) return false;
    op.error = static_cast<int>(-result);
    return true;
  }
  if (op.io.op == IoOp::kSync) return true;
  const std::uint64_t before = op.moved;
  op.moved += static_cast<std::uint64_t>(result);
  if (op.moved >= op.expected) return true;
  op.moved = op.moved / kPage * kPage;  // O_DIRECT goes on at a page
  op.stalls = op.moved > before ? 0 : op.stalls + 1;
  if (result == 0 || op.stalls >= kMaxStalls) {
    op.error = EIO;
    return true;
  }
  op.rest.clear();
  std::uint64_t skip = op.moved;
  for (const iovec& vector : op.vectors) {
    const std::uint64_t cut = std::min<std::uint64_t>(skip, vector.iov_len);
    skip -= cut;
    if (cut < vector.iov_len)
      op.rest.push_back({static_cast<std::byte*>(vector.iov_base) + cut, vector.iov_len - cut});
  }
  return false;
}

void DiskLog::Impl::finish(Op& op) {
  switch (op.kind) {
    case Op::Kind::kGroup:
      op.finished = true;  // published in its turn
      return;
    case Op::Kind::kCleanRead:
      finish_clean_read(op);
      break;
    case Op::Kind::kRead:
      finish_reads(op);
      break;
    case Op::Kind::kHeader:
    case Op::Kind::kHeaderSync:
      finish_header(op);
      break;
    case Op::Kind::kSeal:
      finish_seal(op);
      break;
    case Op::Kind::kSync:
      finish_sync(op);
      break;
    case Op::Kind::kManifest:
    case Op::Kind::kManifestSync:
      finish_manifest(op);
      break;
  }
  release(op);
}

}  // namespace kvarter
