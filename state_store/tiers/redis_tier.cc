#include "state_store/tiers/redis_tier.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/state_file/encode.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/redis_manifest.h"

namespace gdn {

namespace {

// KEYS: the session, the new chunks. ARGV: the field, its manifest. All or nothing: whatever can fail comes before the first
// change. A manifest that cannot be parsed is replaced; its chunks are not known.
constexpr std::string_view kSwitchScript = R"(
local old = redis.call('HGET', KEYS[1], ARGV[1])
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return redis.error_reply('ERR a chunk expired before all were written') end
end
for i = 2, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if old then
  local ok, m = pcall(cjson.decode, old)
  if ok and type(m) == 'table' and m.version and m.chunks then
    for i = 0, m.chunks - 1 do redis.call('UNLINK', KEYS[1] .. ':' .. m.version .. ':' .. string.format('%.0f', i)) end
  end
end
return redis.status_reply('OK'))";

// KEYS: the session. ARGV: the field, or none for all.
constexpr std::string_view kEraseScript = R"(
local fields = ARGV
if #ARGV == 0 then fields = redis.call('HKEYS', KEYS[1]) end
for _, field in ipairs(fields) do
  local old = redis.call('HGET', KEYS[1], field)
  if old then
    local ok, m = pcall(cjson.decode, old)
    if ok and type(m) == 'table' and m.version and m.chunks then
      for i = 0, m.chunks - 1 do redis.call('UNLINK', KEYS[1] .. ':' .. m.version .. ':' .. string.format('%.0f', i)) end
    end
    redis.call('HDEL', KEYS[1], field)
  end
end
return redis.status_reply('OK'))";

absl::Status BadOption(std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, StrCat("the Redis tier's ", what));
}

std::string HashPieces(const std::vector<std::string_view>& pieces) {
  Hasher hasher;
  for (std::string_view piece : pieces) hasher.Update(piece);
  return hasher.Finish().ToHex();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisTier>> RedisTier::Make(RedisTierOptions options, HostBlockPool& memory) {
  GDN_ASSIGN_OR_RETURN(RedisEndpoint endpoint, ParseRedisEndpoint(options.endpoint));
  if (!options.password.empty()) endpoint.password = options.password;
  for (const char c : options.prefix) {
    // Braces are the hash tag's, the others have a meaning in SCAN's patterns.
    if (c <= ' ' || c > '~' || std::string_view("{}*?[]\\").find(c) != std::string_view::npos) {
      return BadOption(
          "prefix has a character that is not printable ASCII other than {}*?[]\\; expected one like 'gdn:'");
    }
  }
  if (options.chunk_bytes < 1024 || options.chunk_bytes > (int64_t{256} << 20)) {
    return BadOption(StrCat("chunk_bytes are ", options.chunk_bytes, "; expected 1 KiB to 256 MiB"));
  }
  if (options.chunk_ttl < absl::Seconds(1)) return BadOption("chunk_ttl is less than a second");
  return std::unique_ptr<RedisTier>(new RedisTier(std::move(options), std::move(endpoint), memory));
}

RedisTier::RedisTier(RedisTierOptions options, RedisEndpoint endpoint, HostBlockPool& memory)
    : options_(std::move(options)),
      memory_(memory),
      pool_(std::move(endpoint), options_.connect_timeout, options_.command_timeout) {}

std::string RedisTier::SessionName(const StateKey& key) const {
  return StrCat(options_.prefix, "{", key.principal, "/", key.id, "}");
}

absl::Status RedisTier::Damaged(const StateKey& key, std::string_view what) const {
  return RedisError(pool_.endpoint(), absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                    StrCat("the state of ", key.ToString(), " is damaged: ", what));
}

absl::StatusOr<StoreResult> RedisTier::Store(const StateKey& key, const SessionImagePtr& image) {
  const auto store = [&]() -> absl::StatusOr<int64_t> {
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> redis, pool_.Take());
    absl::StatusOr<int64_t> bytes = StoreFile(*redis, key, image);
    pool_.Return(std::move(redis));
    return bytes;
  };
  const absl::StatusOr<int64_t> bytes = store();
  absl::MutexLock lock(&mu_);
  Count(bytes.status());
  if (!bytes.ok()) return bytes.status();
  ++usage_.stores;
  usage_.stored_bytes += *bytes;
  SetBytes(key, *bytes);
  return StoreResult{.written_bytes = *bytes};
}

absl::StatusOr<int64_t> RedisTier::StoreFile(RedisConnection& redis, const StateKey& key,
                                             const SessionImagePtr& image) {
  GDN_ASSIGN_OR_RETURN(const EncodedStateFile file, EncodeStateFile(image, {.include_owner = true}));
  const RedisManifest manifest = {.version = RandomId(),
                                  .bytes = file.bytes(),
                                  .chunk_bytes = options_.chunk_bytes,
                                  .xxh3 = HashPieces(file.pieces())};
  const std::string session = SessionName(key);
  std::vector<std::string> names;
  for (int64_t i = 0; i < manifest.chunks(); ++i) names.push_back(manifest.ChunkName(session, i));

  absl::Status status = SendChunks(redis, names, file.pieces());
  if (status.ok()) {
    const std::string keys = std::to_string(names.size() + 1);
    const std::string field = ManifestField(key);
    const std::string json = manifest.ToJson();
    std::vector<std::string_view> arguments = {"EVAL", kSwitchScript, keys, session};
    arguments.insert(arguments.end(), names.begin(), names.end());
    arguments.insert(arguments.end(), {field, json});
    status = redis.Call(arguments).status();
  }
  if (status.ok()) return file.bytes();
  if (redis.Reusable()) {
    // Refused, as for want of memory. Left alone, the chunks would take that until they expire.
    std::vector<std::string_view> unlink = {"UNLINK"};
    unlink.insert(unlink.end(), names.begin(), names.end());
    redis.Call(unlink).IgnoreError();
  }
  return status;
}

absl::Status RedisTier::SendChunks(RedisConnection& redis, const std::vector<std::string>& names,
                                   const std::vector<std::string_view>& pieces) {
  const std::string ttl = std::to_string(absl::ToInt64Seconds(options_.chunk_ttl));
  const int64_t window = std::max<int64_t>(1, options_.window_bytes / options_.chunk_bytes);
  size_t piece = 0;
  size_t offset = 0;
  for (const std::string& name : names) {
    std::vector<std::string_view> value;
    auto left = static_cast<size_t>(options_.chunk_bytes);
    while (left > 0 && piece < pieces.size()) {
      const std::string_view part = pieces[piece].substr(offset, left);
      if (!part.empty()) value.push_back(part);
      left -= part.size();
      offset += part.size();
      if (offset == pieces[piece].size()) {
        ++piece;
        offset = 0;
      }
    }
    redis.Append({"SETEX", name, ttl}, value);
    GDN_RETURN_IF_ERROR(redis.Flush());
    while (redis.pending() > window) {
      GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Receive());
      if (absl::Status refused = redis.CheckReply(*reply); !refused.ok()) {
        redis.Drain().IgnoreError();
        return refused;
      }
    }
  }
  return redis.Drain();
}

absl::StatusOr<SessionImagePtr> RedisTier::Load(const StateKey& key) {
  int64_t bytes = 0;
  const auto load = [&]() -> absl::StatusOr<SessionImagePtr> {
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> redis, pool_.Take());
    absl::StatusOr<SessionImage> image = LoadImage(*redis, key, bytes);
    pool_.Return(std::move(redis));
    if (!image.ok()) return image.status();
    return std::make_shared<const SessionImage>(*std::move(image));
  };
  absl::StatusOr<SessionImagePtr> image = load();
  absl::MutexLock lock(&mu_);
  Count(image.status());
  if (image.ok()) {
    ++usage_.loads;
    usage_.loaded_bytes += bytes;
    SetBytes(key, bytes);
  }
  return image;
}

absl::StatusOr<RedisManifest> RedisTier::ReadManifest(RedisConnection& redis, const StateKey& key) const {
  GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Call({"HGET", SessionName(key), ManifestField(key)}));
  if (reply->type == REDIS_REPLY_NIL) {
    return RedisError(pool_.endpoint(), absl::StatusCode::kNotFound,
                      key.checkpoint.empty() ? reason::kSessionNotFound : reason::kCheckpointNotFound,
                      StrCat("no state of ", key.ToString()));
  }
  std::optional<RedisManifest> manifest;
  if (reply->type == REDIS_REPLY_STRING) manifest = RedisManifest::Parse({reply->str, reply->len});
  if (!manifest.has_value()) return Damaged(key, "its manifest is not one of this server's");
  return *std::move(manifest);
}

absl::StatusOr<bool> RedisTier::ReadChunks(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest,
                                           char* file) const {
  const std::string session = SessionName(key);
  const int64_t window = std::max<int64_t>(1, options_.window_bytes / manifest.chunk_bytes);
  const int64_t chunks = manifest.chunks();
  int64_t asked = 0;
  bool whole = true;
  for (int64_t chunk = 0; chunk < asked || (whole && chunk < chunks); ++chunk) {
    const int64_t first = asked;
    while (whole && asked < chunks && asked < chunk + window) {
      redis.Append({"GET", manifest.ChunkName(session, asked++)});
    }
    if (asked > first) GDN_RETURN_IF_ERROR(redis.Flush());
    GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Receive());
    const absl::Status answered = redis.CheckReply(*reply);
    if (!answered.ok()) {
      redis.Drain().IgnoreError();
      return answered;
    }
    const int64_t offset = chunk * manifest.chunk_bytes;
    const int64_t expected = std::min(manifest.chunk_bytes, manifest.bytes - offset);
    if (reply->type != REDIS_REPLY_STRING || static_cast<int64_t>(reply->len) != expected) {
      whole = false;  // what was asked for still comes
      continue;
    }
    std::memcpy(file + offset, reply->str, reply->len);
  }
  return whole;
}

absl::StatusOr<SessionImage> RedisTier::LoadImage(RedisConnection& redis, const StateKey& key, int64_t& bytes) const {
  for (int attempt = 0;; ++attempt) {
    GDN_ASSIGN_OR_RETURN(const RedisManifest manifest, ReadManifest(redis, key));
    const auto file = std::make_shared<HostBlock>();
    GDN_ASSIGN_OR_RETURN(*file, memory_.TakeForFile(static_cast<size_t>(manifest.bytes)));
    const std::string_view view(file->chars(), static_cast<size_t>(manifest.bytes));
    GDN_ASSIGN_OR_RETURN(const bool whole, ReadChunks(redis, key, manifest, file->chars()));
    if (!whole || HashBytes(view).ToHex() != manifest.xxh3) {
      // A Store at the same time takes the chunks away; what the manifest then names is whole.
      if (attempt == 0) continue;
      return Damaged(key, whole ? "its checksum is not its manifest's" : "a chunk of it is missing");
    }
    const absl::StatusOr<StateFile> parsed = ParseStateFile(view);
    if (!parsed.ok()) return WithPrefix(parsed.status(), StrCat("redis at ", endpoint(), ": ", key.ToString()));
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(parsed->header.dims, options_.max_draft));
    bytes = manifest.bytes;
    return ReadImage(*parsed, layout, file);
  }
}

absl::Status RedisTier::Erase(const StateKey& key) { return RunErase(key, /*all=*/false); }
absl::Status RedisTier::EraseAll(const StateKey& key) { return RunErase(key, /*all=*/true); }

absl::Status RedisTier::RunErase(const StateKey& key, bool all) {
  const auto erase = [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> redis, pool_.Take());
    const std::string session = SessionName(key);
    const std::string field = ManifestField(key);
    std::vector<std::string_view> arguments = {"EVAL", kEraseScript, "1", session};
    if (!all) arguments.emplace_back(field);
    absl::Status status = redis->Call(arguments).status();
    pool_.Return(std::move(redis));
    return status;
  };
  absl::Status status = erase();
  absl::MutexLock lock(&mu_);
  Count(status);
  if (!status.ok()) return status;
  if (!all) {
    SetBytes(key, 0);
    return status;
  }
  auto it = bytes_.lower_bound({.principal = key.principal, .id = key.id, .checkpoint = ""});
  while (it != bytes_.end() && it->first.principal == key.principal && it->first.id == key.id) {
    usage_.used_bytes -= it->second;
    it = bytes_.erase(it);
  }
  return status;
}

TierUsage RedisTier::usage() const {
  absl::MutexLock lock(&mu_);
  TierUsage usage = usage_;
  usage.name = name();
  usage.sessions = static_cast<int64_t>(bytes_.size());
  return usage;
}

void RedisTier::Count(const absl::Status& status) {
  // What is not there, or does not fit, is an answer and no failure.
  if (!status.ok() && !absl::IsNotFound(status) && !absl::IsResourceExhausted(status)) ++usage_.failures;
}

void RedisTier::SetBytes(const StateKey& key, int64_t bytes) {
  const auto it = bytes_.find(key);
  usage_.used_bytes += bytes - (it == bytes_.end() ? 0 : it->second);
  if (bytes > 0) {
    bytes_[key] = bytes;
  } else if (it != bytes_.end()) {
    bytes_.erase(it);
  }
}

}  // namespace gdn
