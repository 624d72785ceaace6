#include "state_store/tiers/redis/redis_claim.h"

#include <hiredis/hiredis.h>
#include <spdlog/spdlog.h>

#include <string_view>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk/clean_marker.h"

namespace gdn {
namespace {

// Bytes of earlier owners that are remembered: 64 ids. An owner before these is taken for a later one.
constexpr std::string_view kBeforeBytes = "2112";

// Takes the prefix. KEYS: owner, incarnation. ARGV: this server, bytes of earlier owners to keep, the id of servers
// that share, kPrefixUnused, kPrefixUnknown. The script may run again, as after a lost reply: an owner is not its own
// predecessor, and for itself the script returns "" as the previous owner.
constexpr std::string_view kTakeScript = R"(
local last = redis.call('HMGET', KEYS[1], 'server', 'before', 'stopped')
if last[1] == ARGV[3] and ARGV[1] ~= ARGV[3] then return redis.error_reply('FENCED ' .. last[1]) end
local number = redis.call('INCR', KEYS[2])
local before = last[2] or ''
if last[1] and last[1] ~= ARGV[1] then before = last[1] .. ' ' .. before end
before = string.sub(before, 1, tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'server', ARGV[1], 'incarnation', number, 'before', before)
redis.call('HDEL', KEYS[1], 'stopped')
if last[1] == ARGV[1] then return {number, before, ''} end
return {number, before, not last[1] and ARGV[4] or last[3] == last[1] and last[1] or ARGV[5]})";

// Takes the prefix again after the store was set back. KEYS: owner, incarnation. ARGV: this server, its incarnation,
// the owners before it, the owner in the store.
constexpr std::string_view kRetakeScript = R"(
local owner = redis.call('HGET', KEYS[1], 'server') or 'nobody'
if owner ~= ARGV[1] and owner ~= ARGV[4] then return redis.error_reply('FENCED ' .. owner) end
redis.call('HSET', KEYS[1], 'server', ARGV[1], 'incarnation', ARGV[2], 'before', ARGV[3])
if tonumber(redis.call('GET', KEYS[2]) or '0') < tonumber(ARGV[2]) then redis.call('SET', KEYS[2], ARGV[2]) end
return redis.status_reply('OK'))";

// Records an orderly end. Runs after kFencedScript. ARGV: the token.
constexpr std::string_view kStopScript = R"(
redis.call('HSET', KEYS[1], 'stopped', owner)
return redis.status_reply('OK'))";

constexpr std::string_view kCheckScript = "return redis.status_reply('OK')";
constexpr std::string_view kOwner = "owner";  // key in the metadata of an IsFenced error

}  // namespace

bool IsFenced(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && ErrorMetadata(status).contains(std::string(kOwner));
}

std::string FencedOffBy(const absl::Status& status) { return ErrorMetadata(status)[std::string(kOwner)]; }

absl::StatusOr<int64_t> RedisClaim::Take(RedisConnection& redis) {
  GDN_RETURN_IF_ERROR(lost());
  absl::StatusOr<RedisReply> taken = redis.Call({"EVAL", kTakeScript, "2", OwnerKey(), IncarnationKey(), server_,
                                                 kBeforeBytes, kSharedServer, kPrefixUnused, kPrefixUnknown});
  if (IsFenced(taken.status())) {
    return RedisError(redis.endpoint(), absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver,
                      StrCat("servers with --share-sessions have the prefix '", prefix_,
                             "'; give this one that flag too, or a --redis-prefix of its own"));
  }
  GDN_RETURN_IF_ERROR(taken.status());
  const RedisReply reply = *std::move(taken);
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || reply->element[0]->type != REDIS_REPLY_INTEGER ||
      reply->element[1]->type != REDIS_REPLY_STRING || reply->element[2]->type != REDIS_REPLY_STRING) {
    return RedisUnavailable(redis.endpoint(), "an answer that is no owner's");
  }
  const std::string_view before(reply->element[1]->str, reply->element[1]->len);
  absl::MutexLock lock(&mu_);
  incarnation_ = reply->element[0]->integer;
  before_ = before;
  if (reply->element[2]->len > 0) found_.assign(reply->element[2]->str, reply->element[2]->len);
  if (found_.empty()) found_ = kPrefixUnknown;
  return incarnation_;
}

std::string RedisClaim::found() const {
  absl::MutexLock lock(&mu_);
  return found_;
}

absl::StatusOr<std::string> RedisClaim::NoteStop(RedisConnection& redis) const {
  const std::string script = StrCat(kFencedScript, kStopScript);
  GDN_RETURN_IF_ERROR(redis.Call({"EVAL", script, "1", OwnerKey(), token()}).status());
  return server_;
}

std::string RedisClaim::token() const {
  absl::MutexLock lock(&mu_);
  return incarnation_ == 0 ? "" : server_;
}

absl::Status RedisClaim::Recover(RedisConnection& redis, const absl::Status& fenced) {
  const std::string owner = FencedOffBy(fenced);
  std::string incarnation;
  std::string before;
  {
    absl::MutexLock lock(&mu_);
    GDN_RETURN_IF_ERROR(lost_);
    if (owner != kNoOwner && (" " + before_ + " ").find(" " + owner + " ") == std::string::npos) {
      lost_ = RedisError(redis.endpoint(), absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver,
                         StrCat("another server has taken over the states under the prefix '", prefix_,
                                "'; they are served there, and here no more"));
      spdlog::critical("{}; give each server a --redis-prefix of its own. This one keeps what is not there",
                       std::string(lost_.message()));
      return lost_;
    }
    incarnation = std::to_string(incarnation_);
    before = before_;
  }
  const absl::StatusOr<RedisReply> retaken =
      redis.Call({"EVAL", kRetakeScript, "2", OwnerKey(), IncarnationKey(), server_, incarnation, before, owner});
  if (IsFenced(retaken.status())) return Recover(redis, retaken.status());  // another call was faster
  GDN_RETURN_IF_ERROR(retaken.status());
  ++set_backs_;
  spdlog::critical(
      "redis at {} has gone back to a time before this server ({}): emptied, restored, or a replica that lagged. The "
      "prefix '{}' is taken again; states that are older than those this server stored are not served",
      redis.endpoint().ToString(), owner == kNoOwner ? "it has no owner" : "an owner before it", prefix_);
  return absl::OkStatus();
}

absl::Status RedisClaim::Check(RedisConnection& redis) {
  GDN_RETURN_IF_ERROR(lost());
  const std::string script = StrCat(kFencedScript, kCheckScript);
  const absl::Status answered = redis.Call({"EVAL", script, "1", OwnerKey(), token()}).status();
  return IsFenced(answered) ? Recover(redis, answered) : answered;
}

absl::Status RedisClaim::lost() const {
  absl::MutexLock lock(&mu_);
  return lost_;
}

}  // namespace gdn
