// Renews this server's lease in the fleet, and finds sessions that other servers have taken.
//
// A thread renews the lease every fifth of its length, and asks the store which sessions are still this server's. The
// server may then rely on them for four fifths of a lease, counted from before the renewal was sent. So a server that
// is cut off from Redis refuses its sessions a fifth of a lease before another may take them. If the lease had run out,
// all sessions are checked before any is relied on again.
// Thread safety: safe from any thread; Begin, Stop, End and the destructor are for the owner. Ownership: the parts must
// outlive the lease.
//
//   NodeLease lease({.share = share, .environment = environment, .on_lost = drop}, absl::Seconds(15));
//   GDN_RETURN_IF_ERROR(lease.Begin());
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/session/loop_thread.h"
#include "server/session/session_environment.h"
#include "state_store/tiers/redis/redis_share.h"

namespace gdn {

struct NodeLeaseParts {
  RedisShare& share;
  SessionEnvironment& environment;
  // Called at each renewal with the sessions, maybe none, that other servers have taken, before any session may be
  // relied on again.
  std::function<void(const std::vector<StateKey>&)> on_lost;
};

class NodeLease {
 public:
  NodeLease(const NodeLeaseParts& parts, absl::Duration lease);
  NodeLease(const NodeLease&) = delete;
  NodeLease& operator=(const NodeLease&) = delete;

  // Gets the first lease, then starts the thread that renews it. Blocks on Redis. Errors of RedisShare::RenewLease and
  // FindLost.
  absl::Status Begin();
  // Stops renewing, and waits for the thread. The lease then runs out by itself.
  void Stop() { thread_.reset(); }
  // Stops renewing and gives the lease back, so that others need not wait until it runs out. Call when no session is
  // served any more. Logs a warning if Redis does not take it. Does nothing if Begin has failed or Stop was called.
  void End();

  bool valid() const { return parts_.environment.CheckOurs().ok(); }
  absl::Duration lease() const { return lease_; }
  int64_t lapses() const { return lapses_; }  // how often the lease has run out

 private:
  // Renews the lease. Returns the time to wait before the next renewal.
  absl::Duration RenewAgain();
  absl::Status Renew();

  const NodeLeaseParts parts_;
  const absl::Duration lease_;
  std::atomic<int64_t> lapses_{0};
  // Used by the thread: the lease had run out, and not all sessions have been checked since.
  bool look_through_ = false;
  // When the last confirmed renewal was sent; InfiniteFuture: none yet.
  SteadyTime confirmed_ = SteadyTime::InfiniteFuture();
  bool failing_ = false;              // the last renewal has failed, which was logged; used by the thread
  std::optional<LoopThread> thread_;  // last: it uses all of the above
};

}  // namespace gdn
