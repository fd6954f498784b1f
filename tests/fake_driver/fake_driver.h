#pragma once
// A CUDA driver without a card, for tests. Streams are threads; device memory is host memory in ranges of its
// own; whatever a real driver would take badly is written down as a violation. Built into the C++ tests, and
// as a shared library (by a fixture of the Python tests), which is then loaded in place of libcuda.so.1.
//
// One for the process. The functions below set it up and look into it; all are safe from any thread.
#include <cstddef>
#include <cstdint>

extern "C" {

// As new: nothing allocated, no delay, no fault, version 13.0. REQUIRES: no engine uses it.
void fake_reset();
void fake_set_version(int version);
// The driver does not answer by version: its functions are found by their exported names alone.
void fake_set_old(int old);
// Before every piece of work, on any stream: up to so many microseconds, drawn from `seed` for each stream.
void fake_set_delay(unsigned microseconds, unsigned seed);
// Bytes that may be locked.
void fake_set_lock_limit(std::size_t bytes);
// The n-th call from now of this function answers `result` (1: the next).
void fake_fail(const char* function, unsigned n, int result);
// The n-th piece of copying from now does nothing and leaves `result` on its stream, whose events then say
// so.
void fake_fail_copy(unsigned n, int result);
// As if a graph was being captured, globally.
void fake_set_capturing(int capturing);

// The engine's side: device memory, and a stream with kernels that take their time. Stream 0 is the first
// device's default stream.
std::uint64_t fake_alloc(std::size_t bytes);
void fake_free(std::uint64_t memory);
std::uintptr_t fake_stream();
void fake_stream_destroy(std::uintptr_t stream);
// Kernels: wait, then fill / copy out. The host memory is written when the kernel runs.
void fake_fill(std::uintptr_t stream, std::uint64_t memory, std::size_t bytes, int value,
               unsigned microseconds);
void fake_read(std::uintptr_t stream, std::uint64_t memory, std::size_t bytes, void* host,
               unsigned microseconds);
// Waits until a kernel that holds up a stream is let go.
void fake_hold(std::uintptr_t stream);
void fake_let_go(std::uintptr_t stream);
void fake_synchronize(std::uintptr_t stream);

// Numbers by name: "calls:cuMemHostRegister", "locked", "streams", "events", "contexts", "allocations".
std::uint64_t fake_count(const char* what);
// Sentences, one a line, of what should never happen; the number of bytes there are.
std::size_t fake_violations(char* text, std::size_t room);
}

namespace fake_driver {

// As dlsym finds functions in the shared library.
void* find(const char* name);

}  // namespace fake_driver
