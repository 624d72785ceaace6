#include "server/admission/quotas.h"

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;

// Advice for a refused caller, by Quota.
constexpr std::string_view kDelete = "Delete sessions or named checkpoints that are of no use";
constexpr std::string_view kDeleteInTier = "Delete sessions or checkpoints that are of no use";
constexpr std::string_view kTryLater = "Try again once earlier calls have ended, or send less at a time";
constexpr std::string_view kSendInParts = "Send it in parts of at most so many tokens";
constexpr std::string_view kAskForLess = "Ask for less, or leave it out";
constexpr std::array<std::string_view, kQuotas> kRemedies = {
    kDelete,       "Delete checkpoints that are of no use (DeleteCheckpoint), or use an id again",
    kDelete,       "Step fewer sessions at a time, or delete some",
    kDeleteInTier, kDeleteInTier,
    kDeleteInTier, kTryLater,
    kTryLater,     kSendInParts,
    kSendInParts,  kAskForLess,
    kAskForLess};

std::string_view Remedy(const QuotaRefusal& refusal) {
  const bool of_tokens = refusal.quota == Quota::kTokensPerSecond || refusal.quota == Quota::kTokenBurst;
  if (of_tokens && refusal.retry_after_ns.has_value()) return "Send the same call again after the time of RetryInfo";
  return kRemedies[static_cast<size_t>(refusal.quota)];
}

std::string What(const QuotaRefusal& refusal) {
  const std::string_view whose = refusal.of_all ? "all callers together" : "the caller";
  const std::string_view name = QuotaName(refusal.quota);
  if (refusal.quota == Quota::kIdleTtl || refusal.quota == Quota::kMaxLifetime) {
    return StrCat(name, " is ", refusal.needed / kNanosPerMilli, " ms, and the quota of ", whose, " is ",
                  refusal.limit / kNanosPerMilli, " ms");
  }
  if (refusal.quota == Quota::kTokensPerSecond) {
    return StrCat("this call needs ", refusal.needed, " tokens, and ", whose,
                  refusal.of_all ? " have used " : " has used ", refusal.used, " of ", refusal.of_all ? "their" : "its",
                  " burst (token-burst); ", refusal.limit, " tokens are added each second (tokens-per-second)");
  }
  return StrCat("this needs ", refusal.needed, " of the quota ", name, ", of which ", whose, " has ", refusal.used,
                "; the limit is ", refusal.limit);
}

}  // namespace

QuotaLine::QuotaLine() {
  for (std::atomic<int64_t>& limit : limits_) limit.store(kNoQuota, std::memory_order_relaxed);
}

void QuotaLine::Set(const QuotaLimits& limits, int64_t now_ns) {
  for (size_t i = 0; i < kQuotas; ++i) limits_[i].store(limits[static_cast<Quota>(i)], std::memory_order_relaxed);
  const int64_t rate = limits[Quota::kTokensPerSecond];
  rate == kNoQuota ? tokens_.Unlimit() : tokens_.Limit(rate, burst(), now_ns);
}

absl::Status QuotaExceeded(const QuotaRefusal& refusal) {
  absl::Status status = MakeError(absl::StatusCode::kResourceExhausted, reason::kQuotaExceeded,
                                  StrCat(What(refusal), ". ", Remedy(refusal)),
                                  {{"quota", std::string(QuotaName(refusal.quota))},
                                   {"of", refusal.of_all ? "all" : "caller"},
                                   {"needed", StrCat(refusal.needed)},
                                   {"used", StrCat(refusal.used)},
                                   {"limit", StrCat(refusal.limit)}});
  if (!refusal.retry_after_ns.has_value()) return status;
  const int64_t millis = (*refusal.retry_after_ns - 1) / kNanosPerMilli + 1;
  return WithMetadata(std::move(status), "retry_after_ms", StrCat(millis));
}

}  // namespace gdn
