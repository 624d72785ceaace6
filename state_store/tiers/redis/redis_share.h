// A server's part in a Redis prefix that several servers share. One server at a time has each session.
//
// A server gets a session with Take, if no server has it or the lease of that server has expired. It gives the session
// up with GiveUp: in order, if the state is stored. Each write is fenced by the right to its session
// (redis_session_claims.h). Each server has a lease, which shows that it is alive, and a mailbox, in which the other
// servers ask it for sessions:
//   PREFIXnode:SERVER   hash that expires: "name", "renewals". While it exists, nobody takes the server's sessions.
//   PREFIXasked:SERVER  list: PRINCIPAL/ID of sessions that clients have asked other servers for
// A server counts its lease from before the renewal, and stops relying on it a little early (Fleet). So it stops before
// Redis lets others take its sessions. Clocks must run at the same rate but need not agree.
// Thread safety: safe from any thread; calls for one key must be made one at a time. Ownership: the claim and the pool
// must outlive it.
//
//   RedisShare* share = redis_tier.share();  // nullptr: the prefix is not shared
//   GDN_ASSIGN_OR_RETURN(const bool was_there, share->RenewLease(absl::Seconds(15)));
//   GDN_ASSIGN_OR_RETURN(const TakenSession taken, share->Take(key, /*make=*/false));
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "state_store/tiers/redis/redis_claim.h"
#include "state_store/tiers/redis/redis_client_leases.h"
#include "state_store/tiers/redis/redis_connection.h"
#include "state_store/tiers/redis/redis_session_claims.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

// Number of replicas that must confirm a write before it counts as written (0: none), and the time to wait for them.
struct RedisWait {
  int replicas = 0;
  absl::Duration timeout = absl::Seconds(1);
};

class RedisShare {
 public:
  // `name`: this server's name in messages.
  RedisShare(std::string prefix, std::string name, RedisClaim& claim, RedisPool& pool, RedisWait wait);

  RedisSessionClaims& claims() { return claims_; }
  const RedisSessionClaims& claims() const { return claims_; }
  // Clients' leases, which all servers of the prefix share. RenewLease and EndLease below are about this server's own.
  RedisClientLeases& client_leases() { return client_leases_; }
  const std::string& server() const { return claims_.server(); }
  const std::string& name() const { return name_; }
  // Number of times that the store was found set back: as RedisSessionClaims finds it, or because the stored lease has
  // fewer renewals than this server has made.
  int64_t set_backs() const { return claims_.set_backs() + set_backs_; }

  // Call RedisSessionClaims' methods of the same names on a connection of the pool. UNAVAILABLE (TIER_UNAVAILABLE) also
  // if too few replicas confirm; the store may have the change all the same.
  absl::StatusOr<TakenSession> Take(const StateKey& session, bool make);
  absl::Status GiveUp(const StateKey& session, bool orderly);
  absl::Status GiveBack(const StateKey& session, absl::FunctionRef<bool()> is_here);
  absl::Status FindLost(bool lapsed, std::vector<StateKey>& lost);

  // Renews the lease for `ttl` from now on. True if it had not expired. Errors of the connection. FAILED_PRECONDITION
  // (STATES_TAKEN_OVER), permanently, once another owner has the prefix (RedisClaim::Check).
  absl::StatusOr<bool> RenewLease(absl::Duration ttl);
  // Ends the lease: other servers may take this server's sessions at once. Errors of the connection.
  absl::Status EndLease();
  // Asks the server `holder` for the session, through its mailbox, and does not wait for it. Nobody reads it if that
  // server is gone. Errors of the connection.
  absl::Status Ask(std::string_view holder, const StateKey& session);
  // Waits for the next session that this server is asked for; blocks. nullopt after `timeout`, which is 1 s or more and
  // less than the pool's command timeout. Errors of the connection.
  absl::StatusOr<std::optional<StateKey>> NextAsked(absl::Duration timeout);

 private:
  std::string MailboxOf(std::string_view server) const;
  absl::StatusOr<bool> Renew(RedisConnection& redis, absl::Duration ttl);

  const std::string prefix_;
  const std::string name_;
  RedisClaim& claim_;
  RedisPool& pool_;
  RedisPool lease_pool_;  // short timeouts, so that renewals do not wait for other calls
  const RedisWait wait_;
  RedisSessionClaims claims_;
  RedisClientLeases client_leases_;
  std::atomic<int64_t> renewals_{0};
  std::atomic<int64_t> set_backs_{0};
};

}  // namespace gdn
