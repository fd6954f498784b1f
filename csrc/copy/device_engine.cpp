// The copy engine for one device's memory.
#include "copy/device_engine.h"

#include <algorithm>

#include "copy/lane.h"

namespace kvarter {

namespace {

class DeviceEngine final : public CopyEngine {
 public:
  DeviceEngine(std::string name, std::shared_ptr<const Driver> driver, const DeviceOptions& options)
      : name_(std::move(name)),
        context_(std::make_shared<const Context>(std::move(driver), options.device)),
        locked_(context_) {
    const Current current(*context_, true);
    for (const Direction direction : {Direction::kGather, Direction::kScatter})
      lanes_[static_cast<int>(direction)] = std::make_unique<Lane>(context_, batches_, locked_, direction,
                                                                   options.threads, options.kernel_below);
  }

  ~DeviceEngine() override {
    batches_.stop();
    const Current current(*context_, true);
    jobs_.clear();
    for (auto& lane : lanes_) lane.reset();
  }

  Ticket submit(Direction direction, std::shared_ptr<const Blocks> blocks, std::vector<Copy> copies,
                std::uint64_t epoch, Stream compute) override {
    auto batch = std::make_shared<Batch>(
        Batch{direction, std::move(blocks), std::move(copies), epoch, compute, {}, false});
    const Current current(*context_);
    const Ticket ticket = batches_.begin(batch);
    auto job = lane(direction).submit(std::move(batch));
    const std::lock_guard lock(mutex_);
    jobs_.emplace(ticket, std::move(job));
    return ticket;
  }

  bool order(Ticket ticket, Stream compute, std::chrono::nanoseconds timeout) override {
    const auto begun = std::chrono::steady_clock::now();
    if (batches_.poll(ticket)) return true;
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      const auto found = jobs_.find(ticket);
      if (found == jobs_.end()) return true;  // taken this moment, hence done
      job = found->second;
    }
    timeout = std::min<std::chrono::nanoseconds>(timeout, std::chrono::hours(24 * 365));
    const Current current(*context_);
    const auto ordered = lane(job->batch->direction).order(*job, reinterpret_cast<Handle>(compute), timeout);
    if (ordered) return *ordered;
    return batches_.wait(ticket, timeout - (std::chrono::steady_clock::now() - begun));
  }

  std::string prepare(std::span<std::byte> memory, std::shared_ptr<const void> keep) override {
    const Current current(*context_, true);
    std::string refused = locked_.add(memory, std::move(keep));
    for (auto& each : lanes_) each->measure();
    return refused;
  }

  CopyAccount account() const override {
    CopyAccount account;
    account.locked_bytes = locked_.bytes();
    account.refused_bytes = locked_.refused_bytes();
    for (const auto& each : lanes_) {
      account.batched_bytes += each->mover().bytes(Way::kBatch);
      account.single_bytes += each->mover().bytes(Way::kSingle);
      account.kernel_bytes += each->mover().bytes(Way::kKernel);
      account.errors += each->errors();
    }
    account.gather_kernel = lanes_[static_cast<int>(Direction::kGather)]->mover().kernel_below();
    account.scatter_kernel = lanes_[static_cast<int>(Direction::kScatter)]->mover().kernel_below();
    return account;
  }

  bool poll(Ticket ticket) override { return batches_.poll(ticket); }
  bool wait(Ticket ticket, std::chrono::nanoseconds timeout) override {
    return batches_.wait(ticket, timeout);
  }
  std::vector<Result> take(Ticket ticket) override {
    auto results = batches_.take(ticket);
    const std::lock_guard lock(mutex_);
    jobs_.erase(ticket);
    return results;
  }

  void fence(std::uint64_t epoch) override {
    batches_.close(epoch);
    batches_.drain(epoch);
  }

  std::string name() const override { return name_; }

 private:
  Lane& lane(Direction direction) { return *lanes_[static_cast<int>(direction)]; }

  const std::string name_;
  const std::shared_ptr<const Context> context_;
  LockedMemory locked_;
  Batches batches_;
  std::unique_ptr<Lane> lanes_[2];
  std::mutex mutex_;
  std::unordered_map<Ticket, std::shared_ptr<Job>> jobs_;
};

}  // namespace

std::shared_ptr<CopyEngine> make_device_engine(std::string name, std::shared_ptr<const Driver> driver,
                                               const DeviceOptions& options) {
  if (options.threads == 0) throw std::invalid_argument("found 0 threads, expected at least 1");
  return std::make_shared<DeviceEngine>(std::move(name), std::move(driver), options);
}

std::shared_ptr<CopyEngine> make_cuda_copy_engine(const DeviceOptions& options) {
  return make_device_engine("cuda", load_cuda(options.driver), options);
}

DriverFound find_cuda_driver(const std::string& path) {
  DriverFound found;
  try {
    const auto driver = load_cuda(path);
    driver->version(&found.version);
    found.batches = driver->batch != nullptr;
    int count = 0;
    driver->device_count(&count);
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      char name[256] = "";
      int device = 0;
      if (driver->device_get(&device, ordinal) == 0) driver->device_name(name, sizeof name, device);
      found.devices.emplace_back(name);
    }
  } catch (const std::runtime_error& error) {
    found.missing = error.what();
  }
  return found;
}

}  // namespace kvarter
