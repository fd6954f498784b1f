// io_uring by its system calls. One thread submits and reaps; wake() writes to an eventfd that the ring
// reads.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <stdexcept>

#include "disk/directory.h"
#include "disk/uring_abi.h"

namespace kvarter::disk {
namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};

template <class T>
T* at(void* base, std::uint32_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(base) + offset);
}

[[noreturn]] void refused(const std::string& what, int error) {
  throw std::runtime_error("io_uring: " + what + (error ? std::string(": ") + std::strerror(error) : ""));
}

// A ring: file descriptor and mappings.
class Ring {
 public:
  explicit Ring(unsigned entries) {
    uring::Params p{};
    fd_ = static_cast<int>(syscall(uring::kSetup, entries, &p));
    if (fd_ < 0) refused("the kernel refuses it", errno);
    constexpr std::uint32_t kNeeded = uring::kFeatSingleMap | uring::kFeatNoDrop | uring::kFeatExtArg;
    ring_bytes_ = std::max(p.sq.array + p.sq_entries * sizeof(std::uint32_t),
                           p.cq.cqes + p.cq_entries * sizeof(uring::Cqe));
    sqe_bytes_ = p.sq_entries * sizeof(uring::Sqe);
    if ((p.features & kNeeded) == kNeeded) {
      ring_ = map(ring_bytes_, uring::kSqRing);
      sqes_ = map(sqe_bytes_, uring::kSqes);
    }
    if (ring_ == MAP_FAILED || sqes_ == MAP_FAILED) {
      destroy();
      refused("this kernel's is too old, or cannot be mapped", 0);
    }
    sq_head = at<std::atomic<std::uint32_t>>(ring_, p.sq.head);
    sq_tail = at<std::atomic<std::uint32_t>>(ring_, p.sq.tail);
    cq_head = at<std::atomic<std::uint32_t>>(ring_, p.cq.head);
    cq_tail = at<std::atomic<std::uint32_t>>(ring_, p.cq.tail);
    cqes = at<uring::Cqe>(ring_, p.cq.cqes);
    sqes = static_cast<uring::Sqe*>(sqes_);
    sq_mask = p.sq_entries - 1;
    cq_mask = p.cq_entries - 1;
    auto* array = at<std::uint32_t>(ring_, p.sq.array);
    for (std::uint32_t i = 0; i < p.sq_entries; ++i) array[i] = i;
  }
  ~Ring() { destroy(); }
  Ring(const Ring&) = delete;

  int enter(unsigned submit, unsigned wait, unsigned flags, void* arg, std::size_t bytes) const {
    const long n = syscall(uring::kEnter, fd_, submit, wait, flags, arg, bytes);
    return n < 0 ? -errno : static_cast<int>(n);
  }

  std::atomic<std::uint32_t>*sq_head, *sq_tail, *cq_head, *cq_tail;
  std::uint32_t sq_mask, cq_mask;
  uring::Sqe* sqes;
  uring::Cqe* cqes;

 private:
  void* map(std::size_t bytes, std::int64_t offset) const {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                static_cast<off_t>(offset));
  }
  void destroy() {
    if (ring_ != MAP_FAILED) munmap(ring_, ring_bytes_);
    if (sqes_ != MAP_FAILED) munmap(sqes_, sqe_bytes_);
    ::close(fd_);
  }

  int fd_ = -1;
  void *ring_ = MAP_FAILED, *sqes_ = MAP_FAILED;
  std::size_t ring_bytes_ = 0, sqe_bytes_ = 0;
};

class Uring final : public Directory {
 public:
  Uring(const std::string& path, unsigned depth)
      : Directory(path), ring_(depth + 1), event_(eventfd(0, EFD_CLOEXEC)) {
    if (event_ < 0) refused("no eventfd", errno);
    listen();
  }
  // REQUIRES, as the log sees to it: nothing is in flight but our own read of the eventfd.
  ~Uring() override {
    closing_ = true;
    wake();
    std::vector<IoDone> none;
    while (listening_) reap(none, std::chrono::milliseconds(100));
    ::close(event_);
  }
  std::string name() const override { return "io_uring"; }

  void submit(std::span<const Io> batch) override {
    for (const Io& io : batch) backlog_.push_back(make(io));
    push();
  }

  void reap(std::vector<IoDone>& done, std::chrono::nanoseconds wait) override {
    bool woken = false;
    const std::size_t before = done.size();
    collect(done, woken);
    if (done.size() == before && !woken && wait.count() > 0) {
      uring::Timespec time{wait.count() / 1'000'000'000, wait.count() % 1'000'000'000};
      uring::GetEventsArg arg{0, 0, 0, reinterpret_cast<std::uintptr_t>(&time)};
      ring_.enter(0, 1, uring::kGetEvents | uring::kExtArg, &arg, sizeof arg);
      collect(done, woken);
    }
    if (!backlog_.empty()) push();
  }

  void wake() override {
    const std::uint64_t one = 1;
    if (write(event_, &one, sizeof one) < 0) return;  // cannot fail: the counter is never near its end
  }

 private:
  static uring::Sqe make(const Io& io) {
    uring::Sqe sqe{};
    sqe.fd = io.file;
    sqe.user_data = io.tag;
    if (io.op == IoOp::kSync) {
      sqe.opcode = uring::kFsync;
      sqe.op_flags = uring::kFsyncData;
      return sqe;
    }
    sqe.opcode = io.op == IoOp::kRead ? uring::kReadv : uring::kWritev;
    sqe.offset = io.offset;
    sqe.address = reinterpret_cast<std::uintptr_t>(io.vectors);
    sqe.length = io.count;
    return sqe;
  }

  void listen() {
    uring::Sqe sqe{};
    sqe.opcode = uring::kRead;
    sqe.fd = event_;
    sqe.address = reinterpret_cast<std::uintptr_t>(&counter_);
    sqe.length = sizeof counter_;
    sqe.user_data = kWakeTag;
    backlog_.push_back(sqe);
    listening_ = true;
    push();
  }

  void push() {
    const std::uint32_t head = ring_.sq_head->load(std::memory_order_acquire);
    std::uint32_t tail = ring_.sq_tail->load(std::memory_order_relaxed);
    for (; !backlog_.empty() && tail - head <= ring_.sq_mask; ++tail) {
      ring_.sqes[tail & ring_.sq_mask] = backlog_.front();
      backlog_.pop_front();
    }
    ring_.sq_tail->store(tail, std::memory_order_release);
    // What the kernel is too busy to take stays in the ring, and goes with the next call.
    if (tail != head) ring_.enter(tail - head, 0, 0, nullptr, 0);
  }

  void collect(std::vector<IoDone>& done, bool& woken) {
    std::uint32_t head = ring_.cq_head->load(std::memory_order_relaxed);
    const std::uint32_t tail = ring_.cq_tail->load(std::memory_order_acquire);
    bool again = false;
    for (; head != tail; ++head) {
      const uring::Cqe& cqe = ring_.cqes[head & ring_.cq_mask];
      if (cqe.user_data == kWakeTag)
        again = true;
      else
        done.push_back({cqe.user_data, cqe.result});
    }
    ring_.cq_head->store(head, std::memory_order_release);
    if (ring_.sq_head->load(std::memory_order_acquire) != ring_.sq_tail->load(std::memory_order_relaxed))
      push();
    if (!again) return;
    woken = true;
    listening_ = false;
    if (!closing_) listen();
  }

  Ring ring_;
  int event_;
  std::uint64_t counter_ = 0;
  bool listening_ = false, closing_ = false;
  std::deque<uring::Sqe> backlog_;
};

}  // namespace

std::unique_ptr<Device> make_uring_device(const std::string& path, unsigned depth) {
  return std::make_unique<Uring>(path, depth);
}

}  // namespace kvarter::disk
