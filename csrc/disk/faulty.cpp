// A disk in memory with a write cache, a journalled directory, and a power switch.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include "kvarter/device.h"

namespace kvarter {
namespace {

constexpr std::size_t kSector = 512;

struct Unsynced {
  std::uint64_t offset;
  std::vector<std::byte> bytes;
};
struct File {
  std::vector<std::byte> now, durable;
  std::vector<Unsynced> cache;
};
using FilePtr = std::shared_ptr<File>;
using Names = std::map<std::string, FilePtr>;

}  // namespace

struct FaultyDisk::Impl {
  mutable std::mutex mutex;
  std::mt19937_64 random;
  Faults faults;
  std::uint64_t points = 0, crash_at = 0, reads = 0, writes = 0, syncs = 0, transfers = 0;
  std::uint64_t life = 1;  // a device of another life is dead
  bool crashed = false, locked = false;
  Names now, durable;
  std::vector<Names> journal;  // the directory after each change since it was synced

  // False: the power is gone, and this never happened.
  bool point() {
    if (crashed) return false;
    ++points;
    if (crash_at && points >= crash_at) crashed = true;
    return true;
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [file, content] : now) sum += content->now.size();
    return sum;
  }
  void changed() { journal.push_back(now); }
};

FaultyDisk::FaultyDisk(std::uint64_t seed) : impl_(std::make_unique<Impl>()) { impl_->random.seed(seed); }
FaultyDisk::~FaultyDisk() = default;

void FaultyDisk::set(const Faults& faults) {
  const std::lock_guard lock(impl_->mutex);
  impl_->faults = faults;
  impl_->crash_at = faults.crash_at ? impl_->points + faults.crash_at : 0;
}

std::uint64_t FaultyDisk::points() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->points;
}

bool FaultyDisk::crashed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->crashed;
}

void FaultyDisk::crash(std::uint64_t seed) {
  Impl& x = *impl_;
  const std::lock_guard lock(x.mutex);
  x.random.seed(seed);
  const std::size_t kept = x.random() % (x.journal.size() + 1);
  if (kept > 0) x.durable = x.journal[kept - 1];
  x.journal.clear();
  for (auto& [name, file] : x.durable) {
    std::shuffle(file->cache.begin(), file->cache.end(), x.random);
    for (const Unsynced& write : file->cache) {
      const int fate = static_cast<int>(x.random() % 3);  // lost, whole, or torn
      for (std::size_t at = 0; fate != 0 && at < write.bytes.size(); at += kSector) {
        if (fate == 2 && x.random() % 2) continue;
        const std::size_t n = std::min(kSector, write.bytes.size() - at);
        std::memcpy(file->durable.data() + write.offset + at, write.bytes.data() + at, n);
      }
    }
    file->cache.clear();
    file->now = file->durable;
  }
  x.now = x.durable;
  x.faults = {};
  x.crash_at = 0;
  x.crashed = x.locked = false;
  ++x.life;
}

std::vector<std::string> FaultyDisk::files() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<std::string> names;
  for (const auto& [file, content] : impl_->now) names.push_back(file);
  return names;
}

std::vector<std::byte> FaultyDisk::content(const std::string& name) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->now.at(name)->now;
}

void FaultyDisk::put(const std::string& name, std::vector<std::byte> content) {
  const std::lock_guard lock(impl_->mutex);
  auto file = std::make_shared<File>();
  file->now = content;
  file->durable = std::move(content);
  impl_->now[name] = impl_->durable[name] = file;
}

void FaultyDisk::erase(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  impl_->now.erase(name);
  impl_->durable.erase(name);
}

namespace {

class Faulty final : public Device {
 public:
  Faulty(std::shared_ptr<FaultyDisk> disk, FaultyDisk::Impl& impl) : disk_(std::move(disk)), x_(impl) {
    const std::lock_guard lock(x_.mutex);
    life_ = x_.life;
  }
  ~Faulty() override {
    const std::lock_guard lock(x_.mutex);
    if (mine_ && life_ == x_.life) x_.locked = false;
  }
  std::string name() const override { return "faulty"; }
  std::string path() const override { return "faulty"; }

  std::vector<std::string> list() override { return disk_->files(); }
  void lock() override {
    const std::lock_guard lock(x_.mutex);
    if (x_.locked) throw std::runtime_error("the disk tier's directory faulty is in use");
    x_.locked = mine_ = true;
  }
  int open(const std::string& name) override {
    const std::lock_guard lock(x_.mutex);
    if (dead()) return -EIO;
    const auto found = x_.now.find(name);
    return found == x_.now.end() ? -ENOENT : add(found->second);
  }
  int create(const std::string& name, std::uint64_t bytes, bool) override {
    const std::lock_guard lock(x_.mutex);
    if (dead() || !x_.point()) return -EIO;
    if (x_.bytes() + bytes > x_.faults.bytes) return -ENOSPC;
    auto file = std::make_shared<File>();
    file->now.resize(bytes);
    file->durable.resize(bytes);
    x_.now[name] = file;
    x_.changed();
    return add(std::move(file));
  }
  void close(int file) override {
    const std::lock_guard lock(x_.mutex);
    open_.erase(file);
  }
  std::int64_t size(int file) override {
    const std::lock_guard lock(x_.mutex);
    return static_cast<std::int64_t>(open_.at(file)->now.size());
  }
  int rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(x_.mutex);
    if (dead() || !x_.point()) return -EIO;
    const auto found = x_.now.find(from);
    if (found == x_.now.end()) return -ENOENT;
    const FilePtr file = found->second;
    x_.now.erase(found);
    x_.now[to] = file;
    x_.changed();
    return 0;
  }
  int remove(const std::string& name) override {
    const std::lock_guard lock(x_.mutex);
    if (dead() || !x_.point()) return -EIO;
    if (x_.now.erase(name) == 0) return -ENOENT;
    x_.changed();
    return 0;
  }
  int sync_directory() override {
    const std::lock_guard lock(x_.mutex);
    if (dead() || !x_.point() || x_.crashed) return -EIO;
    x_.durable = x_.now;
    x_.journal.clear();
    return 0;
  }
  std::uint64_t free_bytes() override {
    const std::lock_guard lock(x_.mutex);
    const std::uint64_t used = x_.bytes();
    return used < x_.faults.bytes ? x_.faults.bytes - used : 0;
  }

  void submit(std::span<const Io> batch) override {
    for (const Io& io : batch) pending_.push_back({io, 0});
  }
  void reap(std::vector<IoDone>& done, std::chrono::nanoseconds wait) override {
    if (pending_.empty() && wait.count() > 0)
      std::this_thread::sleep_for(std::min(wait, std::chrono::nanoseconds(std::chrono::milliseconds(1))));
    const std::lock_guard lock(x_.mutex);
    std::shuffle(pending_.begin(), pending_.end(), x_.random);
    std::vector<Pending> rest;
    for (Pending& p : pending_) {
      if (p.age++ < x_.faults.hold)
        rest.push_back(p);
      else
        done.push_back({p.io.tag, run(p.io)});
    }
    pending_ = std::move(rest);
  }
  void wake() override {}

 private:
  struct Pending {
    Io io;
    std::uint64_t age;
  };
  bool dead() const { return life_ != x_.life || x_.crashed; }
  int add(FilePtr file) {
    open_[next_] = std::move(file);
    return next_++;
  }
  static bool every(std::uint64_t& count, std::uint64_t n) { return n && ++count % n == 0; }

  std::int64_t run(const Io& io) {
    if (dead()) return -EIO;
    File& file = *open_.at(io.file);
    if (io.op == IoOp::kSync) {
      if (!x_.point() || x_.crashed || every(x_.syncs, x_.faults.fail_syncs_every)) return -EIO;
      for (const Unsynced& write : file.cache)
        std::memcpy(file.durable.data() + write.offset, write.bytes.data(), write.bytes.size());
      file.cache.clear();
      return 0;
    }
    const bool writing = io.op == IoOp::kWrite;
    if (writing ? every(x_.writes, x_.faults.fail_writes_every) : every(x_.reads, x_.faults.fail_reads_every))
      return -EIO;
    if (writing && !x_.point()) return -EIO;
    std::uint64_t bytes = 0, at = io.offset;
    for (unsigned i = 0; i < io.count; ++i) bytes += io.vectors[i].iov_len;
    if (bytes > 4096 && every(x_.transfers, x_.faults.short_every)) bytes = bytes / 4096 / 2 * 4096;
    bytes = at < file.now.size() ? std::min<std::uint64_t>(bytes, file.now.size() - at) : 0;
    const std::uint64_t all = bytes;
    for (unsigned i = 0; i < io.count && bytes > 0; ++i) {
      const std::size_t n = std::min<std::uint64_t>(bytes, io.vectors[i].iov_len);
      auto* const memory = static_cast<std::byte*>(io.vectors[i].iov_base);
      if (writing) {
        std::memcpy(file.now.data() + at, memory, n);
        file.cache.push_back({at, {memory, memory + n}});
      } else {
        std::memcpy(memory, file.now.data() + at, n);
      }
      at += n;
      bytes -= n;
    }
    return x_.crashed ? -EIO : static_cast<std::int64_t>(all);
  }

  std::shared_ptr<FaultyDisk> disk_;
  FaultyDisk::Impl& x_;
  std::uint64_t life_ = 0;
  bool mine_ = false;
  int next_ = 1;
  std::map<int, FilePtr> open_;
  std::vector<Pending> pending_;
};

}  // namespace

std::unique_ptr<Device> make_faulty_device(std::shared_ptr<FaultyDisk> disk) {
  FaultyDisk::Impl& impl = *disk->impl_;
  return std::make_unique<Faulty>(std::move(disk), impl);
}

}  // namespace kvarter
