#include <random>
#include <stdexcept>
#include <thread>

#include "copy/batches.h"

namespace kvarter {

namespace {

class Faulty final : public CopyEngine {
 public:
  Faulty(std::shared_ptr<CopyEngine> inner, const Faults& faults)
      : inner_(std::move(inner)), faults_(faults), random_(faults.seed), worker_([this] {
          while (const auto batch = batches_.next()) run(*batch);
        }) {}

  ~Faulty() override {
    batches_.stop();
    worker_.join();
  }

  Ticket submit(Direction direction, std::shared_ptr<const Blocks> blocks, std::vector<Copy> copies,
                std::uint64_t epoch, Stream compute) override {
    return batches_.add(std::make_shared<Batch>(
        Batch{direction, std::move(blocks), std::move(copies), epoch, compute, {}, false}));
  }

  bool poll(Ticket ticket) override { return batches_.poll(ticket); }
  bool wait(Ticket ticket, std::chrono::nanoseconds timeout) override {
    return batches_.wait(ticket, timeout);
  }
  bool order(Ticket ticket, Stream, std::chrono::nanoseconds timeout) override {
    return batches_.wait(ticket, timeout);
  }
  std::string prepare(std::span<std::byte> memory, std::shared_ptr<const void> keep) override {
    return inner_->prepare(memory, std::move(keep));
  }
  CopyAccount account() const override { return inner_->account(); }
  std::vector<Result> take(Ticket ticket) override { return batches_.take(ticket); }

  void fence(std::uint64_t epoch) override {
    batches_.close(epoch);
    inner_->fence(epoch);
    batches_.drain(epoch);
  }

  std::string name() const override { return "faulty(" + inner_->name() + ")"; }

 private:
  void run(Batch& batch) {
    for (std::size_t i = 0; i < batch.copies.size(); ++i) {
      if (faults_.delay.count() > 0) batches_.sleep(faults_.delay, batch.epoch);
      if (batches_.closed(batch.epoch)) break;
      batch.results[i] = pass_on(batch, batch.copies[i]);
    }
    batches_.finish(batch);
  }

  Result pass_on(const Batch& batch, const Copy& copy) {
    ++seen_;
    if (faults_.fail_every && seen_ % faults_.fail_every == 0) return {faults_.fail_status, 0};
    const bool flip = faults_.flip_every && seen_ % faults_.flip_every == 0;
    if (flip && batch.direction == Direction::kScatter) flip_a_byte(batch, copy);
    const Ticket ticket = inner_->submit(batch.direction, batch.blocks, {copy}, batch.epoch, batch.compute);
    while (!inner_->wait(ticket, std::chrono::hours(1))) continue;
    const Result result = inner_->take(ticket).front();
    if (flip && batch.direction == Direction::kGather && result.status == Status::kOk)
      flip_a_byte(batch, copy);
    return result;
  }

  void flip_a_byte(const Batch& batch, const Copy& copy) {
    copy.slot[random_() % batch.blocks->bytes()] ^= std::byte{0x10};
  }

  const std::shared_ptr<CopyEngine> inner_;
  const Faults faults_;
  std::mt19937_64 random_;
  std::uint64_t seen_ = 0;
  Batches batches_;
  std::thread worker_;
};

}  // namespace

std::shared_ptr<CopyEngine> make_faulty_copy_engine(std::shared_ptr<CopyEngine> inner, const Faults& faults) {
  if (!inner) throw std::invalid_argument("found no inner engine, expected one to pass blocks on to");
  if (faults.delay.count() < 0)
    throw std::invalid_argument("delay is " + std::to_string(faults.delay.count()) +
                                " ns, expected at least 0");
  if (faults.fail_status != Status::kTimedOut && faults.fail_status != Status::kRejected)
    throw std::invalid_argument(std::string("fail_status is ") + kvarter::name(faults.fail_status) +
                                ", expected TimedOut or Rejected");
  return std::make_shared<Faulty>(std::move(inner), faults);
}

}  // namespace kvarter
