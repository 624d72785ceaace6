// Progress of a server's drain, and a signal for calls that wait for its end.
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
  struct Sessions {  // numbers: all that the drain makes durable, and those that are durable or have failed
    int64_t all = 0;
    int64_t durable = 0;
    int64_t failed = 0;
  };
  struct Progress {
    absl::Time begin_time = absl::InfiniteFuture();  // InfiniteFuture: the drain has not begun
    Sessions sessions;
    bool ended = false;
    bool begun() const { return begin_time != absl::InfiniteFuture(); }
  };

  // Begins the drain now. Returns false, and changes nothing, if it had begun before.
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
  // Marks the drain as ended and raises ended(): the server has done everything that it does while it still answers
  // calls.
  void End() {
    {
      absl::MutexLock lock(&mu_);
      progress_.ended = true;
    }
    ended_.Raise();
  }
  // Returns the signal that End raises.
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
