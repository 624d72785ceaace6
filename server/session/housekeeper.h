// Does periodic work: deletes sessions that have expired, makes due checkpoints, evicts idle sessions ahead of need,
// and trims the host tier. `look_around` does more (how full the disk is, prefixes that nobody uses).
//
// Thread safety: has a thread of its own. Ownership: the constructor's arguments must outlive it.
//
//   Housekeeper housekeeper(manager, checkpointer, residency, tiers, absl::Milliseconds(200));
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "base/threads/steady_clock.h"
#include "server/session/durable/checkpointer.h"
#include "server/session/loop_thread.h"
#include "server/session/room/residency.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

class Housekeeper {
 public:
  Housekeeper(
      SessionManager& sessions, Checkpointer& checkpointer, Residency& residency, TierStack& tiers,
      absl::Duration interval, std::function<void()> look_around = [] {},
      const SteadyClock& clock = SteadyClock::Real())
      : thread_("gdn-housekeeper", interval,
                [&sessions, &checkpointer, &residency, &tiers, &clock, interval, look_around] {
                  const SteadyTime now = clock.Now();
                  sessions.DeleteExpired(now);
                  checkpointer.Sweep(sessions.All(), now);
                  residency.MoveIdleAhead();
                  look_around();
                  if (tiers.WantsTrim()) tiers.Trim();
                  return interval;
                }) {}

 private:
  LoopThread thread_;
};

}  // namespace gdn
