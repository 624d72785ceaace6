// Calls that move states and are worth waiting for when a server ends: exports, imports, checkpoints and the like.
// Streams that rest are none.
//
// Thread safety: safe from any thread. Ownership: must outlive what Begin returns.
//
//   const std::shared_ptr<void> open = transfers.Begin();  // for as long as it lives
//   bool none = transfers.WaitForNone(absl::Seconds(30));
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_wait.h"

namespace gdn {

class OpenTransfers {
 public:
  std::shared_ptr<void> Begin() {
    absl::MutexLock lock(&mu_);
    ++open_;
    return {nullptr, [this](void*) {
              absl::MutexLock closing(&mu_);
              --open_;
            }};
  }
  int open() const {
    absl::MutexLock lock(&mu_);
    return open_;
  }
  // Whether none is open, at the latest after `timeout`.
  bool WaitForNone(absl::Duration timeout) {
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return open_ == 0; };
    absl::MutexLock lock(&mu_);
    return AwaitSteadily(mu_, absl::Condition(&none), timeout);
  }

 private:
  mutable absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
