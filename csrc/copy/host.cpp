#include <thread>

#include "copy/batches.h"
#include "copy/kernel.h"

namespace kvarter {

namespace {

class Host final : public CopyEngine {
 public:
  explicit Host(unsigned threads) : kernel_(copy_kernel()) {
    for (unsigned i = 0; i < threads; ++i)
      workers_.emplace_back([this] {
        while (const auto batch = batches_.next()) run(*batch);
      });
  }

  ~Host() override {
    batches_.stop();
    for (std::thread& worker : workers_) worker.join();
  }

  Ticket submit(Direction direction, std::shared_ptr<const Blocks> blocks, std::vector<Copy> copies,
                std::uint64_t epoch, Stream) override {
    auto batch =
        std::make_shared<Batch>(Batch{direction, std::move(blocks), std::move(copies), epoch, 0, {}, false});
    if (!workers_.empty()) return batches_.add(std::move(batch));
    const Ticket ticket = batches_.begin(batch);
    run(*batch);
    return ticket;
  }

  bool poll(Ticket ticket) override { return batches_.poll(ticket); }
  bool wait(Ticket ticket, std::chrono::nanoseconds timeout) override {
    return batches_.wait(ticket, timeout);
  }
  bool order(Ticket ticket, Stream, std::chrono::nanoseconds timeout) override {
    return batches_.wait(ticket, timeout);
  }
  std::string prepare(std::span<std::byte>, std::shared_ptr<const void>) override { return {}; }
  std::vector<Result> take(Ticket ticket) override { return batches_.take(ticket); }

  void fence(std::uint64_t epoch) override {
    batches_.close(epoch);
    batches_.drain(epoch);
  }

  std::string name() const override { return "host"; }

 private:
  void run(Batch& batch) {
    for (std::size_t i = 0; i < batch.copies.size() && !batches_.closed(batch.epoch); ++i)
      batch.results[i] = copy_block(kernel_, batch.direction, *batch.blocks, batch.copies[i],
                                    i + 1 < batch.copies.size() ? &batch.copies[i + 1] : nullptr);
    batches_.finish(batch);
  }

  const CopyKernel& kernel_;
  Batches batches_;
  std::vector<std::thread> workers_;
};

}  // namespace

std::shared_ptr<CopyEngine> make_host_copy_engine(unsigned threads) {
  return std::make_shared<Host>(threads);
}

}  // namespace kvarter
