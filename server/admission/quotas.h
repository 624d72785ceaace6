// The quotas of one account, or of all accounts together, as the running server applies them.
//
// Limits may change while the server runs. Usage above a lowered limit stays, and may not grow.
// Thread safety: safe from any thread; calls of Set one at a time. Ownership: none; neither copied nor moved.
//
//   QuotaLine line;
//   line.Set(limits, now_ns);
//   if (used + 1 > line.limit(Quota::kSessions)) return QuotaExceeded({.quota = Quota::kSessions, ...});
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "server/admission/quota_limits.h"
#include "server/admission/token_bucket.h"

namespace gdn {

class QuotaLine {
 public:
  QuotaLine();
  QuotaLine(const QuotaLine&) = delete;
  QuotaLine& operator=(const QuotaLine&) = delete;

  void Set(const QuotaLimits& limits, int64_t now_ns);

  int64_t limit(Quota quota) const { return limits_[static_cast<size_t>(quota)].load(std::memory_order_relaxed); }
  // Returns how many tokens may come at once: the limit kTokenBurst, or if that is not set the tokens of one second.
  // Without a rate nothing limits tokens, and the result has no meaning.
  int64_t burst() const {
    const int64_t own = limit(Quota::kTokenBurst);
    return own == kNoQuota ? limit(Quota::kTokensPerSecond) : own;
  }
  TokenBucket& tokens() { return tokens_; }

 private:
  std::array<std::atomic<int64_t>, kQuotas> limits_;
  TokenBucket tokens_;
};

struct QuotaRefusal {
  Quota quota = Quota::kSessions;
  bool of_all = false;  // true: the quota is that of all callers together, else the caller's own
  int64_t needed = 0;
  int64_t used = 0;
  int64_t limit = 0;
  std::optional<int64_t> retry_after_ns = std::nullopt;  // when to try again, from now; nullopt: waiting does not help
};

// Makes the error RESOURCE_EXHAUSTED (QUOTA_EXCEEDED: quota, of, needed, used, limit, and retry_after_ms if waiting
// helps).
absl::Status QuotaExceeded(const QuotaRefusal& refusal);

}  // namespace gdn
