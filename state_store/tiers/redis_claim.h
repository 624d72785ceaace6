// A server's hold on a Redis prefix: a random id that every write to the prefix carries, and that the scripts which
// write compare with the one in the store. So whoever took the prefix last is the only one that writes.
//
//   PREFIXowner        hash: "server", its "incarnation", and "before": the owners before it, the latest first
//   PREFIXincarnation  how many servers have begun with the prefix
// A number alone proves nothing, for a failover to a replica that lagged rolls it back with the rest, and the next
// server is given one that was in use. The ids tell a later owner from an earlier one: what stands in the store is an
// owner before this server, or nobody (an emptied store), where the store has gone back; the prefix is then taken
// again. Anybody else came after it: the prefix is lost, for as long as this object lives.
// Thread safety: safe from any thread. Ownership: values.
//
//   GDN_ASSIGN_OR_RETURN(int64_t incarnation, claim.Take(redis));
//   const absl::Status written = folder.SwitchTo(redis, claim.token(), key, manifest);
//   if (IsFenced(written)) GDN_RETURN_IF_ERROR(claim.Recover(redis, written));  // OK: try again
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/random_id.h"
#include "state_store/tiers/redis_connection.h"

namespace gdn {

class RedisClaim {
 public:
  explicit RedisClaim(std::string prefix) : prefix_(std::move(prefix)), server_(RandomId()) {}

  // Makes this server the owner, whoever was it. Returns its incarnation: higher than any that the store knows of.
  absl::StatusOr<int64_t> Take(RedisConnection& redis);
  // What writes carry; "" before Take.
  std::string token() const;
  std::string OwnerKey() const { return prefix_ + "owner"; }

  // After an IsFenced error: OK where the store had gone back to a time before this server and the prefix is taken
  // again; else FAILED_PRECONDITION (STATES_TAKEN_OVER), now and from now on.
  absl::Status Recover(RedisConnection& redis, const absl::Status& fenced);
  // Asks the store. OK, errors of Recover, or of the connection.
  absl::Status Check(RedisConnection& redis);
  // How often the prefix was taken again from a store that had gone back: what was stored may be gone.
  int64_t set_backs() const { return set_backs_; }
  // OK, or the error of a prefix that was lost, without asking anybody.
  absl::Status lost() const;

 private:
  std::string IncarnationKey() const { return prefix_ + "incarnation"; }

  const std::string prefix_;
  const std::string server_;
  std::atomic<int64_t> set_backs_{0};
  mutable absl::Mutex mu_;
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not taken yet
  std::string before_ ABSL_GUARDED_BY(mu_);       // ids with a space between
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

// The beginning of a script that only the owner may run. KEYS[1]: the owner's key, ARGV[1]: the caller's token.
inline constexpr std::string_view kFencedScript = R"(
local owner = redis.call('HGET', KEYS[1], 'server') or 'nobody'
if owner ~= ARGV[1] then return redis.error_reply('FENCED ' .. owner) end
)";

// Whether an error is such a script's refusal.
bool IsFenced(const absl::Status& status);

}  // namespace gdn
