// The rights to sessions in a Redis prefix that several servers share. One server at a time has each session.
//
// A server gets a session with Take, if no server has it or the lease of that server has expired. It gives the session
// up with GiveUp: in order, if the state is stored. Each write is fenced by the right to its session
// (redis_session_claims.h). The lease says how long a server may rely on its rights without asking (redis_node.h).
// Thread safety: safe from any thread; calls for one key must be made one at a time. Ownership: the claim and the pool
// must outlive it.
//
//   RedisShare* share = redis_tier.share();  // nullptr: the prefix is not shared
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

// Number of replicas that must confirm a write before it counts as written, and the time to wait for them.
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

  // Run the methods of RedisSessionClaims and RedisNode on a connection. UNAVAILABLE (TIER_UNAVAILABLE) also if too few
  // replicas confirm; the store may have the change all the same.
  absl::StatusOr<TakenSession> Take(const StateKey& session, bool make);
  absl::Status GiveUp(const StateKey& session, bool orderly);
  absl::Status GiveBack(const StateKey& session, absl::FunctionRef<bool()> is_here);
  absl::Status FindLost(bool lapsed, std::vector<StateKey>& lost);
  // FAILED_PRECONDITION (STATES_TAKEN_OVER), permanently, once another owner has the prefix (RedisClaim::Check).
  absl::StatusOr<bool> RenewLease(absl::Duration ttl);
  absl::Status EndLease();
  absl::Status Ask(std::string_view holder, const StateKey& session);
  absl::StatusOr<std::optional<StateKey>> NextAsked(absl::Duration timeout);

 private:
  RedisClaim& claim_;
  RedisPool& pool_;
  RedisPool lease_pool_;  // short timeouts, so that renewals do not wait for other calls
  const RedisWait wait_;
  RedisSessionClaims claims_;
  RedisNode node_;
};

}  // namespace gdn
