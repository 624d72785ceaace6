// Clients' leases of servers that share sessions. A client reaches one server and has sessions on several, so Redis has
// the last sign of life (redis_client_leases.h), and it alone says when a lease ends.
//
// A thread compares this server's leases with Redis twice a second: a lease that has ended there ends here. While Redis
// does not answer no lease ends. Sessions under a lease that has ended may be on no server, because theirs was killed:
// one of the servers looks for them in Redis and takes them, and they end like its own.
// Thread safety: safe from any thread; the calls block on Redis. Ownership: the parts and the arrivals must outlive it.
//
//   FleetLeases leases(parts, arrivals);
//   leases.Begin();
//   GDN_ASSIGN_OR_RETURN(const ClientLeasePtr lease, leases.Renew(principal, id));
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/task/task_group.h"
#include "server/fleet/fleet_parts.h"
#include "server/fleet/session_arrivals.h"
#include "server/session/client_leases.h"
#include "server/session/loop_thread.h"

namespace gdn {

class FleetLeases {
 public:
  FleetLeases(const FleetParts& parts, SessionArrivals& arrivals);
  FleetLeases(const FleetLeases&) = delete;
  FleetLeases& operator=(const FleetLeases&) = delete;

  // Starts the thread that compares leases with Redis. Stop ends it and waits for it.
  void Begin();
  void Stop() { thread_.reset(); }

  // These do what the methods of ClientLeases do, for all servers of the fleet, and block on Redis. Errors of these
  // methods. UNAVAILABLE (TIER_UNAVAILABLE) if Redis does not answer; the sign of life of Open and Renew then counts on
  // this server only. From then on these calls are refused without asking Redis, until the thread has had an answer. So
  // they hold no thread that others need.
  absl::StatusOr<ClientLeasePtr> Open(const ByteAccountPtr& account, const std::string& principal,
                                      const std::string& id, absl::Duration grace);
  absl::StatusOr<ClientLeasePtr> Renew(const std::string& principal, const std::string& id);
  absl::StatusOr<ClientLeasePtr> Find(const std::string& principal, const std::string& id);
  // Ends the lease in Redis and returns it. Other servers of the fleet end it at their next comparison with Redis. So
  // does this one, unless the caller ends it here before. NOT_FOUND (LEASE_NOT_FOUND), UNAVAILABLE (TIER_UNAVAILABLE).
  absl::StatusOr<ClientLeasePtr> End(const std::string& principal, const std::string& id);

 private:
  // OK, or the error while Redis does not answer.
  absl::Status CheckAnswers() const;
  // Notes if Redis has answered a call that ended with this status. Returns the status.
  absl::Status Noted(absl::Status status);
  absl::Duration Round();
  absl::Status EndLapsed();
  // Begins to take sessions that no server has and whose leases have ended. They then end here. Errors of Redis, and
  // UNAVAILABLE (NODE_LEASE_LAPSED).
  absl::Status TakeLeftSessions();

  ClientLeases& leases() { return parts_.sessions.leases(); }
  RedisClientLeases& redis() { return parts_.share().client_leases(); }

  const FleetParts parts_;
  SessionArrivals& arrivals_;
  bool failing_ = false;             // the last round has failed, which was logged; used by the thread
  std::atomic<bool> silent_{false};  // Redis did not answer when it was last asked
  TaskGroup group_;
  std::optional<LoopThread> thread_;  // last: it uses all of the above
};

}  // namespace gdn
