// The shared state of a long run's threads: whether the run is over, and the first error.
//
// Thread safety: safe from any thread. Ownership: a value that the threads borrow.
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
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // the first error
};

}  // namespace gdn
