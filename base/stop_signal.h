// Tells a thread that works now and then to end, or one that waits that something has ended. Its waits are by the
// steady clock; Abseil's end at a time of the wall's clock, which may be set back by hours meanwhile.
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
  // Whether it was given, before or within this time.
  bool GivenWithin(absl::Duration time) {
    std::unique_lock lock(mu_);
    constexpr absl::Duration kForEver = absl::Hours(100'000);  // and no overflow
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(time, kForEver)), [this] { return given_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool given_ = false;  // guarded by mu_
};

}  // namespace gdn
