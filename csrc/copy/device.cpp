#include "copy/device.h"

namespace kvarter {

namespace {

constexpr unsigned kApartFromDefaultStream = 1;            // CU_STREAM_NON_BLOCKING
constexpr unsigned kSleepWhileWaiting = 1, kNoTiming = 2;  // CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING
constexpr int kRelaxed = 2;                                // CU_STREAM_CAPTURE_MODE_RELAXED

}  // namespace

Context::Context(std::shared_ptr<const Driver> driver, int ordinal) : driver_(std::move(driver)) {
  int count = 0;
  if (const int result = driver_->device_count(&count); result != 0)
    throw DriverError(*driver_, "counting devices", result);
  if (ordinal < 0 || ordinal >= count)
    throw std::runtime_error("device " + std::to_string(ordinal) + " is asked for, and the driver has " +
                             std::to_string(count));
  if (const int result = driver_->device_get(&device_, ordinal); result != 0)
    throw DriverError(*driver_, "looking for device " + std::to_string(ordinal), result);
  if (const int result = driver_->context_retain(&context_, device_); result != 0)
    throw DriverError(*driver_, "retaining the context of device " + std::to_string(ordinal), result);
}

Context::~Context() { driver_->context_release(device_); }

Current::Current(const Context& context, bool apart_from_captures) : driver_(context.driver()) {
  driver_.context_push(context.handle());
  if (!apart_from_captures || !driver_.exchange_capture_mode) return;
  capture_mode_ = kRelaxed;
  if (driver_.exchange_capture_mode(&capture_mode_) != 0) capture_mode_ = -1;
}

Current::~Current() {
  if (capture_mode_ >= 0) driver_.exchange_capture_mode(&capture_mode_);
  Handle popped = nullptr;
  driver_.context_pop(&popped);
}

OwnStream::OwnStream(std::shared_ptr<const Context> context) : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  int least = 0, greatest = 0;
  if (driver.priority_range(&least, &greatest) != 0) least = 0;
  if (const int result = driver.stream_create(&stream_, kApartFromDefaultStream, least); result != 0)
    throw DriverError(driver, "creating a stream", result);
}

OwnStream::~OwnStream() {
  context_->driver().stream_synchronize(stream_);
  context_->driver().stream_destroy(stream_);
}

Events::~Events() {
  for (Handle event : free_) context_->driver().event_destroy(event);
}

std::shared_ptr<void> Events::take() {
  Handle event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (!event && context_->driver().event_create(&event, kSleepWhileWaiting | kNoTiming) != 0) return nullptr;
  return {event, [this](Handle back) {
            const std::lock_guard lock(mutex_);
            free_.push_back(back);
          }};
}

}  // namespace kvarter
