// Limits of connections, enforced by the listener and by gRPC, below the limits that the service itself enforces.
//
// The server accepts connections itself (base/net/socket_listener.h), because gRPC has no limit on their number and
// stops accepting for good once file descriptors run out. gRPC receives a unary message whole before the service sees
// it; only `memory_bytes`, the memory of all connections' buffers, bounds that. When it is used up, gRPC closes
// connections without calls and then ends arbitrary calls with RESOURCE_EXHAUSTED and no reason, because gRPC does not
// know principals. So set it larger than the memory that the service admits for calls; then only misbehaving clients
// reach it.
// Thread safety: plain values. Ownership: none.
//
//   Apply({.memory_bytes = int64_t{1} << 30, .connection_idle = absl::Minutes(5)}, builder);
#pragma once

#include <cstdint>
#include <optional>

#include <grpcpp/server_builder.h>

#include "absl/time/time.h"
#include "base/net/socket_listener.h"

namespace gdn {

struct TransportLimits {
  ConnectionLimits connections = {};
  std::optional<int64_t> memory_bytes = std::nullopt;  // for all connections' buffers; nullopt: no limit
  int32_t streams_per_connection = 1024;               // concurrent calls; a gRPC client queues the others
  // If nothing arrives on a connection for keepalive_time, the server sends a ping, with or without calls. If no answer
  // comes within keepalive_timeout, it closes the connection. keepalive_time 0: no pings.
  absl::Duration keepalive_time = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  // Shortest interval allowed between a client's pings, if no reply or header is sent between them. After three
  // violations the connection is closed with ENHANCE_YOUR_CALM ("too_many_pings"). 0: any interval is allowed.
  absl::Duration min_ping_interval = absl::Seconds(5);
  absl::Duration connection_idle = absl::Seconds(1800);  // a connection without calls for so long is closed; 0: never
  // Every connection is closed at this age, plus or minus a tenth; 0: never.
  absl::Duration connection_age = absl::ZeroDuration();
  // Time that calls on a connection of that age get to end. After it they fail with UNAVAILABLE.
  absl::Duration connection_age_grace = absl::Seconds(300);
};

void Apply(const TransportLimits& limits, grpc::ServerBuilder& builder);

}  // namespace gdn
