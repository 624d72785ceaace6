// A token bucket: a rate of tokens per second, and a burst.
//
// The bucket is full at first. In any period at most burst + rate * period tokens can be taken. This is exact: the
// bucket counts billionths of a token as integers. A rate of 1 token per second adds one of these in a nanosecond.
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

// Highest rate (tokens per second) and highest burst. A burst's billionths of a token fit an int64_t.
inline constexpr int64_t kMostTokens = 1'000'000'000;

class TokenBucket {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Taking {
    bool taken = true;
    // Time until the bucket would have enough, if nobody else takes; 0 if taken; kNever: more than the burst was asked.
    int64_t wait_ns = 0;
    int64_t left = kNever;  // whole tokens left after this call; kNever: no limit
  };

  // Sets rate and burst, each 1 .. kMostTokens. Tokens in the bucket stay, up to the new burst; a bucket that had no
  // limit becomes full. `now_ns`, here and below: one steady clock. A time before the last one adds nothing.
  void Limit(int64_t per_second, int64_t burst, int64_t now_ns);
  void Unlimit();
  bool limited() const { return limited_.load(std::memory_order_relaxed); }

  // Takes all of `tokens` (0 or more), or none if the bucket has fewer. Does not wait. Always takes without a limit.
  Taking Take(int64_t tokens, int64_t now_ns);
  // Gives back tokens that were taken and not used. The bucket does not rise above the burst.
  void GiveBack(int64_t tokens);
  // Returns the number of whole tokens in the bucket; kNever without a limit.
  int64_t Left(int64_t now_ns);

 private:
  void Refill(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<bool> limited_{false};
  absl::Mutex mu_;
  int64_t per_second_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t burst_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t level_ ABSL_GUARDED_BY(mu_) = 0;  // tokens in the bucket at at_ns_, in billionths of a token
  int64_t at_ns_ ABSL_GUARDED_BY(mu_) = 0;  // time of level_, on the caller's clock
};

}  // namespace gdn
