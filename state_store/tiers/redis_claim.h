// A server's hold on a Redis prefix: a random id that every write to the prefix carries, and that the scripts which
// write compare with the one in the store. So whoever took the prefix last is the only one that writes.
//
//   PREFIXowner        hash: "server", its "incarnation", and "before": the owners before it, the latest first;
//                      "stopped": the owner, once it has ended in order
//   PREFIXincarnation  how many servers have begun with the prefix
// A number alone proves nothing, for a failover to a replica that lagged rolls it back with the rest, and the next
// server is given one that was in use. The ids tell a later owner from an earlier one: what stands in the store is an
// owner before this server, or nobody (an emptied store), where the store has gone back; the prefix is then taken
// again. Anybody else came after it: the prefix is lost, for as long as this object lives.
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
#include "state_store/tiers/redis_connection.h"
#include "state_store/tiers/redis_fence.h"

namespace gdn {

// The id that all servers have which share a prefix (redis_share.h). None that does not share may take theirs.
inline constexpr std::string_view kSharedServer = "shared";

class RedisClaim final : public RedisFence {
 public:
  explicit RedisClaim(std::string prefix, std::string server = RandomId())
      : prefix_(std::move(prefix)), server_(std::move(server)) {}

  // Makes this server the owner, whoever was it. Returns its incarnation: higher than any that the store knows of.
  // FAILED_PRECONDITION (STATES_TAKEN_OVER) where servers share the prefix, and this one does not.
  absl::StatusOr<int64_t> Take(RedisConnection& redis);
  // The previous owner, as Take found it: its id if it ended in order, else kPrefixUnused or kPrefixUnknown
  // (clean_marker.h).
  std::string found() const;
  // Notes that this server has ended in order and writes nothing more. Returns its id. Errors as of a fenced script.
  absl::StatusOr<std::string> NoteStop(RedisConnection& redis) const;
  // The token that writes carry; "" before Take.
  std::string token() const;
  std::string OwnerKey() const { return prefix_ + "owner"; }
  std::string IncarnationKey() const { return prefix_ + "incarnation"; }

  // As RedisFence's, of the whole prefix: a loss is for good.
  std::string OwnerKey(const StateKey& /*key*/) const override { return OwnerKey(); }
  std::string token(const StateKey& /*key*/) const override { return token(); }
  absl::Status lost(const StateKey& /*key*/) const override { return lost(); }
  absl::Status Recover(RedisConnection& redis, const StateKey& /*key*/, const absl::Status& fenced) override {
    return Recover(redis, fenced);
  }
  absl::Status Recover(RedisConnection& redis, const absl::Status& fenced);
  // Asks the store. OK, errors of Recover, or of the connection.
  absl::Status Check(RedisConnection& redis);
  // How often the prefix was taken again from a store that had gone back: what was stored may be gone.
  int64_t set_backs() const { return set_backs_; }
  // OK, or the error of a prefix that was lost, without asking anybody.
  absl::Status lost() const;

 private:
  const std::string prefix_;
  const std::string server_;
  std::atomic<int64_t> set_backs_{0};
  mutable absl::Mutex mu_;
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not taken yet
  std::string before_ ABSL_GUARDED_BY(mu_);       // ids with a space between
  std::string found_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
