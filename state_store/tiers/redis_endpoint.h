// Which Redis server is meant, and errors that name it.
//
// Thread safety: a plain value and free functions.
//
//   GDN_ASSIGN_OR_RETURN(RedisEndpoint endpoint, ParseRedisEndpoint("redis://:secret@10.0.0.7:6379/1"));
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

struct RedisEndpoint {
  std::string host;
  int port = 6379;
  std::string unix_path;  // instead of host and port
  std::string user;       // "": the default one
  std::string password;
  int db = 0;

  std::string ToString() const;  // "10.0.0.7:6379", "unix:/run/redis.sock"; never the password
};

// "HOST:PORT", "HOST", "[IPV6]:PORT", "unix:/PATH", "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]", USER and PASSWORD
// with %XX where they have characters of the syntax. INVALID_ARGUMENT (INVALID_SPEC), without the password in its
// message.
absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(std::string_view text);

// An error of the tier, with its metadata.
absl::Status RedisError(const RedisEndpoint& endpoint, absl::StatusCode code, std::string_view reason,
                        std::string_view message);
// UNAVAILABLE (TIER_UNAVAILABLE).
absl::Status RedisUnavailable(const RedisEndpoint& endpoint, std::string_view message);

}  // namespace gdn
