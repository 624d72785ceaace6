// This server as one of several that share sessions through one Redis prefix (--share-sessions): a session is one
// server's at a time, goes where it is called for, and is never two servers' at once.
//
// Thread safety: safe from any thread, but for Begin, Leave and End, which are the owner's. Ownership: what it is made
// with must outlive it.
//
//   Fleet fleet(parts, {.lease = absl::Seconds(15)});
//   GDN_RETURN_IF_ERROR(fleet.Begin());
//   const absl::Status here = co_await fleet.arrivals().Bring(key, std::move(request));
//   fleet.Leave(...);  // when the server drains
#pragma once

#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/stop_signal.h"
#include "base/task/executor.h"
#include "server/fleet/node_lease.h"
#include "server/fleet/session_arrivals.h"
#include "server/fleet/session_departures.h"
#include "server/session/device_room.h"
#include "server/session/recovery.h"
#include "server/session/session_environment.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/redis_tier.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct FleetParts {
  RedisTier& redis;  // that shares
  TierStack& tiers;
  DeviceRoom& room;
  SessionManager& sessions;
  SessionEnvironment& environment;
  Executor& executor;  // of what comes and goes; outlives the fleet as the others do
  SpecOfModelFn spec_of;
};

struct FleetOptions {
  absl::Duration lease = absl::Seconds(15);
  absl::Duration notice = absl::Seconds(3);         // how long a server serves on when it drains
  absl::Duration longest_wait = absl::Seconds(30);  // for a server that does not hand a session over
};

class Fleet {
 public:
  Fleet(const FleetParts& parts, const FleetOptions& options);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // From here on this server is one of the fleet. Errors of the first lease.
  absl::Status Begin();
  SessionArrivals& arrivals() { return arrivals_; }
  // The right to a name that no session was made of goes back, some time later.
  void GiveBackName(const StateKey& key) { arrivals_.GiveBack(key); }

  // The server drains: for `notice` sessions go as others ask for them, while routers learn that this one is not ready;
  // then no session is taken in any more, and all that are left go. True if they have, within `timeout`.
  bool Leave(absl::Duration notice, absl::Duration timeout, const SessionDepartures::Progress& progress);
  // After the last call: what has come since goes, too.
  void LeaveRest(absl::Duration timeout);
  // No session is served any more, so that others may have what is left. Without it, as if the process is killed, they
  // wait for the end of the lease.
  void End();

  const std::string& name() const { return share_.node().name(); }
  const std::string& id() const { return share_.node().server(); }
  const NodeLease& lease() const { return lease_; }
  const SessionArrivals& arrivals() const { return arrivals_; }
  const SessionDepartures& departures() const { return departures_; }

 private:
  void ReadMailbox();
  void Stop();

  RedisShare& share_;
  SessionDepartures departures_;  // outlives the lease, which tells it what is lost
  NodeLease lease_;
  SessionArrivals arrivals_;
  StopSignal stop_;
  std::thread mailbox_;  // last: it uses all of the above
};

}  // namespace gdn
