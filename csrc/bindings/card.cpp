// A device's memory as bench/ and the tests use it, in place of an engine: raw allocations, and one large
// copy as the limit that other copies stand beside.
#include <chrono>
#include <cstring>

#include "bindings.h"
#include "copy/device.h"
#include "copy/locked.h"
#include "kvarter/mapping.h"

namespace kvarter::bindings {

namespace {

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

class Card {
 public:
  Card(int device, const std::string& driver)
      : context_(std::make_shared<const Context>(load_cuda(driver), device)) {
    const Current current(*context_);
    stream_ = std::make_unique<OwnStream>(context_);
  }
  ~Card() {
    const Current current(*context_);
    stream_.reset();
  }

  DevicePointer allocate(std::size_t bytes) {
    const Current current(*context_);
    DevicePointer at = 0;
    require(context_->driver().allocate(&at, bytes), "allocating " + std::to_string(bytes) + " bytes");
    return at;
  }

  void release(DevicePointer at) {
    const Current current(*context_);
    require(context_->driver().release(at), "releasing memory");
  }

  void write(DevicePointer at, const Bytes& bytes) {
    const Current current(*context_);
    require(context_->driver().to_device(at, bytes.data(), static_cast<std::size_t>(bytes.size()),
                                         stream_->handle()),
            "writing");
    finish();
  }

  Bytes read(DevicePointer at, py::ssize_t count) {
    const Current current(*context_);
    Bytes bytes(count);
    require(context_->driver().to_host(bytes.mutable_data(), at, static_cast<std::size_t>(count),
                                       stream_->handle()),
            "reading");
    finish();
    return bytes;
  }

  // Of page-locked memory, in one piece.
  double copy_seconds(bool to_device, DevicePointer at, const std::shared_ptr<const Mapping>& mapping,
                      std::size_t bytes) {
    const py::gil_scoped_release release;
    const Current current(*context_);
    const auto memory = mapping->payload(0);
    if (bytes > memory.size())
      throw std::invalid_argument(std::to_string(bytes) + " bytes of an arena of " +
                                  std::to_string(memory.size()));
    const LockedRange locked(context_, memory, mapping);
    const auto begun = std::chrono::steady_clock::now();
    require(to_device ? context_->driver().to_device(at, memory.data(), bytes, stream_->handle())
                      : context_->driver().to_host(memory.data(), at, bytes, stream_->handle()),
            "copying");
    finish();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  }

 private:
  void require(int result, const std::string& what) const {
    if (result != 0) throw DriverError(context_->driver(), what, result);
  }
  void finish() const { require(context_->driver().stream_synchronize(stream_->handle()), "waiting"); }

  std::shared_ptr<const Context> context_;
  std::unique_ptr<OwnStream> stream_;
};

}  // namespace

void register_card(py::module_& m) {
  py::class_<Card>(m.attr("_bench").cast<py::module_>(), "Card",
                   "One CUDA device. Raises RuntimeError with what the driver answered. Not thread-safe.")
      .def(py::init<int, const std::string&>(), py::arg("device") = 0, py::arg("driver") = "")
      .def("allocate", &Card::allocate, py::arg("bytes"), "The address of that much memory.")
      .def("release", &Card::release, py::arg("address"))
      .def("write", &Card::write, py::arg("address"), py::arg("bytes"), "uint8[n] into the device's memory.")
      .def("read", &Card::read, py::arg("address"), py::arg("count"), "uint8[count] of the device's memory.")
      .def("copy_seconds", &Card::copy_seconds, py::arg("to_device"), py::arg("address"), py::arg("mapping"),
           py::arg("bytes"),
           "Seconds that one copy from or to the mapping's first arena takes, page-locked.");
}

}  // namespace kvarter::bindings
