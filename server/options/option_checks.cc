// Checks the options against each other. The forms in the table check single values.

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "base/net/host_port.h"
#include "base/net/ip_network.h"
#include "base/string_cat.h"
#include "server/observability/http_server.h"
#include "server/options/option_table.h"
#include "server/rpc/transport/unix_socket.h"
#include "server/validation/names.h"
#include "state_store/tiers/redis/redis_endpoint.h"

namespace gdn {
namespace {

class OptionChecks {
 public:
  explicit OptionChecks(const ServerOptions& options) : options_(options) {}

  std::vector<std::string> All() {
    CheckModels();
    CheckAddresses();
    CheckMemory();
    CheckTiers();
    return std::move(faults_);
  }

 private:
  // Adds a fault if something is `wrong`. `words` are joined to its text.
  template <typename... Words>
  void If(bool wrong, const Words&... words) {
    if (wrong) faults_.push_back(StrCat(words...));
  }
  void AtLeast(std::string_view flag, std::optional<int64_t> value, int64_t low) {
    If(value.has_value() && *value < low, "--", flag, " is ", value.value_or(0), ", expected ", low, " or more");
  }

  void CheckModels() {
    std::map<std::string, int> models, adapters;
    for (const auto& [name, path] : options_.models) {
      const bool good = !path.empty() && CheckSessionId(name).ok();
      If(!good, "--model is '", name, path.empty() ? "" : "=", path,
         "', expected NAME=PATH with a NAME of [A-Za-z0-9._~-]");
      If(good && models[name]++ > 0, "--model names '", name, "' twice; give each a name of its own");
    }
    for (const auto& [name, path] : options_.adapters) {
      const bool good = !name.empty() && !path.empty();
      If(!good, "--adapter is '", name, path.empty() ? "" : "=", path,
         "', expected NAME=PATH with the NAME of a --model");
      If(good && !models.contains(name), "--adapter is for '", name,
         "', which no --model names; expected the NAME of a --model");
      If(good && adapters[name]++ > 0, "--adapter names '", name, "' twice; expected one adapter for a model");
    }
    If(!options_.load.heads.is_whole() && options_.models.empty(),
       "--heads is given and no --model; expected a model whose heads they are");
    If(!options_.load.layers.empty() && options_.models.empty(),
       "--layers is given and no --model; expected a model whose layers they are");
    If(options_.memory.state_slots > 0 && options_.models.empty(),
       "--state-slots counts states of a --model and none is given; use --device-state-bytes");
    If(options_.device.gpu_device != 0 && !options_.device.gpu_devices.empty(),
       "--gpu-device and --gpu-devices are both given, expected one of them");
  }

  void CheckAddresses() {
    If(options_.listen.empty(), "--listen is empty, expected HOST:PORT or unix:/PATH");
    std::vector<std::string> good;
    for (const std::string& address : options_.listen) {
      const auto path = UnixSocketPath(address);
      const absl::Status status = path.has_value() ? absl::OkStatus() : CheckHostPort(address);
      const bool relative = path.has_value() && !absl::StartsWith(*path, "/");
      If(relative, "--listen is '", address, "', expected unix:/PATH with a whole path");
      If(!status.ok(), "--listen ", status.message(), "; unix:/PATH is a socket file");
      if (status.ok() && !relative) good.push_back(address);
    }
    if (!options_.http_listen.empty()) {
      absl::Status status = CheckHostPort(options_.http_listen);
      if (status.ok()) status = CheckHttpAddress(options_.http_listen);
      If(!status.ok(), "--http-listen: ", status.message());
    }
    for (const std::string& proxy : options_.transport.connections.proxies) {
      If(!NetworkOf(proxy).has_value(), "--proxies has '", proxy, "', expected IP addresses such as 10.0.0.7");
    }
    const absl::Status status = CheckSecurityOptions(options_.security, good);
    If(!status.ok(), status.message());
  }

  void CheckMemory() {
    const MemoryOptions& memory = options_.memory;
    If(memory.state_slots > 0 && memory.device_state_bytes > 0,
       "--state-slots and --device-state-bytes are both given, expected one of them");
    AtLeast("stored-reply-bytes", memory.stored_reply_bytes, options_.limits.max_stored_reply_bytes);
    AtLeast("call-bytes", memory.call_bytes, options_.limits.max_message_bytes);
    const std::optional<int64_t> transport = options_.transport.memory_bytes;
    if (transport != 0) AtLeast("transport-bytes", transport, 4 * options_.limits.max_message_bytes);  // 0: automatic
  }

  void CheckTiers() {
    const StateServiceOptions& states = options_.states;
    const bool no_redis = states.redis.endpoint.empty();
    const bool checkpoints = states.policy.every_tokens > 0 || states.policy.every < absl::InfiniteDuration();
    If(checkpoints && states.disk.directory.empty() && no_redis,
       "checkpoints need a place to be kept in: give --disk-dir or --redis as well");
    const absl::Status endpoint = no_redis ? absl::OkStatus() : ParseRedisEndpoint(states.redis.endpoint).status();
    If(!endpoint.ok(), "--redis: ", endpoint.message());
    If(no_redis && !states.redis.password_file.empty(), "--redis-password-file is for --redis, which is not given");
    If(no_redis && states.redis.wait.replicas > 0, "--redis-wait-replicas is for --redis, which is not given");
    If(no_redis && states.redis.share_sessions, "--share-sessions needs a --redis that the servers share");
    If(states.redis.share_sessions && !states.disk.directory.empty(),
       "--share-sessions keeps sessions in --redis, where every server reaches them; leave out --disk-dir");
    const int high = states.disk.watermarks.high_percent, low = states.disk.watermarks.low_percent;
    If(high > 0 && high < 100 && low >= high, "--disk-low-watermark is ", low,
       ", expected less than --disk-high-watermark, which is ", high);
    If(states.disk.limit_bytes > 0 && states.disk.directory.empty(),
       "--disk-state-bytes limits --disk-dir, which is not given");
  }

  const ServerOptions& options_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> OptionFaults(const ServerOptions& options) { return OptionChecks(options).All(); }

}  // namespace gdn
