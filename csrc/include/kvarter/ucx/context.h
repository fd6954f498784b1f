#pragma once
// UCX, loaded into this process, set up for us: which transports, over which interfaces, in segments of which
// size. Settings go to this context alone; environment variables UCX_* of the process still fill in what is
// not set here, and nothing is written to the environment, which other users of UCX share.
//
// Immutable once made, any thread. A context must outlive its workers and memory, and must be made after any
// fork: UCX's sockets and threads do not survive one.
#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace kvarter::ucx {

struct Settings {
  std::string transports = "tcp";    // as UCX_TLS
  std::vector<std::string> devices;  // interfaces, as UCX_NET_DEVICES; UCX may use no other
  std::uint16_t first_port = 0;      // TCP listens on one of these; 0: on any
  std::uint16_t last_port = 0;
  std::size_t segment = 256 << 10;  // bytes of payload in one message over TCP
  std::uint64_t features = 0;       // UCP_FEATURE_* beside active messages, for who shares the context
};

// Of the library that is loaded, which may be newer or older than the headers.
std::tuple<unsigned, unsigned, unsigned> version();

// Every transport/device that this UCX could use on this host. Opens no socket. Throws UcxError.
std::vector<std::string> available();

class Context {
 public:
  struct Cleanup {
    void operator()(ucp_context_h context) const noexcept { ucp_cleanup(context); }
  };

  // Throws std::invalid_argument for settings that contradict themselves, and UcxError, which names the
  // setting, for one that UCX does not take.
  explicit Context(const Settings& settings);

  ucp_context_h get() const noexcept { return context_.get(); }
  // What may be used, as transport/device, e.g. tcp/eth0.
  std::vector<std::string> transports() const;

 private:
  std::unique_ptr<ucp_context, Cleanup> context_;
};

}  // namespace kvarter::ucx
