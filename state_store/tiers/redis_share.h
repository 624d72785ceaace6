// The right to sessions in a Redis prefix that several servers share, each session one server's at a time.
//
// A session comes to a server by Take: where nobody has it, or the one that had it has no lease any more. It leaves by
// GiveUp, in order once its state is stored. What is written under the prefix is fenced by the session's own right
// (redis_session_claims.h), and the lease says how long a server may rely on its rights without asking (redis_node.h).
// Thread safety: safe from any thread; calls of one key are made one at a time. Ownership: the claim and the pool must
// outlive it.
//
//   RedisShare* share = redis_tier.share();  // nullptr: the prefix is one server's
//   GDN_ASSIGN_OR_RETURN(const TakenSession taken, share->Take(key, /*make=*/false));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "state_store/tiers/redis_claim.h"
#include "state_store/tiers/redis_connection.h"
#include "state_store/tiers/redis_node.h"
#include "state_store/tiers/redis_session_claims.h"

namespace gdn {

// How many replicas must have what was written before it counts as written.
struct RedisWait {
  int replicas = 0;
  absl::Duration timeout = absl::Seconds(1);
};

class RedisShare {
 public:
  RedisShare(const std::string& prefix, std::string name, RedisClaim& claim, RedisPool& pool, RedisWait wait);

  RedisSessionClaims& claims() { return claims_; }
  const RedisSessionClaims& claims() const { return claims_; }
  const RedisNode& node() const { return node_; }
  int64_t set_backs() const { return claims_.set_backs() + node_.set_backs(); }

  // As RedisSessionClaims' and RedisNode's. UNAVAILABLE (TIER_UNAVAILABLE) also where too few replicas have the right:
  // this server may have it all the same.
  absl::StatusOr<TakenSession> Take(const StateKey& session, bool make);
  absl::Status GiveUp(const StateKey& session, bool orderly);
  absl::Status GiveBack(const StateKey& session, absl::FunctionRef<bool()> is_here);
  absl::Status FindLost(bool lapsed, std::vector<StateKey>& lost);
  // FAILED_PRECONDITION (STATES_TAKEN_OVER) once a server that does not share has the prefix, for good.
  absl::StatusOr<bool> RenewLease(absl::Duration ttl);
  absl::Status EndLease();
  absl::Status Ask(std::string_view holder, const StateKey& session);
  absl::StatusOr<std::optional<StateKey>> NextAsked(absl::Duration timeout);

 private:
  RedisClaim& claim_;
  RedisPool& pool_;
  RedisPool lease_pool_;  // which waits for no other's answers, and not for long
  const RedisWait wait_;
  RedisSessionClaims claims_;
  RedisNode node_;
};

}  // namespace gdn
