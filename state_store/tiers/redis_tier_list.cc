// What a RedisTier's server has.
#include <hiredis/hiredis.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/redis_manifest.h"
#include "state_store/tiers/redis_tier.h"

namespace gdn {

namespace {

constexpr std::string_view kScanCount = "1000";
// Most headers end within so many bytes, and are read by one call.
constexpr int64_t kGuessedBytes = 64 * 1024;
// A safetensors file begins with the length of its header. One that says more is not believed.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

}  // namespace

absl::StatusOr<std::vector<StoredSession>> RedisTier::List() {
  int64_t passed_over = 0;
  const auto list = [&]() -> absl::StatusOr<std::vector<StoredSession>> {
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> redis, pool_.Take());
    std::vector<StoredSession> sessions;
    std::set<StateKey> seen;  // SCAN may give a key twice
    std::string cursor = "0";
    do {
      GDN_ASSIGN_OR_RETURN(const std::vector<StateKey> keys, ListPage(*redis, cursor));
      for (const StateKey& key : keys) {
        if (!seen.insert(key).second) continue;
        absl::StatusOr<StoredSession> session = ReadHeader(*redis, key);
        if (absl::IsUnavailable(session.status())) return session.status();
        if (absl::IsNotFound(session.status())) continue;  // erased since
        if (session.ok()) {
          sessions.push_back(*std::move(session));
          continue;
        }
        spdlog::warn("a stored state is passed over: {}",
                     std::string_view(session.status().message().data(), session.status().message().size()));
        ++passed_over;
      }
    } while (cursor != "0");
    pool_.Return(std::move(redis));
    return sessions;
  };
  absl::StatusOr<std::vector<StoredSession>> sessions = list();
  absl::MutexLock lock(&mu_);
  Count(sessions.status());
  usage_.failures += passed_over;
  if (sessions.ok()) {
    for (const StoredSession& session : *sessions) SetBytes(session.key, session.bytes);
  }
  return sessions;
}

absl::StatusOr<std::vector<StateKey>> RedisTier::ListPage(RedisConnection& redis, std::string& cursor) const {
  const std::string pattern = StrCat(options_.prefix, "{*}");
  GDN_ASSIGN_OR_RETURN(const RedisReply page, redis.Call({"SCAN", cursor, "MATCH", pattern, "COUNT", kScanCount}));
  if (page->type != REDIS_REPLY_ARRAY || page->elements != 2 || page->element[0]->type != REDIS_REPLY_STRING ||
      page->element[1]->type != REDIS_REPLY_ARRAY) {
    return RedisError(pool_.endpoint(), absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                      "an answer to SCAN that is not Redis'");
  }
  cursor.assign(page->element[0]->str, page->element[0]->len);
  const redisReply& names = *page->element[1];
  std::vector<StateKey> sessions;
  for (size_t i = 0; i < names.elements; ++i) {
    std::string_view name(names.element[i]->str, names.element[i]->len);
    name.remove_prefix(options_.prefix.size() + 1);
    name.remove_suffix(1);
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos) continue;  // not of a tier's making
    sessions.push_back(
        {.principal = std::string(name.substr(0, slash)), .id = std::string(name.substr(slash + 1)), .checkpoint = ""});
    redis.Append({"HKEYS", SessionName(sessions.back())});
  }
  GDN_RETURN_IF_ERROR(redis.Flush());
  std::vector<StateKey> keys;
  for (StateKey& session : sessions) {
    GDN_ASSIGN_OR_RETURN(const RedisReply fields, redis.Receive());
    if (fields->type != REDIS_REPLY_ARRAY) continue;  // a key of another kind
    for (size_t i = 0; i < fields->elements; ++i) {
      std::optional<std::string> checkpoint = CheckpointOfField({fields->element[i]->str, fields->element[i]->len});
      if (!checkpoint.has_value()) continue;
      session.checkpoint = *std::move(checkpoint);
      keys.push_back(session);
    }
  }
  return keys;
}

absl::StatusOr<StoredSession> RedisTier::ReadHeader(RedisConnection& redis, const StateKey& key) const {
  for (int attempt = 0;; ++attempt) {
    GDN_ASSIGN_OR_RETURN(const RedisManifest manifest, ReadManifest(redis, key));
    std::string start;
    GDN_ASSIGN_OR_RETURN(bool whole, ReadStart(redis, key, manifest, std::min(manifest.bytes, kGuessedBytes), start));
    uint64_t header = 0;
    if (whole && start.size() >= sizeof(header)) {
      static_assert(std::endian::native == std::endian::little);
      std::memcpy(&header, start.data(), sizeof(header));
      if (header > kMaxHeaderBytes) return Damaged(key, StrCat("its header is said to have ", header, " bytes"));
      const auto bytes = static_cast<int64_t>(sizeof(header) + header);
      if (bytes > kGuessedBytes) {
        start.clear();
        GDN_ASSIGN_OR_RETURN(whole, ReadStart(redis, key, manifest, std::min(manifest.bytes, bytes), start));
      }
    }
    if (!whole) {
      if (attempt == 0) continue;  // as LoadImage does
      return Damaged(key, "a chunk of it is missing");
    }
    const absl::StatusOr<StateFile> parsed = ParseStateFileHeader(start, manifest.bytes);
    if (!parsed.ok()) return WithPrefix(parsed.status(), StrCat("redis at ", endpoint(), ": ", key.ToString()));
    if (parsed->header.principal != key.principal || parsed->header.id != key.id) {
      return Damaged(key, "its file is another session's");
    }
    StoredSession stored{.key = key,
                         .header = parsed->header,
                         .layers = {},
                         .kinds = {},
                         .stored_at = parsed->created,
                         .bytes = manifest.bytes};
    for (const StateFileLayer& layer : parsed->layers) {
      stored.layers.emplace_back(layer.layer, layer.extent);
      stored.kinds.push_back(layer.kind);
    }
    return stored;
  }
}

absl::StatusOr<bool> RedisTier::ReadStart(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest,
                                          int64_t bytes, std::string& start) const {
  const std::string session = SessionName(key);
  for (int64_t chunk = 0; chunk * manifest.chunk_bytes < bytes; ++chunk) {
    const int64_t wanted = std::min(manifest.chunk_bytes, bytes - chunk * manifest.chunk_bytes);
    GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                         redis.Call({"GETRANGE", manifest.ChunkName(session, chunk), "0", std::to_string(wanted - 1)}));
    if (reply->type != REDIS_REPLY_STRING || static_cast<int64_t>(reply->len) != wanted) return false;
    start.append(reply->str, reply->len);
  }
  return true;
}

}  // namespace gdn
