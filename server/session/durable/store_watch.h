// Asks a shared store at intervals whether it still belongs to this server. If another server has taken it, that server
// serves the sessions with a state there, and this one stops serving them. A store that did not answer at startup is
// taken into use once it does. If a store has lost states, they no longer count as durable, and later checkpoints store
// them again.
//
// Thread safety: has a thread of its own. Ownership: the parts must outlive it.
//
//   StoreWatch watch({.store = redis, .tiers = tiers, .sessions = sessions}, absl::Seconds(1));
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/session/loop_thread.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct StoreWatchParts {
  StateTier& store;
  TierStack& tiers;
  SessionManager& sessions;
  std::function<absl::Status()> take_in;  // takes a store into use that was absent at startup; nullptr: it is in use
  std::function<int64_t()> set_backs;     // returns how often the store was found to have lost states
};

class StoreWatch {
 public:
  StoreWatch(const StoreWatchParts& parts, absl::Duration interval);

 private:
  // Asks the store once, and acts on the answer; blocks on it. Returns true if the store belongs to another server, so
  // that nothing is left to be watched.
  bool Look();
  void StopServing(const absl::Status& why);
  void CountNothingDurable();

  const StoreWatchParts parts_;
  bool taken_in_;
  int64_t set_backs_ = 0;
  LoopThread thread_;  // last, because it uses all of the above
};

}  // namespace gdn
