// Whether the command line's values can be, by themselves and together.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/host_port.h"
#include "base/ip_network.h"
#include "base/string_cat.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "server/flags.h"
#include "server/observability/http_server.h"
#include "server/rpc/unix_socket.h"
#include "server/trace/call_tracer.h"
#include "state_store/tiers/redis_endpoint.h"

namespace gdn {
namespace {

// All that is wrong, not the first of it alone.
struct Faults {
  std::vector<std::string> all;

  void Add(const absl::Status& status) {
    if (!status.ok()) all.emplace_back(status.message());
  }
};

template <typename T>
absl::Status CheckRange(std::string_view flag, T value, T low, T high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("--", flag, " is ", value, ", expected ", low, " .. ", high));
}

void CheckTransport(const ServerOptions& options, Faults& faults) {
  const TransportLimits& limits = options.transport;
  if (limits.memory_bytes != 0) {  // 0 is auto
    faults.Add(CheckRange<int64_t>("transport-bytes", limits.memory_bytes, 4 * options.limits.max_message_bytes,
                                   std::numeric_limits<int64_t>::max()));
  }
  faults.Add(CheckRange<int64_t>("max-connections", limits.connections.connections, 0, 1'000'000));
  faults.Add(CheckRange<int64_t>("max-connections-per-peer", limits.connections.connections_per_peer, 0, 1'000'000));
  for (const std::string& proxy : limits.connections.proxies) {
    if (NetworkOf(proxy).has_value()) continue;
    faults.Add(
        absl::InvalidArgumentError(StrCat("--proxies has '", proxy, "', expected IP addresses such as 10.0.0.7")));
  }
  faults.Add(CheckRange<int32_t>("streams-per-connection", limits.streams_per_connection, 1, 1'000'000));
  for (const auto& [name, duration] :
       {std::pair("keepalive-time", limits.keepalive_time), std::pair("keepalive-timeout", limits.keepalive_timeout),
        std::pair("min-ping-interval", limits.min_ping_interval), std::pair("connection-idle", limits.connection_idle),
        std::pair("connection-age", limits.connection_age),
        std::pair("connection-age-grace", limits.connection_age_grace)}) {
    if (duration < absl::ZeroDuration()) {
      faults.Add(absl::InvalidArgumentError(StrCat("--", name, " is negative, expected a duration such as 30s, or 0")));
    }
  }
  if (limits.keepalive_timeout == absl::ZeroDuration()) {
    faults.Add(absl::InvalidArgumentError(
        "--keepalive-timeout is 0, in which nobody answers; expected a duration such as 20s"));
  }
}

void CheckFleet(const ServerOptions& options, Faults& faults) {
  faults.Add(CheckRange<int32_t>("redis-wait-replicas", options.redis_wait_replicas, 0, 64));
  if (options.redis_wait_replicas > 0 && options.redis.empty()) {
    faults.Add(absl::InvalidArgumentError("--redis-wait-replicas is for --redis, which is not given"));
  }
  if (options.redis_wait_timeout < absl::Milliseconds(1) || options.redis_wait_timeout >= absl::Seconds(5)) {
    faults.Add(
        absl::InvalidArgumentError(StrCat("--redis-wait-timeout is ", absl::FormatDuration(options.redis_wait_timeout),
                                          ", expected 1ms or more, and less than 5s")));
  }
  if (!options.share_sessions) return;
  if (options.redis.empty()) {
    faults.Add(absl::InvalidArgumentError("--share-sessions needs a --redis that the servers share"));
  }
  if (!options.disk_dir.empty()) {
    faults.Add(absl::InvalidArgumentError(
        "--share-sessions keeps sessions in --redis, where every server reaches them; leave out --disk-dir"));
  }
  if (options.node_lease < absl::Seconds(2) || options.node_lease > absl::Hours(1)) {
    faults.Add(absl::InvalidArgumentError(
        StrCat("--node-lease is ", absl::FormatDuration(options.node_lease), ", expected 2s .. 1h")));
  }
  if (options.drain_notice < absl::ZeroDuration()) {
    faults.Add(absl::InvalidArgumentError("--drain-notice is negative, expected a duration such as 3s, or 0"));
  }
}

}  // namespace

std::vector<std::string> OptionFaults(const ServerOptions& options) {
  Faults faults;
  faults.Add(CheckRange<int32_t>("threads", options.threads, 0, 1024));
  faults.Add(CheckRange<int32_t>("max-draft", options.limits.max_draft, 1, 64));
  faults.Add(CheckRange<int32_t>("max-batch", options.limits.max_batch, 1, 65536));
  faults.Add(CheckRange<int32_t>("max-queued-steps", options.max_queued_steps, 1, 1'000'000));
  faults.Add(CheckRange<int64_t>("max-message-bytes", options.limits.max_message_bytes, 4 << 10, 1 << 30));
  faults.Add(CheckRange<int64_t>("max-stored-reply-bytes", options.limits.max_stored_reply_bytes, 0, 64 << 20));
  faults.Add(
      CheckRange<int32_t>("shared-memory-regions-per-principal", options.shared_memory.regions_per_principal, 1, 4096));
  faults.Add(CheckRange<int32_t>("trace-calls", options.trace_calls, 0, kMostTracedCalls));
  for (const auto& [name, duration] : {std::pair("drain-timeout", options.drain_timeout),
                                       std::pair("drain-checkpoint-timeout", options.drain_checkpoint_timeout)}) {
    if (duration < absl::ZeroDuration()) {
      faults.Add(absl::InvalidArgumentError(StrCat("--", name, " is negative, expected a duration such as 30s")));
    }
  }
  CheckTransport(options, faults);
  if (options.listen.empty()) {
    faults.Add(absl::InvalidArgumentError("--listen is empty, expected HOST:PORT or unix:/PATH"));
  }
  if (!options.http_listen.empty()) {
    absl::Status status = CheckHostPort(options.http_listen);
    if (status.ok()) status = CheckHttpAddress(options.http_listen);
    if (!status.ok()) faults.Add(absl::InvalidArgumentError(StrCat("--http-listen: ", status.message())));
  }
  std::vector<std::string> addresses;  // those that can be
  for (const std::string& address : options.listen) {
    const auto path = UnixSocketPath(address);
    if (path.has_value() && !absl::StartsWith(*path, "/")) {
      faults.Add(
          absl::InvalidArgumentError(StrCat("--listen is '", address, "', expected unix:/PATH with a whole path")));
    } else if (const absl::Status status = CheckHostPort(address); !path.has_value() && !status.ok()) {
      faults.Add(absl::InvalidArgumentError(StrCat("--listen ", status.message(), "; unix:/PATH is a socket file")));
    } else {
      addresses.push_back(address);
    }
  }
  faults.Add(CheckSecurityOptions(options.security, addresses));
  faults.Add(CheckLoggingOptions(options.logging));
  if (options.backend != "auto" && options.backend != "gpu" && options.backend != "cpu" && options.backend != "null") {
    faults.Add(
        absl::InvalidArgumentError(StrCat("--backend is '", options.backend, "', expected auto, gpu, cpu or null")));
  }
  const char* const gpu_flag = options.gpu_devices.size() == 1 ? "gpu-device" : "gpu-devices";
  for (const int32_t device : options.gpu_devices) faults.Add(CheckRange<int32_t>(gpu_flag, device, 0, 1023));
  if (!ParseGpuGraphs(options.gpu_graphs).has_value()) {
    faults.Add(
        absl::InvalidArgumentError(StrCat("--gpu-graphs is '", options.gpu_graphs, "', expected auto, on or off")));
  }
  faults.Add(CheckRange<int32_t>("state-slots", options.state_slots, 0, std::numeric_limits<int32_t>::max()));
  if (options.state_slots > 0 && options.device_state_bytes > 0) {
    faults.Add(
        absl::InvalidArgumentError("--state-slots and --device-state-bytes are both given, expected one of them"));
  }
  if (!options.load.heads.is_whole() && options.models.empty()) {
    faults.Add(absl::InvalidArgumentError("--heads is given and no --model; expected a model whose heads they are"));
  }
  if (options.state_slots > 0 && options.models.empty()) {
    faults.Add(absl::InvalidArgumentError(
        "--state-slots counts states of a --model and none is given; use --device-state-bytes"));
  }
  faults.Add(CheckRange<int64_t>("checkpoint-every-tokens", options.checkpoint_every_tokens, 0,
                                 std::numeric_limits<int32_t>::max()));
  faults.Add(CheckRange<int64_t>("stored-reply-bytes", options.stored_reply_bytes,
                                 options.limits.max_stored_reply_bytes, std::numeric_limits<int64_t>::max()));
  if (options.call_bytes.has_value()) {
    faults.Add(CheckRange<int64_t>("call-bytes", *options.call_bytes, options.limits.max_message_bytes,
                                   std::numeric_limits<int64_t>::max()));
  }
  if (options.copy_bytes.has_value()) {
    faults.Add(
        CheckRange<int64_t>("copy-bytes", *options.copy_bytes, int64_t{1} << 20, std::numeric_limits<int64_t>::max()));
  }
  if (options.session_bytes.has_value()) {
    faults.Add(CheckRange<int64_t>("session-bytes", *options.session_bytes, int64_t{1} << 20,
                                   std::numeric_limits<int64_t>::max()));
  }
  for (const auto& [name, duration] :
       {std::pair("checkpoint-every", options.checkpoint_every), std::pair("prefix-ttl", options.prefix_ttl),
        std::pair("session-idle-ttl", options.session_idle_ttl)}) {
    if (duration < absl::ZeroDuration()) {
      faults.Add(absl::InvalidArgumentError(StrCat("--", name, " is negative, expected a duration such as 30s, or 0")));
    }
  }
  const bool checkpoints = options.checkpoint_every_tokens > 0 || options.checkpoint_every > absl::ZeroDuration();
  if (checkpoints && options.disk_dir.empty() && options.redis.empty()) {
    faults.Add(
        absl::InvalidArgumentError("checkpoints need a place to be kept in: give --disk-dir or --redis as well"));
  }
  if (!options.redis.empty()) {
    if (const absl::Status status = ParseRedisEndpoint(options.redis).status(); !status.ok()) {
      faults.Add(absl::InvalidArgumentError(StrCat("--redis: ", status.message())));
    }
  } else if (!options.redis_password_file.empty()) {
    faults.Add(absl::InvalidArgumentError("--redis-password-file is for --redis, which is not given"));
  }
  CheckFleet(options, faults);
  const auto& [high, low, space] = options.disk_watermarks;
  faults.Add(CheckRange<int32_t>("disk-high-watermark", high, 0, 100));
  faults.Add(CheckRange<int32_t>("disk-low-watermark", low, 0, 100));
  if (high > 0 && high < 100 && low >= high) {
    faults.Add(absl::InvalidArgumentError(
        StrCat("--disk-low-watermark is ", low, ", expected less than --disk-high-watermark, which is ", high)));
  }
  if (options.disk_state_bytes > 0 && options.disk_dir.empty()) {
    faults.Add(absl::InvalidArgumentError("--disk-state-bytes limits --disk-dir, which is not given"));
  }
  return faults.all;
}

}  // namespace gdn
