// Counts calls under way, and lets a thread wait until the last one has ended.
//
// Thread safety: safe from any thread. Ownership: must outlive its holds.
//
//   const OpenCount::Hold open = transfers.Begin();  // counts until it dies
//   const bool none = transfers.WaitForNone(absl::Seconds(30));
#pragma once

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/threads/steady_wait.h"

namespace gdn {

class OpenCount {
 public:
  class [[nodiscard]] Hold {
   public:
    Hold() = default;  // counts no call
    Hold(Hold&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(of_, other.of_);
      return *this;
    }
    ~Hold() {
      if (of_ == nullptr) return;
      absl::MutexLock lock(&of_->mu_);
      --of_->open_;
    }

   private:
    friend class OpenCount;
    explicit Hold(OpenCount* of) : of_(of) {}
    OpenCount* of_ = nullptr;
  };

  OpenCount() = default;
  OpenCount(const OpenCount&) = delete;
  OpenCount& operator=(const OpenCount&) = delete;

  Hold Begin() {
    absl::MutexLock lock(&mu_);
    ++open_;
    return Hold(this);
  }
  int open() const {
    absl::MutexLock lock(&mu_);
    return open_;
  }
  // Blocks until no call is under way, but at most for `timeout`. Returns true if no call is under way.
  bool WaitForNone(absl::Duration timeout = absl::InfiniteDuration()) {
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return open_ == 0; };
    absl::MutexLock lock(&mu_);
    return AwaitSteadily(mu_, absl::Condition(&none), timeout);
  }

 private:
  mutable absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
