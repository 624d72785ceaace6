// The address of a Redis server, and errors that name it.
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
  std::string unix_path;  // instead of host and port; "": not used
  std::vector<RedisAddress>
      sentinels;  // instead of both: Sentinels that know the master `master_name`; empty: not used
  std::string master_name;
  std::string user;           // "": the default user
  std::string password_file;  // read for each connection, so the password can be changed; "": no password
  int db = 0;

  std::string ToString() const;  // "10.0.0.7:6379", "unix:/run/redis.sock", "sentinel:mymaster"
};

// Parses "HOST:PORT", "HOST", "[IPV6]:PORT", "unix:/PATH", "redis://[USER@]HOST[:PORT][/DB]" or
// "sentinel://[USER@]HOST[:PORT][,HOST[:PORT]..]/NAME[/DB]": addresses of Sentinels (default port 26379) and their name
// for the master. Write special characters of USER as %XX. INVALID_ARGUMENT (INVALID_SPEC), also for a password,
// because everybody can read a process's arguments; the message does not repeat it. TLS (rediss://) is not supported;
// the error says what to do instead.
absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(std::string_view text);

// Reads the password from the endpoint's file, without white space at the end; "" if no file is named. UNAVAILABLE
// (TIER_UNAVAILABLE) if the file cannot be read or is empty.
absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint);

// Makes an error of the redis tier, with the tier and the endpoint in its metadata.
absl::Status RedisError(const RedisEndpoint& endpoint, absl::StatusCode code, std::string_view reason,
                        std::string_view message);
// Makes the RedisError UNAVAILABLE (TIER_UNAVAILABLE).
absl::Status RedisUnavailable(const RedisEndpoint& endpoint, std::string_view message);

}  // namespace gdn
