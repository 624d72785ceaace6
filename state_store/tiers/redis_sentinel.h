// Finds the current master through Redis Sentinels.
//
// Thread safety: free functions. Ownership: values.
//
//   GDN_ASSIGN_OR_RETURN(auto connection, ConnectToMaster(endpoint, absl::Seconds(1), absl::Seconds(5)));
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "state_store/tiers/redis_connection.h"

namespace gdn {

// Connects as RedisConnection::Connect does. If the endpoint has Sentinels, connects to the server that the first
// usable answer names, and checks that this server calls itself a master. UNAVAILABLE (TIER_UNAVAILABLE) if no Sentinel
// answers and knows the name, or during a failover.
absl::StatusOr<std::unique_ptr<RedisConnection>> ConnectToMaster(const RedisEndpoint& endpoint,
                                                                 absl::Duration connect_timeout,
                                                                 absl::Duration command_timeout);

}  // namespace gdn
