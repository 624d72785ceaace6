#include "state_store/tiers/redis_node.h"

#include <hiredis/hiredis.h>

#include <string>

#include "base/status_macros.h"
#include "base/string_cat.h"

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

}  // namespace

std::string RedisLeaseKey(std::string_view prefix, std::string_view server) { return StrCat(prefix, "node:", server); }

std::string RedisNode::MailboxOf(std::string_view server) const { return StrCat(prefix_, "asked:", server); }

absl::StatusOr<bool> RedisNode::Renew(RedisConnection& redis, absl::Duration ttl) {
  const std::string milliseconds = std::to_string(absl::ToInt64Milliseconds(ttl));
  GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                       redis.Call({"EVAL", kRenewScript, "1", RedisLeaseKey(prefix_, server_), name_, milliseconds}));
  if (reply->type != REDIS_REPLY_INTEGER) return RedisUnavailable(redis.endpoint(), "an answer that is no lease's");
  const int64_t before = reply->integer;
  // A renewal with a lost reply is not counted here, so the store's count may be higher.
  if (before >= 0 && before < renewals_) ++set_backs_;
  renewals_ = before + 1;
  return before >= 0;
}

absl::Status RedisNode::End(RedisConnection& redis) {
  return redis.Call({"DEL", RedisLeaseKey(prefix_, server_), MailboxOf(server_)}).status();
}

absl::Status RedisNode::Ask(RedisConnection& redis, std::string_view holder, const StateKey& session) const {
  const std::string mailbox = MailboxOf(holder);
  GDN_RETURN_IF_ERROR(redis.Call({"RPUSH", mailbox, StrCat(session.principal, "/", session.id)}).status());
  return redis.Call({"PEXPIRE", mailbox, kMailboxMilliseconds}).status();
}

absl::StatusOr<std::optional<StateKey>> RedisNode::NextAsked(RedisConnection& redis, absl::Duration timeout) const {
  const std::string seconds = std::to_string(absl::ToInt64Seconds(timeout));
  GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Call({"BLPOP", MailboxOf(server_), seconds}));
  if (reply->type == REDIS_REPLY_NIL) return std::nullopt;
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[1]->type != REDIS_REPLY_STRING) {
    return RedisUnavailable(redis.endpoint(), "an answer to BLPOP that is not Redis'");
  }
  const std::string_view name(reply->element[1]->str, reply->element[1]->len);
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return std::nullopt;  // no server wrote this
  return StateKey{
      .principal = std::string(name.substr(0, slash)), .id = std::string(name.substr(slash + 1)), .checkpoint = ""};
}

}  // namespace gdn
