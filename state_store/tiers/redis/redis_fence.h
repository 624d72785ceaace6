// Fencing of writes to Redis: each script that writes compares the server's token with the owner's token in the store.
// So a server that has lost its right to a state cannot write that state.
//
// Thread safety: all methods from any thread. Ownership: outlives the RedisFolder that uses it.
//
//   const absl::Status written = folder.SwitchTo(redis, key, manifest);   // carries fence.token(key)
//   if (IsFenced(written)) GDN_RETURN_IF_ERROR(fence.Recover(redis, key, written));  // OK: try again
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "state_store/tiers/redis/redis_connection.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class RedisFence {
 public:
  virtual ~RedisFence() = default;

  // Returns the name of a hash whose field "server" is the token of the server that may write the key's state.
  virtual std::string OwnerKey(const StateKey& key) const = 0;
  // Returns the token that this server's writes carry; "" if it has not taken the right to the key. Does not ask the
  // store, so the token may outlast the right.
  virtual std::string token(const StateKey& key) const = 0;
  // OK, or FAILED_PRECONDITION (STATES_TAKEN_OVER) if all rights are lost for good. Does not ask the store, so OK does
  // not show that this server has the right.
  virtual absl::Status lost(const StateKey& key) const = 0;
  // Call after an IsFenced error. If the store was set back to a time before this server had the right, takes the right
  // again and returns OK. Otherwise FAILED_PRECONDITION (STATES_TAKEN_OVER). Errors of the connection.
  virtual absl::Status Recover(RedisConnection& redis, const StateKey& key, const absl::Status& fenced) = 0;
};

// The beginning of a script that only the owner may run. KEYS[1]: RedisFence::OwnerKey, ARGV[1]: its token.
inline constexpr std::string_view kFencedScript = R"(
local owner = redis.call('HGET', KEYS[1], 'server') or 'nobody'
if owner ~= ARGV[1] then return redis.error_reply('FENCED ' .. owner) end
)";

// True if the error is the refusal of a fenced script.
bool IsFenced(const absl::Status& status);
// Returned by FencedOffBy if the state has no owner. FencedOffBy: the current owner's token, from an IsFenced error; ""
// for any other.
inline constexpr std::string_view kNoOwner = "nobody";
std::string FencedOffBy(const absl::Status& status);

}  // namespace gdn
