#include "state_store/tiers/redis/redis_session_claims.h"

#include <hiredis/hiredis.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/redis/redis_folder.h"

namespace gdn {
namespace {

// Takes a right. KEYS: the session, the count of terms, the count of starts. ARGV: this server, the prefix of lease
// keys, "1" to make a session. If this server already has the right, the reply of an earlier Take was lost, and steps
// may have happened before. If there is no count of terms yet, it starts above all terms that correspond to epochs of
// FirstEpoch, which a single server of this prefix may have used.
constexpr std::string_view kTakeSessionScript = R"(
if redis.call('EXISTS', ARGV[2] .. ARGV[1]) == 0 then return redis.error_reply('ERR this server has no lease') end
local owner = redis.call('HGET', KEYS[1], 'server')
local given_up = '-1'
if owner then
  local holder = string.match(owner, '^%S+')
  if holder == '-' then given_up = string.match(owner, '%d+$') or '0' end
  if holder ~= '-' and holder ~= '!' and holder ~= ARGV[1] then
    local name = redis.call('HGET', ARGV[2] .. holder, 'name')
    if name then return {'held', holder, name} end
  end
end
local kept = redis.call('HLEN', KEYS[1]) - (owner and 1 or 0)
if kept == 0 and ARGV[3] ~= '1' then
  if owner and string.match(owner, '^%S+') ~= ARGV[1] then redis.call('DEL', KEYS[1]) end
  return {'none'}
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SET', KEYS[2], string.format('%.0f', (tonumber(redis.call('GET', KEYS[3]) or '0') + 1) * 65536))
end
local term = string.format('%.0f', redis.call('INCR', KEYS[2]))
redis.call('HSET', KEYS[1], 'server', ARGV[1] .. ' ' .. term)
return {kept == 0 and 'made' or 'taken', term, given_up})";

// Gives up a right. Runs after kFencedScript. KEYS: the session. ARGV: the token, the new content of "server".
constexpr std::string_view kGiveUpScript = R"(
if redis.call('HLEN', KEYS[1]) == 1 then redis.call('DEL', KEYS[1])
else redis.call('HSET', KEYS[1], 'server', ARGV[2]) end
return redis.status_reply('OK'))";

// Gives up the right of this server, whatever its term. KEYS: the session. ARGV: this server.
constexpr std::string_view kGiveBackScript = R"(
local owner = redis.call('HGET', KEYS[1], 'server')
if not owner or string.match(owner, '^%S+') ~= ARGV[1] then return redis.status_reply('OK') end
if redis.call('HLEN', KEYS[1]) == 1 then redis.call('DEL', KEYS[1])
else redis.call('HSET', KEYS[1], 'server', '! ' .. string.match(owner, '%d+$')) end
return redis.status_reply('OK'))";

// Takes a right again after the store was set back. KEYS: the session. ARGV: the token, the owner in the store.
constexpr std::string_view kRetakeSessionScript = R"(
local owner = redis.call('HGET', KEYS[1], 'server') or 'nobody'
if owner ~= ARGV[1] and owner ~= ARGV[2] then return redis.error_reply('FENCED ' .. owner) end
redis.call('HSET', KEYS[1], 'server', ARGV[1])
return redis.status_reply('OK'))";

// Returns the term of a token, or 0 if it has none.
int64_t TermOf(std::string_view token) {
  const size_t space = token.find(' ');
  return space == std::string_view::npos ? 0 : std::strtoll(std::string(token.substr(space + 1)).c_str(), nullptr, 10);
}

}  // namespace

std::string RedisLeaseKey(std::string_view prefix, std::string_view server) { return StrCat(prefix, "node:", server); }

StateKey RedisSessionClaims::SessionOf(const StateKey& key) {
  return {.principal = key.principal, .id = key.id, .checkpoint = ""};
}

std::string RedisSessionClaims::TokenOf(int64_t term) const { return StrCat(server_, " ", term); }

absl::StatusOr<TakenSession> RedisSessionClaims::Take(RedisConnection& redis, const StateKey& session, bool make) {
  const std::string leases = RedisLeaseKey(prefix_, "");
  const std::string name = RedisSessionName(prefix_, session);
  const int64_t seen = highest_term();
  GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                       redis.Call({"EVAL", kTakeSessionScript, "3", name, StrCat(prefix_, "terms"), incarnation_key_,
                                   server_, leases, make ? "1" : "0"}));
  const std::string_view outcome = ReplyText(*reply, 0);
  TakenSession taken;
  if (outcome == "none") return taken;
  if (outcome == "held") {
    taken.outcome = TakenSession::kHeld;
    taken.holder = ReplyText(*reply, 1);
    taken.holder_name = ReplyText(*reply, 2);
    return taken;
  }
  taken.term = std::strtoll(std::string(ReplyText(*reply, 1)).c_str(), nullptr, 10);
  if ((outcome != "made" && outcome != "taken") || taken.term <= 0) {
    return RedisUnavailable(redis.endpoint(), "an answer that is no right to a session");
  }
  taken.outcome = outcome == "made" ? TakenSession::kMade : TakenSession::kTaken;
  NoteTerms(taken.term - 1, seen);
  const int64_t given_up = std::strtoll(std::string(ReplyText(*reply, 2)).c_str(), nullptr, 10);
  absl::MutexLock lock(&mu_);
  highest_term_ = std::max(highest_term_, taken.term);
  taken.orderly = given_up > distrusted_until_;
  claims_[SessionOf(session)] = {.term = taken.term, .lapses = lapses_};
  return taken;
}

int64_t RedisSessionClaims::highest_term() const {
  absl::MutexLock lock(&mu_);
  return highest_term_;
}

void RedisSessionClaims::NoteTerms(int64_t terms, int64_t seen) {
  absl::MutexLock lock(&mu_);
  highest_term_ = std::max(highest_term_, terms);
  if (terms >= seen) return;
  highest_term_ = distrusted_until_ = terms;
  ++set_backs_;
  spdlog::critical(
      "redis has gone back: it counts {} terms, and had {}. Sessions that it says were given up in order before are "
      "taken over as after a crash",
      terms, seen);
}

absl::Status RedisSessionClaims::LookAtTerms(RedisConnection& redis) {
  const int64_t seen = highest_term();
  GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Call({"GET", StrCat(prefix_, "terms")}));
  NoteTerms(std::strtoll(std::string(ReplyText(*reply)).c_str(), nullptr, 10), seen);
  return absl::OkStatus();
}

absl::Status RedisSessionClaims::GiveUp(RedisConnection& redis, const StateKey& session, bool orderly) {
  const std::optional<Claim> claim = Extract(session);
  if (!claim.has_value()) return absl::OkStatus();
  const std::string after = StrCat(orderly ? "- " : "! ", claim->term);
  const std::string script = StrCat(kFencedScript, kGiveUpScript);
  const std::string name = RedisSessionName(prefix_, session);
  return redis.Call({"EVAL", script, "1", name, TokenOf(claim->term), after}).status();
}

absl::Status RedisSessionClaims::GiveBack(RedisConnection& redis, const StateKey& session,
                                          absl::FunctionRef<bool()> is_here) {
  {
    // A call that makes a session with this name makes it visible first, and checks the right after that.
    absl::MutexLock lock(&mu_);
    if (is_here()) return absl::OkStatus();
    claims_.erase(SessionOf(session));
  }
  return redis.Call({"EVAL", kGiveBackScript, "1", RedisSessionName(prefix_, session), server_}).status();
}

std::optional<RedisSessionClaims::Claim> RedisSessionClaims::Extract(const StateKey& session) {
  absl::MutexLock lock(&mu_);
  const auto it = claims_.find(SessionOf(session));
  if (it == claims_.end()) return std::nullopt;
  const Claim claim = it->second;
  claims_.erase(it);
  return claim;
}

void RedisSessionClaims::Forget(const StateKey& session) {
  absl::MutexLock lock(&mu_);
  claims_.erase(SessionOf(session));
}

bool RedisSessionClaims::HasGoneBack(std::string_view owner, const Claim& claim) const {
  return owner == kNoOwner ? claim.lapses == lapses_ && lease_is_good_() : TermOf(owner) < claim.term;
}

absl::Status RedisSessionClaims::FindLost(RedisConnection& redis, bool lapsed, std::vector<StateKey>& lost) {
  std::vector<std::pair<StateKey, Claim>> held;
  int64_t lapses = 0;
  {
    absl::MutexLock lock(&mu_);
    lapses = lapses_ += lapsed ? 1 : 0;
    held.assign(claims_.begin(), claims_.end());
  }
  constexpr size_t kAtOnce = 256;
  for (size_t first = 0; first < held.size(); first += kAtOnce) {
    const size_t end = std::min(held.size(), first + kAtOnce);
    for (size_t i = first; i < end; ++i) redis.Append({"HGET", RedisSessionName(prefix_, held[i].first), "server"});
    GDN_RETURN_IF_ERROR(redis.Flush());
    for (size_t i = first; i < end; ++i) {
      GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Receive());
      if (absl::Status answered = redis.CheckReply(*reply); !answered.ok()) {
        redis.Drain().IgnoreError();
        return answered;
      }
      const std::string_view owner =
          reply->type == REDIS_REPLY_STRING ? std::string_view(reply->str, reply->len) : kNoOwner;
      const auto& [session, claim] = held[i];
      absl::MutexLock lock(&mu_);
      const auto it = claims_.find(session);
      if (it == claims_.end() || it->second.term != claim.term) continue;  // given up, or taken again since
      if (owner == TokenOf(claim.term)) {
        it->second.lapses = lapses;
      } else if (!HasGoneBack(owner, it->second)) {
        lost.push_back(session);
        claims_.erase(it);
      }
    }
  }
  return absl::OkStatus();
}

std::string RedisSessionClaims::OwnerKey(const StateKey& key) const { return RedisSessionName(prefix_, key); }

std::string RedisSessionClaims::token(const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = claims_.find(SessionOf(key));
  return it == claims_.end() ? "" : TokenOf(it->second.term);
}

absl::Status RedisSessionClaims::lost(const StateKey& /*key*/) const { return absl::OkStatus(); }

absl::Status RedisSessionClaims::Recover(RedisConnection& redis, const StateKey& key, const absl::Status& fenced) {
  const std::string owner = FencedOffBy(fenced);
  std::string mine;
  bool gone_back = false;
  {
    absl::MutexLock lock(&mu_);
    if (const auto it = claims_.find(SessionOf(key)); it != claims_.end()) {
      mine = TokenOf(it->second.term);
      gone_back = HasGoneBack(owner, it->second);
    }
  }
  if (!gone_back) {
    return RedisError(redis.endpoint(), absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver,
                      StrCat("another server has ", key.ToString(), " now; it is served there, and here no more"));
  }
  const std::string name = RedisSessionName(prefix_, key);
  const absl::StatusOr<RedisReply> retaken = redis.Call({"EVAL", kRetakeSessionScript, "1", name, mine, owner});
  if (IsFenced(retaken.status())) return Recover(redis, key, retaken.status());  // another call was faster
  GDN_RETURN_IF_ERROR(retaken.status());
  ++set_backs_;
  spdlog::critical(
      "redis at {} has gone back to a time before this server had {}: emptied, restored, or a replica that lagged. It "
      "is taken again; states that are older than those this server stored are not served",
      redis.endpoint().ToString(), key.ToString());
  return absl::OkStatus();
}

}  // namespace gdn
