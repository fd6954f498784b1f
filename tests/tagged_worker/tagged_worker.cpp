// A worker of ours that exchanges tagged messages with whoever it is told of: `tagged_worker SIZE...`. It
// prints its address in hexadecimal, reads the other's, and of each size receives a message, looks at it and
// sends another.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvarter/ucx/context.h"
#include "kvarter/ucx/endpoint.h"
#include "kvarter/ucx/error.h"
#include "kvarter/ucx/worker.h"

using namespace kvarter::ucx;

namespace {

constexpr ucp_tag_t kTag = 7;

// The same bytes as coexist_words.noise_of makes.
std::vector<std::uint8_t> noise(std::uint64_t seed, std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::uint64_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::uint8_t>((i * 2654435761U + seed * 40503U) >> 8);
  return bytes;
}

void finish(Worker& worker, ucs_status_ptr_t request, const char* what) {
  if (UCS_PTR_IS_PTR(request)) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS) worker.progress();
    require_ok(ucp_request_check_status(request), what);
    ucp_request_free(request);
  } else {
    require_ok(UCS_PTR_STATUS(request), what);
  }
}

}  // namespace

int main(int count, char** sizes) {
  const Context context({.transports = "tcp", .devices = {"lo"}, .features = UCP_FEATURE_TAG});
  Worker worker(context);
  for (const std::byte byte : worker.address()) std::printf("%02x", std::to_integer<unsigned>(byte));
  std::printf("\n");
  std::fflush(stdout);
  std::string hex;
  std::cin >> hex;
  std::vector<std::byte> address;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    address.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  Endpoint other(worker, address, [](ucs_status_t status) { require_ok(status, "reach the other"); });
  for (int i = 1; i < count; ++i) {
    const std::size_t size = std::stoul(sizes[i]);
    std::vector<std::uint8_t> got(size);
    ucp_request_param_t param{};
    finish(worker, ucp_tag_recv_nbx(worker.get(), got.data(), size, kTag, ~ucp_tag_t{0}, &param), "receive");
    if (got != noise(size, size)) throw std::runtime_error("other bytes than were sent");
    const auto sent = noise(size + 1, size);
    finish(worker, ucp_tag_send_nbx(other.get(), sent.data(), size, kTag, &param), "send");
  }
  const ucp_request_param_t all{};
  finish(worker, ucp_worker_flush_nbx(worker.get(), &all), "flush");
  std::string end;
  std::cin >> end;    // the other has it all
  other.close(true);  // the other does not listen any more
  while (!other.closed()) worker.progress();
  std::puts("exchanged");
}
