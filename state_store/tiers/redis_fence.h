// What keeps a server that has lost its right to a state in Redis from writing it: each script that writes compares a
// token with the one that the store has, under a key that is the fence's to name.
//
// Thread safety: all methods from any thread. Ownership: outlives the RedisFolder that uses it.
//
//   const absl::Status written = folder.SwitchTo(redis, key, manifest);   // carries fence.token(key)
//   if (IsFenced(written)) GDN_RETURN_IF_ERROR(fence.Recover(redis, key, written));  // OK: try again
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "state_store/tiers/redis_connection.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class RedisFence {
 public:
  virtual ~RedisFence() = default;

  // A hash whose field "server" is the token of whoever may write the key's state.
  virtual std::string OwnerKey(const StateKey& key) const = 0;
  // What this server's writes carry; "": it has no right to the key.
  virtual std::string token(const StateKey& key) const = 0;
  // OK, or the error of a right that was lost, without asking anybody.
  virtual absl::Status lost(const StateKey& key) const = 0;
  // After an IsFenced error: OK where the store had gone back to a time before this server had the right, which it has
  // again now; else FAILED_PRECONDITION (STATES_TAKEN_OVER). Errors of the connection.
  virtual absl::Status Recover(RedisConnection& redis, const StateKey& key, const absl::Status& fenced) = 0;
};

// The beginning of a script that only the owner may run. KEYS[1]: RedisFence::OwnerKey, ARGV[1]: its token.
inline constexpr std::string_view kFencedScript = R"(
local owner = redis.call('HGET', KEYS[1], 'server') or 'nobody'
if owner ~= ARGV[1] then return redis.error_reply('FENCED ' .. owner) end
)";

// Whether an error is such a script's refusal.
bool IsFenced(const absl::Status& status);
// Whose the state is now, of such an error: a token, or kNoOwner.
inline constexpr std::string_view kNoOwner = "nobody";
std::string FencedOffBy(const absl::Status& status);

}  // namespace gdn
