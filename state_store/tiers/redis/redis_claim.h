// A server's ownership of a Redis prefix. Every write carries the server's random id, and the scripts that write
// compare it with the owner's id in the store. So only the server that took the prefix last can write.
//
//   PREFIXowner        hash: "server", its "incarnation", and "before": the earlier owners, the latest first;
//                      "stopped": the owner, once it has ended in order
//   PREFIXincarnation  number of servers that have started with the prefix
// A counter alone would not be enough: a failover to a replica that lagged sets it back, and the next server gets a
// number that was in use. The ids tell earlier owners from later ones. If the store names an owner from before this
// server, or none, then the store has been set back, and this server takes the prefix again. Any other owner came
// later: the prefix is then lost for the lifetime of this object.
// Thread safety: safe from any thread. Ownership: values.
//
//   GDN_ASSIGN_OR_RETURN(int64_t incarnation, claim.Take(redis));
//   const absl::Status written = folder.SwitchTo(redis, key, manifest);
//   if (IsFenced(written)) GDN_RETURN_IF_ERROR(claim.Recover(redis, key, written));  // OK: try again
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
#include "state_store/tiers/redis/redis_connection.h"
#include "state_store/tiers/redis/redis_fence.h"

namespace gdn {

// The id of all servers that share a prefix (redis_share.h). A server that does not share cannot take that prefix.
inline constexpr std::string_view kSharedServer = "shared";

class RedisClaim final : public RedisFence {
 public:
  explicit RedisClaim(std::string prefix, std::string server = RandomId())
      : prefix_(std::move(prefix)), server_(std::move(server)) {}

  // Makes this server the owner, also if another one was. Returns its incarnation, higher than any in the store.
  // FAILED_PRECONDITION (STATES_TAKEN_OVER) if servers share the prefix and this one does not, or if lost(). Errors of
  // the connection.
  absl::StatusOr<int64_t> Take(RedisConnection& redis);
  // Returns the previous owner, as the first Take found it: its id if it ended in order, else kPrefixUnused or
  // kPrefixUnknown (clean_marker.h). "" before Take.
  std::string found() const;
  // Records that this server has ended in order; call it after the last write. Returns its id. IsFenced if another
  // server has the prefix; errors of the connection.
  absl::StatusOr<std::string> NoteStop(RedisConnection& redis) const;
  // Returns the token that writes carry; "" before Take.
  std::string token() const;
  std::string OwnerKey() const { return prefix_ + "owner"; }
  std::string IncarnationKey() const { return prefix_ + "incarnation"; }

  // RedisFence, for all keys of the prefix together. A loss is permanent.
  std::string OwnerKey(const StateKey& /*key*/) const override { return OwnerKey(); }
  std::string token(const StateKey& /*key*/) const override { return token(); }
  absl::Status lost(const StateKey& /*key*/) const override { return lost(); }
  absl::Status Recover(RedisConnection& redis, const StateKey& /*key*/, const absl::Status& fenced) override {
    return Recover(redis, fenced);
  }
  absl::Status Recover(RedisConnection& redis, const absl::Status& fenced);
  // Asks the store whether this server is still the owner. Errors of Recover and of the connection.
  absl::Status Check(RedisConnection& redis);
  // Number of times that the store was found set back and the prefix was taken again. Stored states may then be lost.
  int64_t set_backs() const { return set_backs_; }
  // OK, or the error if the prefix is lost. Does not ask the store.
  absl::Status lost() const;

 private:
  const std::string prefix_;
  const std::string server_;
  std::atomic<int64_t> set_backs_{0};
  mutable absl::Mutex mu_;
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not taken yet
  std::string before_ ABSL_GUARDED_BY(mu_);       // ids of earlier owners, separated by spaces
  std::string found_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
