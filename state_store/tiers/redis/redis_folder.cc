#include "state_store/tiers/redis/redis_folder.h"

#include <hiredis/hiredis.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Replaces a state. Runs after kFencedScript. KEYS: the owner, the session, the new chunks. ARGV: the token, the field,
// its manifest. It changes all or nothing, because all that can fail comes before the first change. If the old manifest
// cannot be parsed, it is replaced, and its chunks stay, because they are not known.
constexpr std::string_view kSwitchScript = R"(
local old = redis.call('HGET', KEYS[2], ARGV[2])
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return redis.error_reply('ERR a chunk expired before all were written') end
end
for i = 3, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
if old then
  local ok, m = pcall(cjson.decode, old)
  if ok and type(m) == 'table' and m.version and m.chunks then
    for i = 0, m.chunks - 1 do redis.call('UNLINK', KEYS[2] .. ':' .. m.version .. ':' .. string.format('%.0f', i)) end
  end
end
return redis.status_reply('OK'))";

// Erases states. Runs after kFencedScript. KEYS: the owner, the session. ARGV: the token, and the field, or none for
// all fields.
constexpr std::string_view kEraseScript = R"(
local fields = {ARGV[2]}
if #ARGV == 1 then fields = redis.call('HKEYS', KEYS[2]) end
for _, field in ipairs(fields) do
  local old = redis.call('HGET', KEYS[2], field)
  if old then
    local ok, m = pcall(cjson.decode, old)
    if ok and type(m) == 'table' and m.version and m.chunks then
      local name = KEYS[2] .. ':' .. m.version .. ':'
      for i = 0, m.chunks - 1 do redis.call('UNLINK', name .. string.format('%.0f', i)) end
    end
    redis.call('HDEL', KEYS[2], field)
  end
end
return redis.status_reply('OK'))";

// Reads a manifest. Runs after kFencedScript. KEYS: the owner, the session. ARGV: the token, the field.
constexpr std::string_view kReadScript = "return redis.call('HGET', KEYS[2], ARGV[2])";

constexpr std::string_view kScanCount = "1000";
constexpr std::string_view kState = "state";
constexpr std::string_view kCheckpoint = "checkpoint:";
// A bound against damaged manifests. No state is nearly as large.
constexpr int64_t kMaxFileBytes = int64_t{1} << 42;

// Returns the manifest's field in the session's hash. CheckpointOfField returns the checkpoint id of a field.
std::string ManifestField(const StateKey& key) {
  return key.checkpoint.empty() ? std::string(kState) : StrCat(kCheckpoint, key.checkpoint);
}

std::optional<std::string> CheckpointOfField(std::string_view field) {
  if (field == kState) return "";
  if (!field.starts_with(kCheckpoint) || field.size() == kCheckpoint.size()) return std::nullopt;
  return std::string(field.substr(kCheckpoint.size()));
}

}  // namespace

std::string RedisManifest::ChunkName(std::string_view session, int64_t chunk) const {
  return StrCat(session, ":", version, ":", chunk);
}

std::vector<std::string> RedisManifest::ChunkNames(std::string_view session) const {
  std::vector<std::string> names;
  for (int64_t i = 0; i < chunks(); ++i) names.push_back(ChunkName(session, i));
  return names;
}

std::string RedisManifest::ToJson() const {
  return nlohmann::json{
      {"version", version}, {"bytes", bytes}, {"chunk_bytes", chunk_bytes}, {"chunks", chunks()}, {"xxh3", xxh3}}
      .dump();
}

std::optional<RedisManifest> RedisManifest::Parse(std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  RedisManifest manifest;
  int64_t chunks = 0;
  for (const auto& [name, text] : {std::pair{"version", &manifest.version}, std::pair{"xxh3", &manifest.xxh3}}) {
    if (!parsed.contains(name) || !parsed[name].is_string()) return std::nullopt;
    *text = parsed[name].get<std::string>();
  }
  for (const auto& [name, number] : {std::pair{"bytes", &manifest.bytes}, std::pair{"chunks", &chunks},
                                     std::pair{"chunk_bytes", &manifest.chunk_bytes}}) {
    if (!parsed.contains(name) || !parsed[name].is_number_integer()) return std::nullopt;
    *number = parsed[name].get<int64_t>();
  }
  const bool possible = manifest.bytes >= 1 && manifest.bytes <= kMaxFileBytes &&
                        manifest.chunk_bytes >= kLeastChunkBytes && manifest.chunk_bytes <= kMostChunkBytes;
  if (!possible || chunks != manifest.chunks()) return std::nullopt;
  return manifest;
}

absl::Status DamagedInRedis(const RedisEndpoint& endpoint, const StateKey& key, std::string_view what) {
  return RedisError(endpoint, absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                    StrCat("the state of ", key.ToString(), " is damaged: ", what));
}

std::string RedisSessionName(std::string_view prefix, const StateKey& key) {
  return StrCat(prefix, "{", key.principal, "/", key.id, "}");
}

std::optional<StateKey> ParseRedisSession(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  return StateKey{
      .principal = std::string(text.substr(0, slash)), .id = std::string(text.substr(slash + 1)), .checkpoint = ""};
}

absl::StatusOr<RedisReply> RedisFolder::RunFenced(RedisConnection& redis, const StateKey& key, std::string_view token,
                                                  std::string_view script,
                                                  const std::vector<std::string_view>& arguments,
                                                  const std::vector<std::string>& more_keys) const {
  const std::string whole = StrCat(kFencedScript, script);
  const std::string keys = std::to_string(more_keys.size() + 2);
  const std::string owner = fence_.OwnerKey(key);
  const std::string session = SessionName(key);
  std::vector<std::string_view> words = {"EVAL", whole, keys, owner, session};
  words.insert(words.end(), more_keys.begin(), more_keys.end());
  words.push_back(token);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return redis.Call(words);
}

absl::StatusOr<RedisManifest> RedisFolder::ReadManifest(RedisConnection& redis, const StateKey& key) const {
  const std::string field = ManifestField(key);
  const std::string token = fence_.token(key);
  GDN_ASSIGN_OR_RETURN(const RedisReply reply, token.empty() ? redis.Call({"HGET", SessionName(key), field})
                                                             : RunFenced(redis, key, token, kReadScript, {field}));
  if (reply->type == REDIS_REPLY_NIL) {
    return RedisError(redis.endpoint(), absl::StatusCode::kNotFound,
                      key.checkpoint.empty() ? reason::kSessionNotFound : reason::kCheckpointNotFound,
                      StrCat("no state of ", key.ToString()));
  }
  std::optional<RedisManifest> manifest;
  if (reply->type == REDIS_REPLY_STRING) manifest = RedisManifest::Parse({reply->str, reply->len});
  if (manifest.has_value()) return *std::move(manifest);
  return DamagedInRedis(redis.endpoint(), key, "its manifest is not one of this server's");
}

absl::Status RedisFolder::SwitchTo(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest) const {
  const std::string field = ManifestField(key);
  const std::string json = manifest.ToJson();
  const std::vector<std::string> chunks = manifest.ChunkNames(SessionName(key));
  return RunFenced(redis, key, fence_.token(key), kSwitchScript, {field, json}, chunks).status();
}

absl::Status RedisFolder::Erase(RedisConnection& redis, const StateKey& key, bool all) const {
  const std::string field = ManifestField(key);
  std::vector<std::string_view> fields;
  if (!all) fields.emplace_back(field);
  return RunFenced(redis, key, fence_.token(key), kEraseScript, fields).status();
}

absl::StatusOr<std::vector<StateKey>> RedisFolder::ListPage(RedisConnection& redis, std::string& cursor) const {
  const std::string before = StrCat(prefix_, "{");
  const std::string pattern = StrCat(before, "*}");
  GDN_ASSIGN_OR_RETURN(const RedisReply page, redis.Call({"SCAN", cursor, "MATCH", pattern, "COUNT", kScanCount}));
  if (page->type != REDIS_REPLY_ARRAY || page->elements != 2 || page->element[0]->type != REDIS_REPLY_STRING ||
      page->element[1]->type != REDIS_REPLY_ARRAY) {
    return RedisUnavailable(redis.endpoint(), "an answer to SCAN that is not Redis'");
  }
  cursor.assign(page->element[0]->str, page->element[0]->len);
  const redisReply& names = *page->element[1];
  std::vector<StateKey> sessions;
  for (size_t i = 0; i < names.elements; ++i) {
    std::string_view name = ReplyText(*names.element[i]);
    if (!name.starts_with(before) || !name.ends_with('}')) continue;  // not a key that was asked for
    name.remove_prefix(before.size());
    name.remove_suffix(1);
    std::optional<StateKey> session = ParseRedisSession(name);
    if (!session.has_value()) continue;  // no tier made this key
    sessions.push_back(*std::move(session));
    redis.Append({"HKEYS", SessionName(sessions.back())});
  }
  GDN_RETURN_IF_ERROR(redis.Flush());
  std::vector<StateKey> keys;
  for (StateKey& session : sessions) {
    GDN_ASSIGN_OR_RETURN(const RedisReply fields, redis.Receive());
    if (fields->type != REDIS_REPLY_ARRAY) continue;  // a key of another type
    for (size_t i = 0; i < fields->elements; ++i) {
      std::optional<std::string> checkpoint = CheckpointOfField(ReplyText(*fields->element[i]));
      if (!checkpoint.has_value()) continue;
      session.checkpoint = *std::move(checkpoint);
      keys.push_back(session);
    }
  }
  return keys;
}

absl::StatusOr<std::vector<StateKey>> RedisFolder::ListCheckpoints(RedisConnection& redis,
                                                                   const StateKey& session) const {
  GDN_ASSIGN_OR_RETURN(const RedisReply fields, redis.Call({"HKEYS", SessionName(session)}));
  std::vector<StateKey> keys;
  for (size_t i = 0; fields->type == REDIS_REPLY_ARRAY && i < fields->elements; ++i) {
    const std::optional<std::string> checkpoint = CheckpointOfField(ReplyText(*fields->element[i]));
    if (!checkpoint.has_value() || checkpoint->empty()) continue;
    keys.push_back({.principal = session.principal, .id = session.id, .checkpoint = *checkpoint});
  }
  return keys;
}

absl::StatusOr<std::string> RedisFolder::KeepSecret(RedisConnection& redis, std::string_view proposed) const {
  const std::string name = StrCat(prefix_, "principal-key");
  GDN_RETURN_IF_ERROR(redis.Call({"SETNX", name, proposed}).status());
  GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Call({"GET", name}));
  if (reply->type == REDIS_REPLY_STRING && reply->len > 0) return std::string(reply->str, reply->len);
  return RedisUnavailable(redis.endpoint(), StrCat("GET ", name, " gave no text"));
}

}  // namespace gdn
