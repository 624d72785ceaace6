#include "state_store/tiers/redis_share.h"

#include <utility>

#include "base/random_id.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr absl::Duration kLeaseConnectTimeout = absl::Milliseconds(500);
constexpr absl::Duration kLeaseAnswerTimeout = absl::Milliseconds(500);

}  // namespace

RedisShare::RedisShare(const std::string& prefix, std::string name, RedisClaim& claim, RedisPool& pool, RedisWait wait)
    : claim_(claim),
      pool_(pool),
      lease_pool_(pool.endpoint(), kLeaseConnectTimeout, wait.timeout + kLeaseAnswerTimeout),
      wait_(wait),
      claims_(prefix, RandomId(), claim.IncarnationKey()),
      node_(prefix, claims_.server(), std::move(name)) {}

absl::StatusOr<TakenSession> RedisShare::Take(const StateKey& session, bool make) {
  return pool_.Run([&](RedisConnection& redis) -> absl::StatusOr<TakenSession> {
    GDN_ASSIGN_OR_RETURN(TakenSession taken, claims_.Take(redis, session, make));
    if (taken.outcome == TakenSession::kMade || taken.outcome == TakenSession::kTaken) {
      GDN_RETURN_IF_ERROR(redis.WaitForReplicas(wait_.replicas, wait_.timeout));
    }
    return taken;
  });
}

absl::Status RedisShare::GiveUp(const StateKey& session, bool orderly) {
  return pool_.Run([&](RedisConnection& redis) -> absl::Status {
    GDN_RETURN_IF_ERROR(claims_.GiveUp(redis, session, orderly));
    return redis.WaitForReplicas(wait_.replicas, wait_.timeout);
  });
}

absl::Status RedisShare::GiveBack(const StateKey& session, absl::FunctionRef<bool()> is_here) {
  return pool_.Run([&](RedisConnection& redis) { return claims_.GiveBack(redis, session, is_here); });
}

absl::Status RedisShare::FindLost(bool lapsed, std::vector<StateKey>& lost) {
  return lease_pool_.Run([&](RedisConnection& redis) { return claims_.FindLost(redis, lapsed, lost); });
}

absl::StatusOr<bool> RedisShare::RenewLease(absl::Duration ttl) {
  return lease_pool_.Run([&](RedisConnection& redis) -> absl::StatusOr<bool> {
    GDN_RETURN_IF_ERROR(claim_.Check(redis));
    GDN_ASSIGN_OR_RETURN(const bool unbroken, node_.Renew(redis, ttl));
    GDN_RETURN_IF_ERROR(claims_.LookAtTerms(redis));
    GDN_RETURN_IF_ERROR(redis.WaitForReplicas(wait_.replicas, wait_.timeout));
    return unbroken;
  });
}

absl::Status RedisShare::EndLease() {
  return pool_.Run([&](RedisConnection& redis) { return node_.End(redis); });
}

absl::Status RedisShare::Ask(std::string_view holder, const StateKey& session) {
  return pool_.Run([&](RedisConnection& redis) { return node_.Ask(redis, holder, session); });
}

absl::StatusOr<std::optional<StateKey>> RedisShare::NextAsked(absl::Duration timeout) {
  return pool_.Run([&](RedisConnection& redis) { return node_.NextAsked(redis, timeout); });
}

}  // namespace gdn
