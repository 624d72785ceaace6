// A backend that forwards everything to another, and can fail operations that work on states: operators, copies within
// backend memory, and the end of a launch (StageOut, MakeFence). It does not forward an operation that fails.
//
// Thread safety: as Backend; Fail and Stop from any thread. Ownership: owns the other backend.
//
//   auto made = std::make_unique<FailingBackend>(*MakeCpuBackend({}));
//   made->Fail({.first = 3});  // the fourth operation from now on, and no other
//   const int64_t operations = made->Stop();
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "tests/support/forwarding_backend.h"

namespace gdn {

class FailingBackend final : public ForwardingBackend {
 public:
  explicit FailingBackend(std::unique_ptr<Backend> other) : ForwardingBackend(*other), owned_(std::move(other)) {}

  struct Failing {
    int64_t first = std::numeric_limits<int64_t>::max();  // counted from 0
    bool all_after = false;                               // all operations after the first fail too
  };
  // Counts operations from now on, and fails those that `failing` says.
  void Fail(const Failing& failing) {
    absl::MutexLock lock(&mu_);
    failing_ = failing;
    operations_ = 0;
  }
  // Ends the failures. Returns the number of operations since Fail.
  int64_t Stop() {
    absl::MutexLock lock(&mu_);
    failing_ = {};
    return operations_;
  }

  absl::Status Prepare(absl::FunctionRef<absl::Status()> issue) override {
    preparing_ = true;
    const absl::Status prepared = other_.Prepare(issue);
    preparing_ = false;
    return prepared;
  }

 private:
  absl::Status Operation(absl::FunctionRef<absl::Status()> run) override {
    if (preparing_) return run();
    {
      absl::MutexLock lock(&mu_);
      const int64_t number = operations_++;
      if (failing_.all_after ? number >= failing_.first : number == failing_.first) {
        return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                         "a test has this operation fail");
      }
    }
    return run();
  }

  const std::unique_ptr<Backend> owned_;
  bool preparing_ = false;  // used only by the thread that issues
  absl::Mutex mu_;
  Failing failing_ ABSL_GUARDED_BY(mu_);
  int64_t operations_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
