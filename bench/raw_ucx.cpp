// UCX and nothing else, set as our engine sets it: the limit that it is measured beside. Blocks scattered on
// both sides travel as eager active messages of at most a segment, 16 under way; the receiver copies each to
// its place, and neither checks nor hashes anything. Both sides poll for as long as a round takes, and
// let others run when nothing came.
//
//   raw_ucx own|ask DEVICE BYTES BLOCK SEGMENT
//
// Both say their address and read the other's, as lines of hexadecimal. Then "go" on both standard inputs is
// one round; `ask` answers with its seconds, both with their CPU seconds.
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr unsigned kAsk = 1, kData = 2;
constexpr std::size_t kWindow = 16;

void check(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  std::fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
  std::exit(1);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::vector<std::size_t> scattered(std::size_t count, unsigned seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

struct Side {
  ucp_worker_h worker = nullptr;
  ucp_ep_h peer = nullptr;
  char* memory = nullptr;
  std::size_t received = 0, under_way = 0;
  bool asked = false;
};

struct Message {
  std::uint64_t offset;
  Side* side;
};

ucs_status_t on_ask(void* side, const void*, std::size_t, void*, std::size_t, const ucp_am_recv_param_t*) {
  static_cast<Side*>(side)->asked = true;
  return UCS_OK;
}

ucs_status_t on_data(void* arg, const void* header, std::size_t, void* data, std::size_t bytes,
                     const ucp_am_recv_param_t*) {
  auto* side = static_cast<Side*>(arg);
  std::uint64_t offset = 0;
  std::memcpy(&offset, header, sizeof offset);
  std::memcpy(side->memory + offset, data, bytes);
  side->received += bytes;
  return UCS_OK;
}

void send(Side& side, unsigned id, Message& message, const char* data, std::size_t bytes) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.user_data = &message;
  param.cb.send = [](void* request, ucs_status_t status, void* sent) {
    check(status, "send");
    --static_cast<Message*>(sent)->side->under_way;
    ucp_request_free(request);
  };
  message.side = &side;
  const auto request =
      ucp_am_send_nbx(side.peer, id, &message.offset, sizeof message.offset, data, bytes, &param);
  if (UCS_PTR_IS_PTR(request))
    ++side.under_way;
  else
    check(UCS_PTR_STATUS(request), "send");
}

void poll(const Side& side) {
  if (ucp_worker_progress(side.worker) == 0) sched_yield();
}

std::string hexadecimal(const unsigned char* bytes, std::size_t size) {
  std::string text;
  char digits[3];
  for (std::size_t i = 0; i < size; ++i) {
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const bool asks = std::strcmp(argv[1], "ask") == 0;
  const std::size_t bytes = std::stoul(argv[3]), block = std::stoul(argv[4]), segment = std::stoul(argv[5]);
  const std::string room = std::to_string(segment + 1024);

  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "read");
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"TLS", "tcp"},
                                                                  {"NET_DEVICES", argv[2]},
                                                                  {"RNDV_THRESH", "inf"},
                                                                  {"TCP_TX_SEG_SIZE", room.c_str()},
                                                                  {"TCP_RX_SEG_SIZE", room.c_str()}})
    check(ucp_config_modify(config, name, value), name);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config, &context), "init");
  Side side;
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  check(ucp_worker_create(context, &worker_params, &side.worker), "worker");
  for (const unsigned id : {kAsk, kData}) {
    ucp_am_handler_param_t handler{};
    handler.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.cb = id == kAsk ? on_ask : on_data;
    handler.arg = &side;
    check(ucp_worker_set_am_recv_handler(side.worker, &handler), "handler");
  }
  side.memory =
      static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(side.memory + i, &word, 8);
  }

  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  check(ucp_worker_get_address(side.worker, &address, &size), "address");
  std::cout << hexadecimal(reinterpret_cast<unsigned char*>(address), size) << std::endl;
  std::string line;
  std::getline(std::cin, line);
  std::vector<unsigned char> other;
  for (std::size_t i = 0; i + 1 < line.size(); i += 2)
    other.push_back(static_cast<unsigned char>(std::stoi(line.substr(i, 2), nullptr, 16)));
  ucp_ep_params_t ep{};
  ep.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  ep.address = reinterpret_cast<ucp_address_t*>(other.data());
  ep.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  check(ucp_ep_create(side.worker, &ep, &side.peer), "endpoint");

  std::vector<Message> messages(bytes / std::min(block, segment));
  for (unsigned round = 0; std::getline(std::cin, line); ++round) {
    const auto begun = std::chrono::steady_clock::now();
    const double used = cpu_seconds();
    if (asks) {
      side.received = 0;
      Message ask{};
      send(side, kAsk, ask, nullptr, 0);
      while (side.received < bytes || side.under_way != 0) poll(side);
    } else {
      while (!side.asked) poll(side);
      side.asked = false;
      const auto from = scattered(bytes / block, round), to = scattered(bytes / block, round + 1000);
      std::size_t sent = 0;
      for (std::size_t i = 0; i < from.size(); ++i)
        for (std::size_t at = 0; at < block; at += segment, ++sent) {
          while (side.under_way >= kWindow) poll(side);
          messages[sent].offset = to[i] * block + at;
          send(side, kData, messages[sent], side.memory + from[i] * block + at,
               std::min(segment, block - at));
        }
      while (side.under_way != 0) poll(side);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
    std::cout << seconds.count() << ' ' << cpu_seconds() - used << std::endl;
  }
  std::_Exit(0);
}
