// How far a server is on its way to its end, and who waits for it.
//
// Thread safety: safe from any thread. Ownership: must outlive the waits for `ended`.
//
//   DrainState drain;
//   drain.Begin();
//   drain.SetSessions({.all = 10});
//   drain.End();
//   GDN_CO_RETURN_IF_ERROR(co_await drain.ended().Wait(deadline));
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/task/signal.h"

namespace gdn {

class DrainState {
 public:
  struct Sessions {  // to be made durable
    int64_t all = 0;
    int64_t durable = 0;
    int64_t failed = 0;
  };
  struct Progress {
    absl::Time begin_time = absl::InfiniteFuture();  // until it has begun
    Sessions sessions;
    bool ended = false;
    bool begun() const { return begin_time != absl::InfiniteFuture(); }
  };

  // False if it had begun.
  bool Begin() {
    absl::MutexLock lock(&mu_);
    if (progress_.begun()) return false;
    progress_.begin_time = absl::Now();
    return true;
  }
  void SetSessions(const Sessions& sessions) {
    absl::MutexLock lock(&mu_);
    progress_.sessions = sessions;
  }
  // All is done that the server does while it answers calls, whether it had begun or not.
  void End() {
    {
      absl::MutexLock lock(&mu_);
      progress_.ended = true;
    }
    ended_.Raise();
  }
  // Raised by End.
  Signal& ended() { return ended_; }
  Progress progress() const {
    absl::MutexLock lock(&mu_);
    return progress_;
  }

 private:
  mutable absl::Mutex mu_;
  Progress progress_ ABSL_GUARDED_BY(mu_);
  Signal ended_;
};

}  // namespace gdn
