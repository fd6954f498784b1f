// A device that keeps nothing: what the log costs without one. Everything is accepted at once, and what is
// read is zeroes, which no record verifies against.
#include <cerrno>
#include <cstring>
#include <map>

#include "disk/finished.h"

namespace kvarter {
namespace {

class Noop final : public Device {
 public:
  std::string name() const override { return "noop"; }
  std::string path() const override { return "nowhere"; }
  std::vector<std::string> list() override {
    std::vector<std::string> names;
    for (const auto& [name, file] : files_) names.push_back(name);
    return names;
  }
  void lock() override {}
  int open(const std::string& name) override {
    const auto file = files_.find(name);
    return file == files_.end() ? -ENOENT : file->second;
  }
  int create(const std::string& name, std::uint64_t bytes, bool) override {
    sizes_.push_back(bytes);
    return files_[name] = static_cast<int>(sizes_.size() - 1);
  }
  void close(int) override {}
  std::int64_t size(int file) override {
    return static_cast<std::int64_t>(sizes_[static_cast<std::size_t>(file)]);
  }
  int rename(const std::string& from, const std::string& to) override {
    auto file = files_.extract(from);
    if (file.empty()) return -ENOENT;
    files_[to] = file.mapped();
    return 0;
  }
  int remove(const std::string& name) override { return files_.erase(name) ? 0 : -ENOENT; }
  int sync_directory() override { return 0; }
  std::uint64_t free_bytes() override { return std::uint64_t{1} << 62; }

  void submit(std::span<const Io> batch) override {
    for (const Io& io : batch) {
      std::int64_t bytes = 0;
      for (unsigned i = 0; i < io.count; ++i) {
        bytes += static_cast<std::int64_t>(io.vectors[i].iov_len);
        if (io.op == IoOp::kRead) std::memset(io.vectors[i].iov_base, 0, io.vectors[i].iov_len);
      }
      finished_.push({io.tag, bytes});
    }
  }
  void reap(std::vector<IoDone>& done, std::chrono::nanoseconds wait) override { finished_.take(done, wait); }
  void wake() override { finished_.wake(); }

 private:
  std::map<std::string, int> files_;
  std::vector<std::uint64_t> sizes_;  // by file
  disk::Finished finished_;
};

}  // namespace

std::unique_ptr<Device> make_noop_device() { return std::make_unique<Noop>(); }

}  // namespace kvarter
