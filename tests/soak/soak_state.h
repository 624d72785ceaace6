// What the threads of a long run share: whether it is over, and the first thing that went wrong.
//
// Thread safety: Fail and `over` from any thread; status from any, too. Ownership: a value that its threads
// borrow.
//
//   struct Soak : SoakState { std::atomic<int64_t> steps = 0; };
//   while (!soak.over) { if (absl::Status status = Step(); !status.ok()) soak.Fail(status); }
#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

class SoakState {
 public:
  std::atomic<bool> over = false;

  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    failure_.Update(status);
    over = true;
  }
  absl::Status status() {
    absl::MutexLock lock(&mu_);
    return failure_;
  }

 private:
  absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // the first
};

}  // namespace gdn
