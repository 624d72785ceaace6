#include "state_store/tiers/redis/redis_share.h"

#include <hiredis/hiredis.h>

#include <utility>

#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/redis/redis_folder.h"

namespace gdn {
namespace {

// Renews the lease. KEYS: the lease. ARGV: its name, milliseconds. Returns how many renewals the lease had before; -1:
// there was no lease.
constexpr std::string_view kRenewScript = R"(
local before = tonumber(redis.call('HGET', KEYS[1], 'renewals') or '-1')
redis.call('HSET', KEYS[1], 'name', ARGV[1], 'renewals', string.format('%.0f', before < 0 and 0 or before + 1))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return before)";

// How long requests to a server are kept that nobody reads, because the server is gone.
constexpr std::string_view kMailboxMilliseconds = "60000";

constexpr absl::Duration kLeaseConnectTimeout = absl::Milliseconds(500);
constexpr absl::Duration kLeaseAnswerTimeout = absl::Milliseconds(500);

}  // namespace

RedisShare::RedisShare(std::string prefix, std::string name, RedisClaim& claim, RedisPool& pool, RedisWait wait)
    : prefix_(std::move(prefix)),
      name_(std::move(name)),
      claim_(claim),
      pool_(pool),
      lease_pool_(pool.endpoint(), kLeaseConnectTimeout, wait.timeout + kLeaseAnswerTimeout),
      wait_(wait),
      claims_(prefix_, RandomId(), claim.IncarnationKey()),
      client_leases_(prefix_, lease_pool_) {}

std::string RedisShare::MailboxOf(std::string_view server) const { return StrCat(prefix_, "asked:", server); }

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
    GDN_ASSIGN_OR_RETURN(const bool unbroken, Renew(redis, ttl));
    GDN_RETURN_IF_ERROR(claims_.LookAtTerms(redis));
    GDN_RETURN_IF_ERROR(redis.WaitForReplicas(wait_.replicas, wait_.timeout));
    return unbroken;
  });
}

absl::StatusOr<bool> RedisShare::Renew(RedisConnection& redis, absl::Duration ttl) {
  const std::string milliseconds = std::to_string(absl::ToInt64Milliseconds(ttl));
  GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                       redis.Call({"EVAL", kRenewScript, "1", RedisLeaseKey(prefix_, server()), name_, milliseconds}));
  if (reply->type != REDIS_REPLY_INTEGER) return RedisUnavailable(redis.endpoint(), "an answer that is no lease's");
  const int64_t before = reply->integer;
  // A renewal with a lost reply is not counted here, so the store's count may be higher.
  if (before >= 0 && before < renewals_) ++set_backs_;
  renewals_ = before + 1;
  return before >= 0;
}

absl::Status RedisShare::EndLease() {
  return pool_.Run([&](RedisConnection& redis) {
    return redis.Call({"DEL", RedisLeaseKey(prefix_, server()), MailboxOf(server())}).status();
  });
}

absl::Status RedisShare::Ask(std::string_view holder, const StateKey& session) {
  return pool_.Run([&](RedisConnection& redis) -> absl::Status {
    const std::string mailbox = MailboxOf(holder);
    GDN_RETURN_IF_ERROR(redis.Call({"RPUSH", mailbox, StrCat(session.principal, "/", session.id)}).status());
    return redis.Call({"PEXPIRE", mailbox, kMailboxMilliseconds}).status();
  });
}

absl::StatusOr<std::optional<StateKey>> RedisShare::NextAsked(absl::Duration timeout) {
  return pool_.Run([&](RedisConnection& redis) -> absl::StatusOr<std::optional<StateKey>> {
    const std::string seconds = std::to_string(absl::ToInt64Seconds(timeout));
    GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Call({"BLPOP", MailboxOf(server()), seconds}));
    if (reply->type == REDIS_REPLY_NIL) return std::nullopt;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[1]->type != REDIS_REPLY_STRING) {
      return RedisUnavailable(redis.endpoint(), "an answer to BLPOP that is not Redis'");
    }
    return ParseRedisSession(ReplyText(*reply, 1));
  });
}

}  // namespace gdn
