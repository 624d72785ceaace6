// How far a server is on its way to its end, and who waits for it.
//
// Thread safety: safe from any thread; callbacks come from the thread that ends the drain, without the lock. Ownership:
// none.
//
//   DrainState drain;
//   drain.Begin();
//   drain.SetSessions({.all = 10});
//   drain.WhenEnded([] { ... });
//   drain.End();
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

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

  // False where it had begun.
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
    std::vector<std::function<void()>> waiting;
    {
      absl::MutexLock lock(&mu_);
      progress_.ended = true;
      waiting = std::exchange(waiting_, {});
    }
    for (const std::function<void()>& done : waiting) done();
  }
  // Once; at once where it has ended.
  void WhenEnded(std::function<void()> done) {
    {
      absl::MutexLock lock(&mu_);
      if (!progress_.ended) return waiting_.push_back(std::move(done));
    }
    done();
  }
  Progress progress() const {
    absl::MutexLock lock(&mu_);
    return progress_;
  }

 private:
  mutable absl::Mutex mu_;
  Progress progress_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
