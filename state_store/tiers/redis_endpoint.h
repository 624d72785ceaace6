// Which Redis server is meant, and errors that name it.
//
// Thread safety: a plain value and free functions.
//
//   GDN_ASSIGN_OR_RETURN(RedisEndpoint endpoint, ParseRedisEndpoint("redis://gdn@10.0.0.7:6379/1"));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

struct RedisAddress {
  std::string host;
  int port = 6379;
};

struct RedisEndpoint {
  std::string host;
  int port = 6379;
  std::string unix_path;                // instead of host and port
  std::vector<RedisAddress> sentinels;  // instead of either: who knows which server is the master of `master_name`
  std::string master_name;
  std::string user;           // "": the default one
  std::string password_file;  // read for each connection, so that a new password is taken up; "": none is given
  int db = 0;

  std::string ToString() const;  // "10.0.0.7:6379", "unix:/run/redis.sock", "sentinel:mymaster"
};

// "HOST:PORT", "HOST", "[IPV6]:PORT", "unix:/PATH", "redis://[USER@]HOST[:PORT][/DB]",
// "sentinel://[USER@]HOST[:PORT][,HOST[:PORT]..]/NAME[/DB]" of Sentinels (port 26379) and their name for the master;
// USER with %XX where it has characters of the syntax. INVALID_ARGUMENT (INVALID_SPEC), of a password too, which is not
// repeated in the message: a process's arguments are everybody's to read. There is no TLS, and rediss:// is told what
// to do about that.
absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(std::string_view text);

// The password in the endpoint's file, without the line's end; "" where it names none. UNAVAILABLE (TIER_UNAVAILABLE).
absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint);

// An error of the tier, with its metadata.
absl::Status RedisError(const RedisEndpoint& endpoint, absl::StatusCode code, std::string_view reason,
                        std::string_view message);
// UNAVAILABLE (TIER_UNAVAILABLE).
absl::Status RedisUnavailable(const RedisEndpoint& endpoint, std::string_view message);

}  // namespace gdn
