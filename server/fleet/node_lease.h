// Keeps this server's lease among those that share sessions, and says what it has lost if the lease ran out.
//
// Every fifth of the lease it is renewed, and the store is asked which sessions are still this server's; these it then
// relies on for four fifths of a lease, counted from before the renewal was sent. So a server that is cut off from
// Redis refuses its sessions a fifth of a lease before another may take them. One whose lease had run out looks through
// all its sessions before it relies on any.
// Thread safety: safe from any thread; Begin, Stop, End and the destructor for its owner. Ownership: what it is made
// with must outlive it.
//
//   NodeLease lease({.share = share, .environment = environment, .on_lost = drop}, absl::Seconds(15));
//   GDN_RETURN_IF_ERROR(lease.Begin());
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/stop_signal.h"
#include "server/session/session_environment.h"
#include "state_store/tiers/redis_share.h"

namespace gdn {

struct NodeLeaseParts {
  RedisShare& share;
  SessionEnvironment& environment;
  // These sessions, maybe none, are another's now. Called with each renewal, before anybody may rely on them again.
  std::function<void(const std::vector<StateKey>&)> on_lost;
};

class NodeLease {
 public:
  NodeLease(const NodeLeaseParts& parts, absl::Duration lease);
  ~NodeLease();
  NodeLease(const NodeLease&) = delete;
  NodeLease& operator=(const NodeLease&) = delete;

  // The first one; then a thread keeps it. Errors of RedisShare::RenewLease.
  absl::Status Begin();
  // It is kept no more, and runs out.
  void Stop();
  // It is given back, so that others need not wait for its end. Call when no session is served any more.
  void End();

  bool valid() const { return parts_.environment.CheckOurs().ok(); }
  absl::Duration lease() const { return lease_; }
  int64_t lapses() const { return lapses_; }  // how often it has run out

 private:
  void Loop();
  absl::Status Renew();

  const NodeLeaseParts parts_;
  const absl::Duration lease_;
  std::atomic<int64_t> lapses_{0};
  bool look_through_ = false;  // its thread's: it had run out, and not all sessions have been looked at since
  SteadyTime confirmed_ = SteadyTime::InfiniteFuture();  // when the last one that was confirmed was asked for
  StopSignal stop_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gdn
