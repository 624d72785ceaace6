#include "server/admission/token_bucket.h"

#include <algorithm>

namespace gdn {
namespace {

constexpr int64_t kParts = 1'000'000'000;  // parts of a token; level_ counts them
static_assert(kMostTokens <= std::numeric_limits<int64_t>::max() / kParts);

}  // namespace

void TokenBucket::Limit(int64_t per_second, int64_t burst, int64_t now_ns) {
  absl::MutexLock lock(&mu_);
  if (limited()) {
    Refill(now_ns);
    level_ = std::min(level_, burst * kParts);
  } else {
    level_ = burst * kParts;
    at_ns_ = now_ns;
  }
  per_second_ = per_second;
  burst_ = burst;
  limited_.store(true, std::memory_order_relaxed);
}

void TokenBucket::Unlimit() {
  absl::MutexLock lock(&mu_);
  limited_.store(false, std::memory_order_relaxed);
}

void TokenBucket::Refill(int64_t now_ns) {
  if (now_ns <= at_ns_) return;
  const __int128 passed = static_cast<__int128>(now_ns) - at_ns_;
  const __int128 full = static_cast<__int128>(burst_) * kParts;
  level_ = static_cast<int64_t>(std::min(full, level_ + passed * per_second_));
  at_ns_ = now_ns;
}

TokenBucket::Taking TokenBucket::Take(int64_t tokens, int64_t now_ns) {
  if (!limited()) return {};
  absl::MutexLock lock(&mu_);
  Refill(now_ns);
  if (tokens > burst_) return {.taken = false, .wait_ns = kNever, .left = level_ / kParts};
  const int64_t missing = tokens * kParts - level_;
  if (missing > 0) {
    // Rounded up, so that the tokens are there after the wait.
    return {.taken = false, .wait_ns = (missing - 1) / per_second_ + 1, .left = level_ / kParts};
  }
  level_ -= tokens * kParts;
  return {.taken = true, .wait_ns = 0, .left = level_ / kParts};
}

void TokenBucket::GiveBack(int64_t tokens) {
  if (!limited()) return;
  absl::MutexLock lock(&mu_);
  level_ = burst_ - level_ / kParts <= tokens ? burst_ * kParts : level_ + tokens * kParts;
}

int64_t TokenBucket::Left(int64_t now_ns) {
  if (!limited()) return kNever;
  absl::MutexLock lock(&mu_);
  Refill(now_ns);
  return level_ / kParts;
}

}  // namespace gdn
