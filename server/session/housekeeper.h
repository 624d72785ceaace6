// Does periodic work: deletes sessions that have expired, makes due checkpoints, evicts idle sessions ahead of need,
// and trims the host tier. `look_around` does more (how full the disk is, prefixes that nobody uses).
//
// Thread safety: has a thread of its own. Ownership: the constructor's arguments must outlive it.
//
//   Housekeeper housekeeper(manager, checkpointer, residency, tiers, absl::Milliseconds(200));
#pragma once

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "base/stop_signal.h"
#include "base/this_thread.h"
#include "server/session/checkpointer.h"
#include "server/session/residency.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

class Housekeeper {
 public:
  Housekeeper(
      SessionManager& sessions, Checkpointer& checkpointer, Residency& residency, TierStack& tiers,
      absl::Duration interval, std::function<void()> look_around = [] {},
      const SteadyClock& clock = SteadyClock::Real())
      : thread_([this, &sessions, &checkpointer, &residency, &tiers, &clock, interval, look_around] {
          NameThisThread("gdn-housekeeper");
          while (!stop_.GivenWithin(interval)) {
            const SteadyTime now = clock.Now();
            sessions.DeleteExpired(now);
            checkpointer.Sweep(sessions.All(), now);
            residency.MoveIdleAhead();
            look_around();
            if (tiers.WantsTrim()) tiers.Trim();
          }
        }) {}
  ~Housekeeper() {
    stop_.Give();
    thread_.join();
  }
  Housekeeper(const Housekeeper&) = delete;
  Housekeeper& operator=(const Housekeeper&) = delete;

 private:
  StopSignal stop_;
  std::thread thread_;  // last, because it uses all of the above
};

}  // namespace gdn
