#include <cstring>

#include "fake_driver/fake_driver.h"
#include "fake_driver/machine.h"

namespace {

using fake_driver::machine;
using fake_driver::Pointer;
using fake_driver::Stream;

// REQUIRES the lock. 0: the default stream of the first device.
Stream* stream_of(std::uintptr_t handle) {
  if (handle) return reinterpret_cast<Stream*>(handle);
  auto& m = machine();
  Stream*& stream = m.default_streams[&m.contexts[0]];
  if (!stream) stream = m.open(&m.contexts[0]);
  return stream;
}

void pause(unsigned microseconds) {
  if (microseconds) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace

extern "C" {

void fake_reset() {
  auto& m = machine();
  std::unique_lock lock(m.mutex);
  while (!m.streams.empty()) m.close(m.streams.begin()->get(), lock);
  m.default_streams.clear();
  m.events.clear();
  m.memory.clear();
  m.locked.clear();
  m.calls.clear();
  m.faults.clear();
  m.copy_faults.clear();
  m.copies = 0;
  m.streams_made = m.delay = m.seed = 0;
  m.version = 13000;
  m.old = m.capturing = false;
  m.lock_limit = ~std::size_t{0};
  m.violations.clear();
  for (auto& context : m.contexts) context.holders = 0;
}

void fake_set_version(int version) {
  const std::lock_guard lock(machine().mutex);
  machine().version = version;
}

void fake_set_old(int old) {
  const std::lock_guard lock(machine().mutex);
  machine().old = old;
}

void fake_set_delay(unsigned microseconds, unsigned seed) {
  const std::lock_guard lock(machine().mutex);
  machine().delay = microseconds;
  machine().seed = seed;
  for (const auto& stream : machine().streams) stream->random.seed(seed + stream->number);
}

void fake_set_lock_limit(std::size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  machine().lock_limit = bytes;
}

void fake_fail(const char* function, unsigned n, int result) {
  const std::lock_guard lock(machine().mutex);
  machine().faults[function][machine().calls[function] + n] = result;
}

void fake_fail_copy(unsigned n, int result) {
  const std::lock_guard lock(machine().mutex);
  machine().copy_faults[machine().copies + n] = result;
}

void fake_set_capturing(int capturing) {
  const std::lock_guard lock(machine().mutex);
  machine().capturing = capturing;
}

std::uint64_t fake_alloc(std::size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  std::vector<char> memory(bytes);
  const auto at = reinterpret_cast<Pointer>(memory.data());
  machine().memory[at] = {std::move(memory), true};
  return at;
}

void fake_free(std::uint64_t memory) {
  const std::lock_guard lock(machine().mutex);
  machine().memory.at(memory).second = false;
}

std::uintptr_t fake_stream() {
  const std::lock_guard lock(machine().mutex);
  return reinterpret_cast<std::uintptr_t>(machine().open(&machine().contexts[0]));
}

void fake_stream_destroy(std::uintptr_t stream) {
  std::unique_lock lock(machine().mutex);
  machine().close(stream_of(stream), lock);
}

void fake_fill(std::uintptr_t stream, std::uint64_t memory, std::size_t bytes, int value,
               unsigned microseconds) {
  const std::lock_guard lock(machine().mutex);
  machine().put(stream_of(stream), [=] {
    pause(microseconds);
    std::memset(reinterpret_cast<void*>(memory), value, bytes);
    return 0;
  });
}

void fake_read(std::uintptr_t stream, std::uint64_t memory, std::size_t bytes, void* host,
               unsigned microseconds) {
  const std::lock_guard lock(machine().mutex);
  machine().put(stream_of(stream), [=] {
    pause(microseconds);
    std::memcpy(host, reinterpret_cast<void*>(memory), bytes);
    return 0;
  });
}

void fake_hold(std::uintptr_t stream) {
  const std::lock_guard lock(machine().mutex);
  ++stream_of(stream)->holds;
}

void fake_let_go(std::uintptr_t stream) {
  const std::lock_guard lock(machine().mutex);
  --stream_of(stream)->holds;
  machine().changed.notify_all();
}

void fake_synchronize(std::uintptr_t stream) {
  std::unique_lock lock(machine().mutex);
  machine().drain(stream_of(stream), lock);
}

std::uint64_t fake_count(const char* what) {
  const std::lock_guard lock(machine().mutex);
  const auto& m = machine();
  const std::string name = what;
  if (name.starts_with("calls:")) {
    const auto found = m.calls.find(name.substr(6));
    return found == m.calls.end() ? 0 : found->second;
  }
  std::uint64_t sum = 0;
  if (name == "locked")
    for (const auto& [at, bytes] : m.locked) sum += bytes;
  if (name == "streams") sum = m.streams.size();
  if (name == "events") sum = m.events.size();
  if (name == "contexts") sum = static_cast<std::uint64_t>(m.contexts[0].holders + m.contexts[1].holders);
  if (name == "allocations")
    for (const auto& [at, memory] : m.memory) sum += memory.second;
  return sum;
}

std::size_t fake_violations(char* text, std::size_t room) {
  const std::lock_guard lock(machine().mutex);
  const std::string& all = machine().violations;
  if (room > 0) {
    const std::size_t some = std::min(room - 1, all.size());
    std::memcpy(text, all.data(), some);
    text[some] = 0;
  }
  return all.size();
}
}
