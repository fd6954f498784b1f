#pragma once
// Memory that an engine owns and lends us: its CPU pool, as any writable contiguous buffer. Slots in it have
// arena 0. The buffer is held until close(), which is refused while a log still moves bytes in and out of it.
#include <atomic>
#include <span>

#include "convert.h"
#include "kvarter/pool.h"

namespace kvarter::bindings {

class ForeignArena {
 public:
  explicit ForeignArena(py::handle object) {
    if (!buffer_.get(object, PyBUF_WRITABLE | PyBUF_ND))
      type_error("expected a writable contiguous buffer as a foreign arena", object);
    const auto at = reinterpret_cast<std::uintptr_t>(buffer_.view.buf);
    const auto bytes = static_cast<std::uint64_t>(buffer_.view.len);
    if (at % kGranule != 0 || bytes % kGranule != 0 || bytes == 0)
      throw py::value_error("a foreign arena of " + std::to_string(bytes) + " bytes that begins " +
                            std::to_string(at % kGranule) + " bytes into a page; expected whole pages of " +
                            std::to_string(kGranule));
  }
  std::span<std::byte> memory() const {
    if (!buffer_.view.obj) throw py::value_error("the foreign arena is closed");
    return {static_cast<std::byte*>(buffer_.view.buf), static_cast<std::size_t>(buffer_.view.len)};
  }
  void lend() {
    memory();
    ++users_;
  }
  void give_back() noexcept { --users_; }
  void close() {
    if (users_ > 0)
      throw py::value_error(std::to_string(users_) +
                            " disk logs still use the foreign arena: close them first");
    if (buffer_.view.obj) PyBuffer_Release(&buffer_.view);
  }

 private:
  Buffer buffer_;
  std::atomic<int> users_ = 0;
};

}  // namespace kvarter::bindings
