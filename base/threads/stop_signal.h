// A flag to wait on: tells a periodic thread to stop, or a waiting thread that something has ended. Waits use the
// steady clock, because Abseil's use the wall clock, which may be set back by hours.
//
// Thread safety: safe from any thread. Ownership: must outlive the thread.
//
//   while (!stop.GivenWithin(absl::Seconds(1))) { ... }
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace gdn {

class StopSignal {
 public:
  void Give() {
    {
      const std::lock_guard lock(mu_);
      given_ = true;
    }
    changed_.notify_all();
  }
  // Waits at most `time` until the signal is given. Returns true if it has been given; it stays given for ever.
  bool GivenWithin(absl::Duration time) {
    std::unique_lock lock(mu_);
    constexpr absl::Duration kForEver = absl::Hours(100'000);  // finite, so that wait_for does not overflow
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(time, kForEver)), [this] { return given_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool given_ = false;  // guarded by mu_
};

}  // namespace gdn
