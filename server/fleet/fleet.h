// Makes this server a member of a fleet: servers that share sessions through one Redis prefix (--share-sessions). One
// server at a time serves a session, and a session moves to the server that is called for it.
//
// Thread safety: safe from any thread, except Begin, Leave, LeaveRest and End, which are for the owner. Ownership: the
// parts must outlive the fleet.
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
#include "base/threads/stop_signal.h"
#include "server/fleet/fleet_leases.h"
#include "server/fleet/fleet_parts.h"
#include "server/fleet/node_lease.h"
#include "server/fleet/session_arrivals.h"
#include "server/fleet/session_departures.h"

namespace gdn {

struct FleetOptions {
  absl::Duration lease = absl::Seconds(15);
  // How long a draining server goes on serving before it hands its sessions over.
  absl::Duration notice = absl::Seconds(3);
  // How long calls for a session wait, from the first one on, while another server does not hand it over.
  absl::Duration longest_wait = absl::Seconds(30);
};

class Fleet {
 public:
  Fleet(const FleetParts& parts, const FleetOptions& options);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Joins the fleet: obtains this server's lease at Redis, and starts the threads. Blocks on Redis. Returns the error
  // if the lease cannot be obtained.
  absl::Status Begin();
  SessionArrivals& arrivals() { return arrivals_; }
  FleetLeases& leases() { return leases_; }  // leases of clients, not this server's own
  // Gives up this server's right to a session name in the shared store, after a call took the right to create a session
  // (BringRequest::make) but did not create it. Other servers may then use the name. Returns at once; the store is told
  // later.
  void GiveBackName(const StateKey& key) { arrivals_.GiveBack(key); }

  // Call when the server drains; blocks. For `notice` it hands sessions over when other servers ask for them, while
  // load balancers learn that this server is not ready. Then it takes no session in any more, and hands over all that
  // are left. Returns true if these have all left within `timeout`, counted from the end of `notice`.
  bool Leave(absl::Duration notice, absl::Duration timeout, const SessionDepartures::Progress& progress);
  // Hands over the sessions that are still here or have come since Leave, and blocks for `timeout` at most. Call after
  // the last call of the server has ended.
  void LeaveRest(absl::Duration timeout);
  // Gives the lease back. Call when no session is served any more, so that other servers may take the rest at once.
  // Otherwise they must wait until the lease runs out, as after a crash.
  void End();

  const std::string& name() const { return share_.name(); }
  const std::string& id() const { return share_.server(); }
  const NodeLease& lease() const { return lease_; }
  const SessionArrivals& arrivals() const { return arrivals_; }
  const SessionDepartures& departures() const { return departures_; }

 private:
  void ReadMailbox();
  void Stop();

  RedisShare& share_;
  SessionDepartures departures_;  // before lease_, which reports lost sessions to it
  NodeLease lease_;
  SessionArrivals arrivals_;
  FleetLeases leases_;
  StopSignal stop_;
  std::thread mailbox_;  // last: it uses all of the above
};

}  // namespace gdn
