#include "state_store/tiers/redis/redis_tier.h"

#include <hiredis/hiredis.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/state_file/encode.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/disk/stored_file.h"

namespace gdn {
namespace {

constexpr std::string_view kMissingChunk = "a chunk of it is missing";
constexpr std::string_view kOthersFile = "its file is another session's";

absl::Status BadOption(std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, StrCat("the Redis tier's ", what));
}

// Most times that one call takes back the prefix of a store that is set back again and again.
constexpr int kMostRetakes = 3;

std::string HashPieces(const std::vector<std::string_view>& pieces) {
  Hasher hasher;
  for (std::string_view piece : pieces) hasher.Update(piece);
  return hasher.Finish().ToHex();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisTier>> RedisTier::Make(RedisTierOptions options, HostBlockPool& blocks) {
  GDN_ASSIGN_OR_RETURN(RedisEndpoint endpoint, ParseRedisEndpoint(options.endpoint));
  endpoint.password_file = options.password_file;
  GDN_RETURN_IF_ERROR(ReadRedisPassword(endpoint).status());  // checked now, before the first connection
  for (const char c : options.prefix) {
    // Braces would change the hash tag. The others have a meaning in SCAN's patterns.
    if (c <= ' ' || c > '~' || std::string_view("{}*?[]\\").find(c) != std::string_view::npos) {
      return BadOption(
          "prefix has a character that is not printable ASCII other than {}*?[]\\; expected one like 'gdn:'");
    }
  }
  if (options.chunk_bytes < kLeastChunkBytes || options.chunk_bytes > kMostChunkBytes) {
    return BadOption(StrCat("chunk_bytes are ", options.chunk_bytes, "; expected 1 KiB to 256 MiB"));
  }
  if (options.chunk_ttl < absl::Seconds(1)) return BadOption("chunk_ttl is less than a second");
  if (options.wait.replicas > 0 && options.wait.timeout >= options.command_timeout) {
    return BadOption(StrCat("wait for replicas is ", absl::FormatDuration(options.wait.timeout),
                            "; expected less than ", absl::FormatDuration(options.command_timeout)));
  }
  return std::unique_ptr<RedisTier>(new RedisTier(std::move(options), std::move(endpoint), blocks));
}

RedisTier::RedisTier(RedisTierOptions options, RedisEndpoint endpoint, HostBlockPool& blocks)
    : options_(std::move(options)),
      blocks_(blocks),
      pool_(std::move(endpoint), options_.connect_timeout, options_.command_timeout),
      claim_(options_.prefix, options_.share_sessions ? std::string(kSharedServer) : RandomId()),
      share_(options_.share_sessions
                 ? std::make_unique<RedisShare>(options_.prefix, options_.node_name, claim_, pool_, options_.wait)
                 : nullptr),
      folder_(options_.prefix, fence()) {}

RedisFence& RedisTier::fence() { return share_ == nullptr ? static_cast<RedisFence&>(claim_) : share_->claims(); }

template <typename Use>
auto RedisTier::RunFenced(const StateKey& key, Use use) -> decltype(use(std::declval<RedisConnection&>())) {
  GDN_RETURN_IF_ERROR(claim_.lost());
  for (int retakes = 0;; ++retakes) {
    auto result = pool_.Run(use);
    if (!IsFenced(StatusOf(result))) return result;
    GDN_RETURN_IF_ERROR(
        pool_.Run([&](RedisConnection& redis) { return fence().Recover(redis, key, StatusOf(result)); }));
    if (retakes == kMostRetakes)
      return RedisUnavailable(pool_.endpoint(), "another server takes what is this one's, and again");
  }
}

absl::Status RedisTier::CheckTaken() const {
  if (!claim_.token().empty()) return absl::OkStatus();
  return RedisUnavailable(pool_.endpoint(), "it has not answered since the server started");
}

absl::Status RedisTier::CheckTaken(const StateKey& key) const {
  GDN_RETURN_IF_ERROR(CheckTaken());
  if (share_ == nullptr || !share_->claims().token(key).empty()) return absl::OkStatus();
  return RedisError(pool_.endpoint(), absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver,
                    StrCat(key.ToString(), " is not this server's"));
}

absl::StatusOr<StoreResult> RedisTier::Store(const StateKey& key, const SessionImagePtr& image) {
  const absl::Status taken = CheckTaken(key);
  const absl::StatusOr<int64_t> bytes =
      taken.ok() ? RunFenced(key, [&](RedisConnection& redis) { return StoreFile(redis, key, image); }) : taken;
  absl::MutexLock lock(&mu_);
  Count(bytes.status());
  if (!bytes.ok()) return bytes.status();
  ++usage_.stores;
  usage_.stored_bytes += *bytes;
  SetBytes(key, *bytes);
  return StoreResult{.written_bytes = *bytes, .held_bytes = *bytes};
}

absl::StatusOr<int64_t> RedisTier::StoreFile(RedisConnection& redis, const StateKey& key,
                                             const SessionImagePtr& image) const {
  GDN_ASSIGN_OR_RETURN(const EncodedStateFile file, EncodeStateFile(image, {.include_owner = true}));
  const RedisManifest manifest = {.version = RandomId(),
                                  .bytes = file.bytes(),
                                  .chunk_bytes = options_.chunk_bytes,
                                  .xxh3 = HashPieces(file.pieces())};
  const std::vector<std::string> names = manifest.ChunkNames(folder_.SessionName(key));
  absl::Status status = SendChunks(redis, names, file.pieces());
  if (status.ok()) status = folder_.SwitchTo(redis, key, manifest);
  if (status.ok()) {
    GDN_RETURN_IF_ERROR(redis.WaitForReplicas(options_.wait.replicas, options_.wait.timeout));
    return file.bytes();
  }
  if (redis.Reusable()) {
    // The store refused, for example because its memory is full. Otherwise the chunks would use memory until they
    // expire.
    std::vector<std::string_view> unlink = {"UNLINK"};
    unlink.insert(unlink.end(), names.begin(), names.end());
    redis.Call(unlink).IgnoreError();
  }
  return status;
}

absl::Status RedisTier::SendChunks(RedisConnection& redis, const std::vector<std::string>& names,
                                   const std::vector<std::string_view>& pieces) const {
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
  if (share_ != nullptr) GDN_RETURN_IF_ERROR(CheckTaken(key));
  int64_t bytes = 0;
  absl::StatusOr<SessionImagePtr> image =
      RunFenced(key, [&](RedisConnection& redis) { return LoadImage(redis, key, bytes); });
  absl::MutexLock lock(&mu_);
  Count(image.status());
  if (image.ok()) {
    ++usage_.loads;
    usage_.loaded_bytes += bytes;
    SetBytes(key, bytes);
  }
  return image;
}

absl::StatusOr<bool> RedisTier::ReadChunks(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest,
                                           char* file) const {
  const std::string session = folder_.SessionName(key);
  const int64_t window = std::max<int64_t>(1, options_.window_bytes / manifest.chunk_bytes);
  const int64_t chunks = manifest.chunks();
  int64_t asked = 0;
  bool whole = true;
  for (int64_t chunk = 0; chunk < asked || (whole && chunk < chunks); ++chunk) {
    // The names are made when the chunks are asked for, because a damaged manifest may claim any number of chunks.
    std::deque<std::string> names;
    while (whole && asked < chunks && asked < chunk + window) {
      redis.Append({"GET", names.emplace_back(manifest.ChunkName(session, asked++))});
    }
    if (!names.empty()) GDN_RETURN_IF_ERROR(redis.Flush());
    GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis.Receive());
    const absl::Status answered = redis.CheckReply(*reply);
    if (!answered.ok()) {
      redis.Drain().IgnoreError();
      return answered;
    }
    const int64_t offset = chunk * manifest.chunk_bytes;
    const int64_t expected = std::min(manifest.chunk_bytes, manifest.bytes - offset);
    if (reply->type != REDIS_REPLY_STRING || static_cast<int64_t>(reply->len) != expected) {
      whole = false;  // replies to earlier requests still come
      continue;
    }
    std::memcpy(file + offset, reply->str, reply->len);
  }
  return whole;
}

absl::StatusOr<SessionImagePtr> RedisTier::LoadImage(RedisConnection& redis, const StateKey& key,
                                                     int64_t& bytes) const {
  for (int attempt = 0;; ++attempt) {
    GDN_ASSIGN_OR_RETURN(const RedisManifest manifest, folder_.ReadManifest(redis, key));
    const auto file = std::make_shared<HostBlock>();
    GDN_ASSIGN_OR_RETURN(*file, blocks_.TakeForFile(static_cast<size_t>(manifest.bytes)));
    const std::string_view view(file->chars(), static_cast<size_t>(manifest.bytes));
    GDN_ASSIGN_OR_RETURN(const bool whole, ReadChunks(redis, key, manifest, file->chars()));
    if (!whole || HashBytes(view).ToHex() != manifest.xxh3) {
      // A Store at the same time may have replaced the chunks. The new manifest then names a complete file.
      if (attempt == 0) continue;
      return DamagedInRedis(redis.endpoint(), key, whole ? "its checksum is not its manifest's" : kMissingChunk);
    }
    const absl::StatusOr<StateFile> parsed = ParseStateFile(view);
    if (!parsed.ok()) return WithPrefix(parsed.status(), StrCat("redis at ", endpoint(), ": ", key.ToString()));
    if (!CheckOwner(key, *parsed).ok()) return DamagedInRedis(redis.endpoint(), key, kOthersFile);
    GDN_ASSIGN_OR_RETURN(const StateLayout layout,
                         StateLayout::Make(parsed->header.dims, options_.max_draft, options_.base_dtype));
    bytes = manifest.bytes;
    GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(*parsed, layout, file));
    return std::make_shared<const SessionImage>(std::move(image));
  }
}

absl::Status RedisTier::Erase(const StateKey& key, bool all) {
  absl::Status status = CheckTaken(key);
  if (status.ok()) {
    status = RunFenced(key, [&](RedisConnection& redis) -> absl::Status {
      const absl::Status erased = folder_.Erase(redis, key, all);
      // The session's owner is erased together with its last state.
      if (share_ != nullptr && IsFenced(erased) && FencedOffBy(erased) == kNoOwner) return absl::OkStatus();
      GDN_RETURN_IF_ERROR(erased);
      return redis.WaitForReplicas(options_.wait.replicas, options_.wait.timeout);
    });
  }
  if (status.ok() && all && share_ != nullptr) share_->claims().Forget(key);
  absl::MutexLock lock(&mu_);
  Count(status);
  if (!status.ok()) return status;
  ForgetBytes(key, all);
  return status;
}

absl::StatusOr<std::vector<StoredSession>> RedisTier::List() {
  int64_t passed_over = 0;
  absl::StatusOr<std::vector<StoredSession>> sessions =
      RunFenced({}, [&](RedisConnection& redis) { return ListAll(redis, passed_over); });
  absl::MutexLock lock(&mu_);
  Count(sessions.status());
  usage_.failures += passed_over;
  if (sessions.ok()) {
    for (const StoredSession& session : *sessions) SetBytes(session.key, session.bytes);
  }
  return sessions;
}

absl::StatusOr<std::vector<StoredSession>> RedisTier::ListAll(RedisConnection& redis, int64_t& passed_over) const {
  std::vector<StoredSession> sessions;
  std::set<StateKey> seen;  // a page may list a key twice
  std::string cursor = "0";
  do {
    GDN_ASSIGN_OR_RETURN(const std::vector<StateKey> keys, folder_.ListPage(redis, cursor));
    for (const StateKey& key : keys) {
      if (!seen.insert(key).second) continue;
      absl::StatusOr<StoredSession> session = ReadHeader(redis, key);
      if (absl::IsUnavailable(session.status()) || IsFenced(session.status())) return session.status();
      if (absl::IsNotFound(session.status())) continue;  // erased meanwhile
      if (session.ok()) {
        sessions.push_back(*std::move(session));
        continue;
      }
      spdlog::warn("a stored state is passed over: {}",
                   std::string_view(session.status().message().data(), session.status().message().size()));
      ++passed_over;
    }
  } while (cursor != "0");
  return sessions;
}

absl::StatusOr<StoredSession> RedisTier::Describe(const StateKey& key) {
  if (share_ != nullptr) GDN_RETURN_IF_ERROR(CheckTaken(key));
  absl::StatusOr<StoredSession> stored = RunFenced(key, [&](RedisConnection& redis) { return ReadHeader(redis, key); });
  absl::MutexLock lock(&mu_);
  Count(stored.status());
  if (stored.ok()) SetBytes(key, stored->bytes);
  return stored;
}

absl::StatusOr<StoredSession> RedisTier::ReadHeader(RedisConnection& redis, const StateKey& key) const {
  for (int attempt = 0;; ++attempt) {
    GDN_ASSIGN_OR_RETURN(const RedisManifest manifest, folder_.ReadManifest(redis, key));
    const std::string session = folder_.SessionName(key);
    bool whole = true;
    const auto first_bytes = [&](int64_t bytes) -> absl::StatusOr<FileStart> {
      FileStart start{.bytes = {}, .file_bytes = manifest.bytes};
      bytes = std::min(bytes, manifest.bytes);
      for (int64_t chunk = 0; whole && chunk * manifest.chunk_bytes < bytes; ++chunk) {
        const int64_t wanted = std::min(manifest.chunk_bytes, bytes - chunk * manifest.chunk_bytes);
        const std::string last = std::to_string(wanted - 1);
        GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                             redis.Call({"GETRANGE", manifest.ChunkName(session, chunk), "0", last}));
        whole = reply->type == REDIS_REPLY_STRING && static_cast<int64_t>(reply->len) == wanted;
        if (whole) start.bytes.append(reply->str, reply->len);
      }
      return start;
    };
    GDN_ASSIGN_OR_RETURN(const FileStart head, ReadHead(first_bytes));
    if (!whole) {
      if (attempt == 0) continue;  // as in LoadImage
      return DamagedInRedis(redis.endpoint(), key, kMissingChunk);
    }
    absl::StatusOr<StateFile> parsed = ParseStateFileHeader(head.bytes, head.file_bytes);
    if (!parsed.ok()) return WithPrefix(parsed.status(), StrCat("redis at ", endpoint(), ": ", key.ToString()));
    if (!CheckOwner(key, *parsed).ok()) return DamagedInRedis(redis.endpoint(), key, kOthersFile);
    return DescribeStored(key, *std::move(parsed), manifest.bytes);
  }
}

absl::StatusOr<int64_t> RedisTier::NextIncarnation() {
  return pool_.Run([&](RedisConnection& redis) -> absl::StatusOr<int64_t> {
    GDN_ASSIGN_OR_RETURN(const int64_t incarnation, claim_.Take(redis));
    GDN_RETURN_IF_ERROR(redis.WaitForReplicas(options_.wait.replicas, options_.wait.timeout));
    return incarnation;
  });
}

absl::StatusOr<std::string> RedisTier::NoteStop() {
  GDN_RETURN_IF_ERROR(CheckTaken());
  return pool_.Run([&](RedisConnection& redis) { return claim_.NoteStop(redis); });
}

absl::StatusOr<std::vector<StateKey>> RedisTier::ListCheckpoints(const StateKey& session) {
  return pool_.Run([&](RedisConnection& redis) { return folder_.ListCheckpoints(redis, session); });
}

void RedisTier::Forget(const StateKey& session) {
  absl::MutexLock lock(&mu_);
  ForgetBytes(session, /*all=*/true);
}

void RedisTier::ForgetBytes(const StateKey& key, bool all) {
  const auto [begin, end] = all ? SessionRange(bytes_, key) : bytes_.equal_range(key);
  for (auto it = begin; it != end; ++it) usage_.used_bytes -= it->second;
  bytes_.erase(begin, end);
}

absl::StatusOr<std::string> RedisTier::KeepSecret(std::string_view proposed) {
  return pool_.Run([&](RedisConnection& redis) -> absl::StatusOr<std::string> {
    GDN_ASSIGN_OR_RETURN(std::string secret, folder_.KeepSecret(redis, proposed));
    GDN_RETURN_IF_ERROR(redis.WaitForReplicas(options_.wait.replicas, options_.wait.timeout));
    return secret;
  });
}

absl::Status RedisTier::CheckClaim() {
  GDN_RETURN_IF_ERROR(CheckTaken());
  return pool_.Run([&](RedisConnection& redis) { return claim_.Check(redis); });
}

TierUsage RedisTier::usage() const {
  absl::MutexLock lock(&mu_);
  TierUsage usage = usage_;
  usage.name = name();
  usage.sessions =
      std::count_if(bytes_.begin(), bytes_.end(), [](const auto& entry) { return entry.first.checkpoint.empty(); });
  absl::Status problem = claim_.lost();
  problem.Update(CheckTaken());
  usage.problem = std::string(problem.message());
  return usage;
}

void RedisTier::Count(const absl::Status& status) {
  if (IsTierFailure(status)) ++usage_.failures;
}

void RedisTier::SetBytes(const StateKey& key, int64_t bytes) {
  usage_.used_bytes += bytes - std::exchange(bytes_[key], bytes);
}

}  // namespace gdn
