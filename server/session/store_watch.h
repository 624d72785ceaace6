// Asks a shared store now and then whether it is still this server's. Where another server has taken it, the sessions
// with a state there are served by that one, and no longer here. A store that did not answer when the server started is
// taken in once it does; one that has lost what it had is no longer counted on, and given it again by the checkpoints.
//
// Thread safety: has a thread of its own. Ownership: what it is made with must outlive it.
//
//   StoreWatch watch({.store = redis, .tiers = tiers, .sessions = sessions}, absl::Seconds(1));
#pragma once

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/stop_signal.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct StoreWatchParts {
  StateTier& store;
  TierStack& tiers;
  SessionManager& sessions;
  std::function<absl::Status()> take_in;  // of a store that is not in use yet; else nullptr
  std::function<int64_t()> set_backs;     // how often the store was found to have lost what it had
};

class StoreWatch {
 public:
  StoreWatch(const StoreWatchParts& parts, absl::Duration interval);
  ~StoreWatch();
  StoreWatch(const StoreWatch&) = delete;
  StoreWatch& operator=(const StoreWatch&) = delete;

 private:
  void Loop(absl::Duration interval);
  void StopServing(const absl::Status& why);
  void CountNothingDurable();

  const StoreWatchParts parts_;
  StopSignal stop_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gdn
