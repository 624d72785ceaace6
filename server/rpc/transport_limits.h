// What connections may take: gRPC's own limits, below everything that the service itself counts.
//
// Connections are accepted here, not by gRPC (base/socket_listener.h): it has no limit of them, and once descriptors
// are used up it accepts none any more. A unary message is whole before the service sees it. What bounds that is the
// memory of all connections' buffers. Where it is used up, gRPC closes connections without calls, and then ends calls
// at random, with RESOURCE_EXHAUSTED and no reason: it knows no principals. So it is to be larger than what the service
// lets in, and is met by clients that only misbehave.
// Thread safety: plain values. Ownership: none.
//
//   Apply({.memory_bytes = int64_t{1} << 30, .connection_idle = absl::Minutes(5)}, builder);
#pragma once

#include <cstdint>
#include <optional>

#include <grpcpp/server_builder.h>

#include "absl/time/time.h"
#include "base/socket_listener.h"

namespace gdn {

struct TransportLimits {
  ConnectionLimits connections = {};
  std::optional<int64_t> memory_bytes = std::nullopt;  // of all connections' buffers; nothing: no limit
  int32_t streams_per_connection = 1024;               // calls under way; a gRPC client keeps those above it waiting
  // A connection that nothing has come by for so long is asked for an answer, calls or not; without one within the
  // timeout it is closed. 0: never.
  absl::Duration keepalive_time = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  // Clients' pings that come sooner after one another, with no reply or header sent between, are three times too many:
  // the connection is closed with ENHANCE_YOUR_CALM ("too_many_pings"). 0: they may.
  absl::Duration min_ping_interval = absl::Seconds(5);
  absl::Duration connection_idle = absl::Seconds(1800);  // without a call, then closed; 0: never
  absl::Duration connection_age = absl::ZeroDuration();  // of any connection, give or take a tenth; 0: never
  // How long calls on a connection of that age may take to end; then they are UNAVAILABLE.
  absl::Duration connection_age_grace = absl::Seconds(300);
};

void Apply(const TransportLimits& limits, grpc::ServerBuilder& builder);

}  // namespace gdn
