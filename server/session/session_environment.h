// The objects that all sessions of a server share: the ledger of accounts, the accounts that copies in the tiers are
// charged to, stored replies, the book of snapshots, version numbers of bases, and a listener for progress.
//
// Thread safety: safe from any thread; `on_progress` is set before the first session. Ownership: outlives every
// session; the ledger outlives it.
//
//   SessionEnvironment environment(ledger);
//   environment.on_progress = [&](const std::shared_ptr<Session>& session) { ... };
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "base/threads/steady_clock.h"
#include "server/admission/byte_ledger.h"
#include "server/session/room/session_holders.h"
#include "server/session/snapshots/snapshot_book.h"
#include "server/session/stored_replies.h"
#include "state_store/session_image.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class Session;

class SessionEnvironment {
 public:
  explicit SessionEnvironment(ByteLedger& ledger, const SteadyClock& clock = SteadyClock::Real())
      : ledger_(ledger), clock_(clock), holders_(ledger), replies_(ledger), snapshots_(ledger, clock) {}

  // Called after a step was committed, or a session was created with states, outside any lock. It must not block.
  std::function<void(const std::shared_ptr<Session>&)> on_progress;

  // Clock for ages and for what is due. The wall clock decides about no session's lifetime.
  const SteadyClock& clock() const { return clock_; }

  // Sets the time until which this server's sessions are surely its own. Only for servers that share sessions; without
  // a call, that time never ends.
  void SetOursUntil(SteadyTime time) { ours_until_.store(time.ToNanos(), std::memory_order_release); }
  // True if another server may take sessions of this one.
  bool shares_sessions() const { return ours_until_.load(std::memory_order_relaxed) != kForEver; }
  // OK while this server's sessions are surely its own, else UNAVAILABLE (NODE_LEASE_LAPSED).
  absl::Status CheckOurs() const;
  // Returns true if this server has the right to the session's name. Set before the first session, if servers share
  // sessions; null otherwise.
  std::function<bool(const StateKey&)> has_right = nullptr;

  BaseVersion NextBaseVersion() { return next_base_version_.fetch_add(1, std::memory_order_relaxed); }
  ByteLedger& ledger() { return ledger_; }
  SessionHolders& holders() { return holders_; }
  StoredReplies& replies() { return replies_; }
  SnapshotBook& snapshots() { return snapshots_; }

 private:
  ByteLedger& ledger_;
  const SteadyClock& clock_;
  SessionHolders holders_;
  StoredReplies replies_;
  SnapshotBook snapshots_;
  std::atomic<BaseVersion> next_base_version_{1};
  static constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> ours_until_{kForEver};
};

}  // namespace gdn
