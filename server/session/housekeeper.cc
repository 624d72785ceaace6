#include "server/session/housekeeper.h"

#include "absl/time/clock.h"
#include "base/this_thread.h"

namespace gdn {

Housekeeper::Housekeeper(SessionManager& sessions, Checkpointer& checkpointer, TierStack& tiers,
                         absl::Duration interval)
    : thread_([this, &sessions, &checkpointer, &tiers, interval] {
        NameThisThread("gdn-housekeeper");
        while (!stop_.WaitForNotificationWithTimeout(interval)) {
          const absl::Time now = absl::Now();
          sessions.DeleteExpired(now);
          checkpointer.Sweep(sessions.All(), now);
          if (tiers.WantsTrim()) tiers.Trim();
        }
      }) {}

Housekeeper::~Housekeeper() {
  stop_.Notify();
  thread_.join();
}

}  // namespace gdn
