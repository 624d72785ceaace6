// The ledger's quotas: limits of accounts, and of all accounts together.
#include <algorithm>
#include <utility>

#include "server/admission/byte_ledger.h"

namespace gdn {
namespace {

// The quota of each pool. Stored replies have none, because the oldest are dropped.
constexpr std::array<std::optional<Quota>, kBytePools> kPoolQuotas = {
    Quota::kCallBytes, Quota::kCopyBytes,  std::nullopt, Quota::kStateBytes, Quota::kDeviceBytes, Quota::kHostBytes,
    Quota::kDiskBytes, Quota::kRedisBytes, std::nullopt, Quota::kSessions,   Quota::kCheckpoints};

// Retry delay for quotas that get free by themselves when calls end: about two batches.
constexpr int64_t kCallsEndNanos = 100'000'000;
std::optional<int64_t> RetryAfter(Quota quota) {
  if (quota != Quota::kCallBytes && quota != Quota::kCopyBytes && quota != Quota::kDeviceBytes) return std::nullopt;
  return kCallsEndNanos;
}

// Fewest kept accounts before metered_ is cleaned.
constexpr size_t kFewMetered = 64;

}  // namespace

void ByteLedger::SetQuotas(const QuotaSettings& quotas, int64_t now_ns) {
  std::vector<ByteAccountPtr> accounts;  // destroyed after the lock, because the last owner of an account takes it
  absl::MutexLock lock(&mu_);
  quotas_ = quotas;
  quotas_set_ns_ = now_ns;
  all_.Set(quotas.all, now_ns);
  accounts = AccountsLocked();
  for (const ByteAccountPtr& account : accounts) SetQuotasOf(*account, now_ns);
}

void ByteLedger::SetQuotasOf(ByteAccount& account, int64_t now_ns) const {
  const auto own = account.listed_ ? quotas_.principals.find(account.name_) : quotas_.principals.end();
  account.quotas_.Set(own == quotas_.principals.end() ? quotas_.each : own->second.limits, now_ns);
}

std::optional<QuotaRefusal> ByteLedger::OverQuotaLocked(size_t pool, const ByteAccount& account, int64_t bytes) const {
  const std::optional<Quota> quota = kPoolQuotas[pool];
  if (!quota.has_value() || bytes == 0) return std::nullopt;
  for (const bool of_all : {false, true}) {
    const int64_t limit = (of_all ? all_ : account.quotas_).limit(*quota);
    const int64_t used = of_all ? pools_[pool].used : account.used_[pool];
    if (limit == kNoQuota || bytes <= limit - used) continue;
    return QuotaRefusal{.quota = *quota,
                        .of_all = of_all,
                        .needed = bytes,
                        .used = used,
                        .limit = limit,
                        .retry_after_ns = bytes <= limit ? RetryAfter(*quota) : std::nullopt};
  }
  return std::nullopt;
}

bool ByteLedger::MayWaitOnLocked(size_t pool, const ChargeAwaiter& waiter) const {
  const int64_t used = waiter.account_->used_[pool];
  return used == 0 || !OverQuotaLocked(pool, *waiter.account_, waiter.bytes_).has_value();
}

absl::StatusOr<ByteCharge> ByteLedger::ChargeWithinQuota(BytePool pool, const ByteAccountPtr& account, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (const auto over = OverQuotaLocked(Index(pool), *account, bytes); over.has_value()) return QuotaExceeded(*over);
  AddLocked(Index(pool), *account, bytes);
  return ByteCharge(this, pool, account, bytes);
}

absl::Status ByteLedger::RefuseQuota(const QuotaRefusal& refusal) {
  CountRefusal(refusal.quota);
  return QuotaExceeded(refusal);
}

absl::Status ByteLedger::TakeTokens(const ByteAccountPtr& account, int64_t tokens, int64_t now_ns) {
  QuotaLine& own = account->quotas_;
  if (tokens == 0 || (!own.tokens().limited() && !all_.tokens().limited())) return absl::OkStatus();
  if (!account->listed_ && own.tokens().limited()) KeepMetered(account, now_ns);
  for (const bool of_all : {false, true}) {
    QuotaLine& line = of_all ? all_ : own;
    const TokenBucket::Taking taking = line.tokens().Take(tokens, now_ns);
    if (taking.taken) continue;
    if (of_all) own.tokens().GiveBack(tokens);
    const bool never = taking.wait_ns == TokenBucket::kNever;
    const int64_t rate = line.limit(Quota::kTokensPerSecond);
    const int64_t burst = line.burst();
    return RefuseQuota({.quota = never ? Quota::kTokenBurst : Quota::kTokensPerSecond,
                        .of_all = of_all,
                        .needed = tokens,
                        .used = std::max<int64_t>(0, burst - taking.left),
                        .limit = never ? burst : rate,
                        .retry_after_ns = never ? std::nullopt : std::optional(taking.wait_ns)});
  }
  return absl::OkStatus();
}

void ByteLedger::GiveTokensBack(const ByteAccountPtr& account, int64_t tokens) {
  if (tokens == 0) return;
  account->quotas_.tokens().GiveBack(tokens);
  all_.tokens().GiveBack(tokens);
}

void ByteLedger::KeepMetered(const ByteAccountPtr& account, int64_t now_ns) {
  std::vector<ByteAccountPtr> dropped;  // destroyed after the lock
  absl::MutexLock lock(&mu_);
  if (std::exchange(account->metered_, true)) return;
  metered_.push_back(account);
  if (metered_.size() < 2 * std::max(metered_kept_, kFewMetered)) return;
  // An account with no other owner can take no tokens meanwhile, so it may go if its bucket is full.
  const auto of_no_use = std::partition(metered_.begin(), metered_.end(), [now_ns](const ByteAccountPtr& kept) {
    return kept.use_count() > 1 || kept->quotas_.tokens().Left(now_ns) < kept->quotas_.burst();
  });
  for (auto kept = of_no_use; kept != metered_.end(); ++kept) {
    (*kept)->metered_ = false;
    dropped.push_back(std::move(*kept));
  }
  metered_.erase(of_no_use, metered_.end());
  metered_kept_ = metered_.size();
}

std::vector<ByteLedger::QuotaUse> ByteLedger::QuotasOf(const ByteAccountPtr& account, int64_t now_ns) const {
  std::vector<QuotaUse> uses;
  const auto limit = [&](Quota quota) { return account->quotas_.limit(quota); };
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < kQuotas; ++i) {
    const auto quota = static_cast<Quota>(i);
    if (limit(quota) == kNoQuota) continue;
    QuotaUse& use = uses.emplace_back(QuotaUse{.quota = quota, .limit = limit(quota)});
    const auto pool = std::ranges::find(kPoolQuotas, std::optional(quota));
    if (pool != kPoolQuotas.end()) use.used = account->used_[static_cast<size_t>(pool - kPoolQuotas.begin())];
    if (quota == Quota::kTokenBurst)
      use.used = std::max<int64_t>(0, use.limit - account->quotas_.tokens().Left(now_ns));
  }
  return uses;
}

}  // namespace gdn
