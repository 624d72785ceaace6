#include "state_store/tiers/redis/redis_client_leases.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstdlib>

#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kMostAtOnce = 256;  // leases in one call of the script, which keeps Redis busy for its time

// KEYS: the leases, their graces. ARGV: what to do, then its arguments. Redis' own clock decides, so servers' clocks
// need not agree. `open`, `renew`, `find` and `end` take a lease and a grace in ms ("": not known), and return the
// grace and what is left of it; nothing if there is no such lease. `look` takes leases, each with its grace and what
// the server knows to be left, and returns what is left. `ended` takes ms and a limit, and returns leases with the ms
// since their end.
constexpr std::string_view kScript = R"(
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number) return string.format('%.0f', number) end
local function set(lease, grace, ends)
  redis.call('ZADD', KEYS[1], text(ends), lease)
  redis.call('HSET', KEYS[2], lease, grace)
end
local mode = ARGV[1]
if mode == 'look' then
  local left = {}
  for i = 2, #ARGV, 3 do
    local ends = redis.call('ZSCORE', KEYS[1], ARGV[i])
    local known = now + ARGV[i + 2]
    if not ends or (tonumber(ends) <= now and redis.call('HGET', KEYS[2], ARGV[i]) ~= 'ended') then
      if known > now then set(ARGV[i], ARGV[i + 1], known) end
      if not ends or known > now then ends = known end
    end
    left[#left + 1] = text(ends - now)
  end
  return left
end
if mode == 'ended' then
  local found = {}
  local entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now - ARGV[2]), 'WITHSCORES', 'LIMIT', 0, ARGV[3])
  for i = 1, #entries, 2 do
    found[#found + 1] = entries[i]
    found[#found + 1] = text(now - entries[i + 1])
  end
  return found
end
local lease, grace = ARGV[2], redis.call('HGET', KEYS[2], ARGV[2])
local ends = redis.call('ZSCORE', KEYS[1], lease)
if mode == 'forget' then
  if ends and tonumber(ends) <= now then
    redis.call('ZREM', KEYS[1], lease)
    redis.call('HDEL', KEYS[2], lease)
  end
  return {}
end
local lives = ends and grace and tonumber(ends) > now
if mode == 'end' then
  if lives then set(lease, 'ended', now) end
  return {}
end
if not lives then
  if mode == 'find' or ARGV[3] == '' or (mode == 'renew' and grace == 'ended') then return {} end
  grace = ARGV[3]
end
if mode == 'open' and grace ~= ARGV[3] then return {grace, text(ends - now)} end
if mode ~= 'find' then
  ends = now + grace
  set(lease, grace, ends)
end
return {grace, text(ends - now)})";

std::string MemberOf(const RedisClientLeases::Name& name) { return StrCat(name.principal, "/", name.id); }

std::string Milliseconds(absl::Duration time) { return std::to_string(absl::ToInt64Milliseconds(time)); }

absl::Duration TimeIn(const redisReply& reply, size_t index) {
  return absl::Milliseconds(std::strtoll(std::string(ReplyText(reply, index)).c_str(), nullptr, 10));
}

}  // namespace

absl::StatusOr<RedisReply> RedisClientLeases::Run(std::string_view mode, const std::vector<std::string>& arguments) {
  const std::string leases = StrCat(prefix_, "leases");
  const std::string graces = StrCat(prefix_, "lease-graces");
  std::vector<std::string_view> command = {"EVAL", kScript, "2", leases, graces, mode};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return pool_.Run([&](RedisConnection& redis) -> absl::StatusOr<RedisReply> {
    GDN_ASSIGN_OR_RETURN(RedisReply reply, redis.Call(command));
    if (reply->type != REDIS_REPLY_ARRAY) return RedisUnavailable(redis.endpoint(), "an answer that is no list");
    return reply;
  });
}

absl::StatusOr<std::optional<RedisClientLeases::Found>> RedisClientLeases::One(std::string_view mode, const Name& name,
                                                                               std::optional<absl::Duration> grace) {
  GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                       Run(mode, {MemberOf(name), grace.has_value() ? Milliseconds(*grace) : std::string()}));
  if (reply->elements < 2) return std::nullopt;
  return Found{.grace = TimeIn(*reply, 0), .left = TimeIn(*reply, 1)};
}

absl::StatusOr<RedisClientLeases::Found> RedisClientLeases::Open(const Name& name, absl::Duration grace) {
  GDN_ASSIGN_OR_RETURN(const std::optional<Found> found, One("open", name, grace));
  return found.value_or(Found{.grace = grace, .left = grace});
}

absl::StatusOr<std::optional<RedisClientLeases::Found>> RedisClientLeases::Renew(const Name& name,
                                                                                 std::optional<absl::Duration> grace) {
  return One("renew", name, grace);
}

absl::StatusOr<std::optional<RedisClientLeases::Found>> RedisClientLeases::Find(const Name& name) {
  return One("find", name, std::nullopt);
}

absl::Status RedisClientLeases::End(const Name& name) { return Run("end", {MemberOf(name)}).status(); }

absl::Status RedisClientLeases::Forget(const Name& name) { return Run("forget", {MemberOf(name)}).status(); }

absl::StatusOr<std::vector<absl::Duration>> RedisClientLeases::Look(const std::vector<Known>& known) {
  std::vector<absl::Duration> left;
  left.reserve(known.size());
  for (size_t first = 0; first < known.size(); first += kMostAtOnce) {
    const size_t count = std::min(kMostAtOnce, known.size() - first);
    std::vector<std::string> arguments;
    for (size_t i = first; i < first + count; ++i) {
      arguments.push_back(MemberOf(known[i].name));
      arguments.push_back(Milliseconds(known[i].grace));
      arguments.push_back(Milliseconds(known[i].left));
    }
    GDN_ASSIGN_OR_RETURN(const RedisReply reply, Run("look", arguments));
    if (reply->elements != count) return RedisUnavailable(pool_.endpoint(), "an answer for other leases");
    for (size_t i = 0; i < count; ++i) left.push_back(TimeIn(*reply, i));
  }
  return left;
}

absl::StatusOr<std::vector<std::pair<RedisClientLeases::Name, absl::Duration>>> RedisClientLeases::Ended(
    absl::Duration ago) {
  GDN_ASSIGN_OR_RETURN(const RedisReply reply, Run("ended", {Milliseconds(ago), std::to_string(kMostAtOnce)}));
  std::vector<std::pair<Name, absl::Duration>> ended;
  for (size_t i = 0; i + 1 < reply->elements; i += 2) {
    const std::string_view member = ReplyText(*reply, i);
    const size_t slash = member.find('/');
    if (slash == std::string_view::npos) continue;
    ended.emplace_back(
        Name{.principal = std::string(member.substr(0, slash)), .id = std::string(member.substr(slash + 1))},
        TimeIn(*reply, i + 1));
  }
  return ended;
}

absl::StatusOr<bool> RedisClientLeases::TakeScan(absl::Duration interval) {
  const std::string key = StrCat(prefix_, "lease-scan");
  const std::string milliseconds = Milliseconds(interval);
  return pool_.Run([&](RedisConnection& redis) -> absl::StatusOr<bool> {
    GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Call({"SET", key, "1", "NX", "PX", milliseconds}));
    return reply->type == REDIS_REPLY_STATUS;
  });
}

}  // namespace gdn
