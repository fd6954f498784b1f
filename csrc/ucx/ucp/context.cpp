#include "kvarter/ucx/context.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kvarter/ucx/error.h"

namespace kvarter::ucx {

namespace {

constexpr std::size_t kSegmentRoom = 1024;  // for UCX's header and ours: one message fits one segment

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ReleaseConfig>;

using Choices = std::vector<std::pair<const char*, std::string>>;
using Owned = std::unique_ptr<ucp_context, Context::Cleanup>;

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : ",") + word;
  return all;
}

// Whether a list as UCX_TLS may include one of these transports.
bool includes(const std::string& transports, std::initializer_list<std::string_view> names) {
  std::istringstream words(transports);
  for (std::string word; std::getline(words, word, ',');)
    if (word == "all" || word.starts_with('^') || std::ranges::find(names, word) != names.end()) return true;
  return false;
}

bool includes_tcp(const std::string& transports) { return includes(transports, {"tcp"}); }

// UCX warns of settings that none of its transports take, hence only those of what may be used.
Choices choices(const Settings& settings) {
  Choices all{{"TLS", settings.transports}, {"RNDV_THRESH", "inf"}, {"KEEPALIVE_INTERVAL", "1s"}};
  if (!settings.devices.empty()) all.emplace_back("NET_DEVICES", joined(settings.devices));
  if (includes_tcp(settings.transports)) {
    const std::string segment = std::to_string(settings.segment + kSegmentRoom);
    all.emplace_back("TCP_TX_SEG_SIZE", segment);
    all.emplace_back("TCP_RX_SEG_SIZE", segment);
    if (settings.first_port != 0)
      all.emplace_back("TCP_PORT_RANGE",
                       std::to_string(settings.first_port) + "-" + std::to_string(settings.last_port));
  }
  // Else shared memory is refused where peers may fail.
  if (includes(settings.transports, {"posix", "sm", "shm"})) all.emplace_back("POSIX_ERROR_HANDLING", "y");
  if (includes(settings.transports, {"sysv", "sm", "shm"})) all.emplace_back("SYSV_ERROR_HANDLING", "y");
  return all;
}

Owned start(const Choices& choices, std::uint64_t features) {
  ucp_config_t* read = nullptr;
  require_ok(ucp_config_read(nullptr, nullptr, &read), "read its configuration");
  const Config config(read);
  std::string all;
  for (const auto& [name, value] : choices) {
    const std::string choice = std::string(name) + "=" + value;
    require_ok(ucp_config_modify(config.get(), name, value.c_str()), "set " + choice);
    all += " " + choice;
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | features;
  params.name = "kvarter";
  ucp_context_h context = nullptr;
  require_ok(ucp_init(&params, config.get(), &context), "start with" + all);
  return Owned(context);
}

// What a context may use, in the lines that UCX prints: "#   resource 0  :  md 0  dev 0  flags -- tcp/lo".
std::vector<std::string> resources(ucp_context_h context) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* file = ::open_memstream(&text, &size);
  if (!file) throw std::bad_alloc();
  ucp_context_print_info(context, file);
  std::fclose(file);
  std::istringstream lines(text);
  std::free(text);
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);)
    if (line.find("resource ") != std::string::npos)
      if (const auto at = line.rfind(' '); line.find('/', at) != std::string::npos)
        found.push_back(line.substr(at + 1));
  return found;
}

}  // namespace

std::tuple<unsigned, unsigned, unsigned> version() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return {major, minor, release};
}

Context::Context(const Settings& settings) {
  if (settings.devices.empty() && includes_tcp(settings.transports))
    throw std::invalid_argument(
        "transports '" + settings.transports +
        "' include TCP and no devices are named: UCX would listen on every interface");
  if (settings.first_port > settings.last_port)
    throw std::invalid_argument("ports are " + std::to_string(settings.first_port) + " to " +
                                std::to_string(settings.last_port) + ", expected the lower one first");
  context_ = start(choices(settings), settings.features);
}

std::vector<std::string> Context::transports() const { return resources(context_.get()); }

std::vector<std::string> available() { return resources(start({}, 0).get()); }

}  // namespace kvarter::ucx
