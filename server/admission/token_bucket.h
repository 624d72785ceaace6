// A token bucket: so many tokens a second, and so many at once.
//
// It is full at first. What is taken in any stretch of time is at most burst + rate * time, to the token: it counts in
// integers, a billionth of a token each, which is what a rate of 1 brings in a nanosecond.
// Thread safety: safe from any thread; a bucket without a limit takes no lock. Ownership: none.
//
//   TokenBucket bucket;
//   bucket.Limit(/*per_second=*/1000, /*burst=*/2000, now_ns);
//   const TokenBucket::Taking taking = bucket.Take(64, now_ns);
//   if (!taking.taken) RetryAfter(taking.wait_ns);
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

inline constexpr int64_t kMostTokens = 1'000'000'000;  // a second, and at once

class TokenBucket {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Taking {
    bool taken = true;
    int64_t wait_ns = 0;    // until it would have so many, if nobody else takes; kNever: they are more than the burst
    int64_t left = kNever;  // whole tokens
  };

  // From now on. `per_second` and `burst`: 1 .. kMostTokens. What is in it stays, but for what no longer finds room; a
  // bucket that had no limit is full. Times are of one clock that does not stand still; one that goes back brings
  // nothing.
  void Limit(int64_t per_second, int64_t burst, int64_t now_ns);
  void Unlimit();
  bool limited() const { return limited_.load(std::memory_order_relaxed); }

  // All of `tokens` (0 or more), or none.
  Taking Take(int64_t tokens, int64_t now_ns);
  // What was taken and not used.
  void GiveBack(int64_t tokens);
  // Whole tokens that are in it; kNever without a limit.
  int64_t Left(int64_t now_ns);

 private:
  void Refill(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<bool> limited_{false};
  absl::Mutex mu_;
  int64_t per_second_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t burst_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t level_ ABSL_GUARDED_BY(mu_) = 0;  // billionths of a token
  int64_t at_ns_ ABSL_GUARDED_BY(mu_) = 0;  // of the level
};

}  // namespace gdn
