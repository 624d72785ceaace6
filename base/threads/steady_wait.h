// Waits under an absl::Mutex with a timeout by the steady clock. absl::Mutex's own timeouts use the wall clock, so a
// change of the clock ends them at once or hours late.
//
// Polls every millisecond: use it for rare events, such as a server's shutdown.
// Thread safety: call with the mutex held; it is released between two polls. Ownership: borrows both.
//
//   absl::MutexLock lock(&mu_);
//   const bool idle = AwaitSteadily(mu_, absl::Condition(&is_idle), absl::Seconds(30));
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/threads/steady_clock.h"

namespace gdn {

// Waits until the condition is true, and returns true; returns false if `time` passes first. Evaluates the condition
// with `mu` held, every millisecond, and releases it between. `mu` is held on return.
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
