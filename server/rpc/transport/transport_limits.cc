#include "server/rpc/transport/transport_limits.h"

#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <limits>

namespace gdn {
namespace {

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 0, std::numeric_limits<int>::max()));
}

// gRPC uses INT_MAX for never.
int ZeroIsNever(absl::Duration duration) {
  return duration == absl::ZeroDuration() ? std::numeric_limits<int>::max() : std::max(1, Milliseconds(duration));
}

}  // namespace

void Apply(const TransportLimits& limits, grpc::ServerBuilder& builder) {
  if (limits.memory_bytes.has_value()) {
    grpc::ResourceQuota quota("gdn-transport");
    quota.Resize(static_cast<size_t>(*limits.memory_bytes));
    builder.SetResourceQuota(quota);
  }
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ZeroIsNever(limits.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(limits.keepalive_timeout));
  // Without these two options a server sends at most two pings to a silent client, and none without a call, and it
  // treats a client's pings without a call as abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(limits.min_ping_interval));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, ZeroIsNever(limits.connection_idle));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, ZeroIsNever(limits.connection_age));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(limits.connection_age_grace));
}

}  // namespace gdn
