// Which server is the master now, as Redis Sentinels say.
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

// As RedisConnection::Connect; where the endpoint has Sentinels, to the server that the first of them which answers
// names, if that server says itself that it is a master. UNAVAILABLE (TIER_UNAVAILABLE) where none answers or knows the
// name, or while a failover is under way.
absl::StatusOr<std::unique_ptr<RedisConnection>> ConnectToMaster(const RedisEndpoint& endpoint,
                                                                 absl::Duration connect_timeout,
                                                                 absl::Duration command_timeout);

}  // namespace gdn
