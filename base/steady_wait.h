// Waits with a limit under an absl::Mutex, by the steady clock. Those of absl::Mutex itself end at a time of the wall's
// clock: where that is set meanwhile, they end at once, or hours late.
//
// For what happens once, such as a server's end: it looks every millisecond.
// Thread safety: call with the mutex held, which is let go between two looks. Ownership: borrows both.
//
//   absl::MutexLock lock(&mu_);
//   const bool idle = AwaitSteadily(mu_, absl::Condition(&is_idle), absl::Seconds(30));
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"

namespace gdn {

// Whether the condition came true within this time.
inline bool AwaitSteadily(absl::Mutex& mu, const absl::Condition& condition, absl::Duration time)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  const SteadyTime end = SteadyNow() + time;
  while (!condition.Eval()) {
    if (SteadyNow() >= end) return false;
    mu.Unlock();
    absl::SleepFor(absl::Milliseconds(1));
    mu.Lock();
  }
  return true;
}

}  // namespace gdn
