#pragma once
// The disk log as Python holds it.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.h"
#include "foreign.h"
#include "kvarter/disk.h"

namespace kvarter::bindings {

using Slots = py::array_t<Slot, py::array::c_style>;
using Memory = std::variant<Pool*, ForeignArena*>;

// The log and the memory whose slots it moves. close() lets go of it; calls under way end first.
class BoundLog {
 public:
  BoundLog(const std::string& path, const Memory& memory, const Clock& clock, const DiskLog::Options& options,
           const std::variant<std::string, std::shared_ptr<FaultyDisk>>& device)
      : foreign_(std::holds_alternative<ForeignArena*>(memory) ? std::get<ForeignArena*>(memory) : nullptr) {
    if (foreign_)
      arenas_.push_back(foreign_->memory());
    else
      for (const Memfd& arena : std::get<Pool*>(memory)->arenas())
        arenas_.emplace_back(arena.data(), arena.bytes());
    open(path, clock, options, device);
    if (foreign_) foreign_->lend();
  }
  ~BoundLog() {
    if (log_ && foreign_) foreign_->give_back();
  }
  void open(const std::string& path, const Clock& clock, const DiskLog::Options& options,
            const std::variant<std::string, std::shared_ptr<FaultyDisk>>& device) {
    const py::gil_scoped_release release;
    auto made = std::holds_alternative<std::shared_ptr<FaultyDisk>>(device)
                    ? make_faulty_device(std::get<std::shared_ptr<FaultyDisk>>(device))
                    : make_device(path, std::get<std::string>(device), options.queue_depth);
    log_ = std::make_shared<DiskLog>(options, std::move(made), clock);
  }
  std::shared_ptr<DiskLog> log() const {
    if (!log_) throw py::value_error("the disk log is closed");
    return log_;
  }
  void close() {
    auto last = std::move(log_);
    if (!last) return;
    {
      const py::gil_scoped_release release;
      last.reset();
    }
    if (foreign_) foreign_->give_back();
  }
  std::vector<Span> spans(const Slots& slots) const {
    std::vector<Span> spans;
    spans.reserve(static_cast<std::size_t>(slots.size()));
    for (py::ssize_t i = 0; i < slots.size(); ++i) {
      const Slot& slot = slots.data()[i];
      const std::uint64_t whole = round_up(slot.length, kGranule);
      if (slot.arena >= arenas_.size() || slot.offset % kGranule != 0 || whole < slot.length ||
          slot.offset > arenas_[slot.arena].size() || whole > arenas_[slot.arena].size() - slot.offset)
        throw py::value_error("slots[" + std::to_string(i) + "], " + std::to_string(slot.length) +
                              " bytes at " + std::to_string(slot.offset) +
                              ", is not in the pool, or not at a page");
      spans.push_back({arenas_[slot.arena].data() + slot.offset, slot.length, slot.checksum});
    }
    return spans;
  }

 private:
  std::vector<std::span<std::byte>> arenas_;
  ForeignArena* foreign_;  // kept alive by the Python object
  std::shared_ptr<DiskLog> log_;
};

}  // namespace kvarter::bindings
