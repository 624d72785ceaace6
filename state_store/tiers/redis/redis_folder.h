// The keys of a RedisTier in its Redis server: their names, the manifests of files, and listings.
//
// All of a session's keys share a hash tag:
//   PREFIX{PRINCIPAL/ID}            hash: "state", "checkpoint:NAME" -> RedisManifest, as JSON;
//                                   "server" -> the session's owner (redis_share.h)
//   PREFIX{PRINCIPAL/ID}:VERSION:I  chunk I of the file
//   PREFIXowner, PREFIXincarnation  the owner of the prefix (redis_claim.h)
//   PREFIXprincipal-key             secret key that principals' names are hashed with
//   PREFIXleases, PREFIXlease-..    leases of clients (redis_client_leases.h)
// Errors of methods that take a connection: those of RedisConnection. SwitchTo and Erase return IsFenced if another
// server has the right; so does ReadManifest once this server has taken it.
// Thread safety: constant. Ownership: values.
//
//   const RedisFolder folder("gdn:", fence);
//   GDN_ASSIGN_OR_RETURN(RedisManifest manifest, folder.ReadManifest(redis, key));
//   std::string chunk = manifest.ChunkName(folder.SessionName(key), 0);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "state_store/tiers/redis/redis_connection.h"
#include "state_store/tiers/redis/redis_fence.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

// Limits of the size of a file's chunks (except the last), in bytes.
inline constexpr int64_t kLeastChunkBytes = 1024;
inline constexpr int64_t kMostChunkBytes = int64_t{256} << 20;

// Describes the chunks of a state's file.
struct RedisManifest {
  std::string version;  // part of the chunks' names; unique to the file
  int64_t bytes = 0;    // size of the file
  int64_t chunk_bytes = 0;
  std::string xxh3 = {};  // checksum of the whole file

  int64_t chunks() const { return (bytes + chunk_bytes - 1) / chunk_bytes; }
  std::string ChunkName(std::string_view session, int64_t chunk) const;
  std::vector<std::string> ChunkNames(std::string_view session) const;

  std::string ToJson() const;
  // nullopt if the text is not a manifest, or its numbers contradict each other.
  static std::optional<RedisManifest> Parse(std::string_view json);
};

std::string RedisSessionName(std::string_view prefix, const StateKey& key);  // PREFIX{PRINCIPAL/ID}
std::optional<StateKey> ParseRedisSession(std::string_view text);            // PRINCIPAL/ID; nullopt: another text

class RedisFolder {
 public:
  // `fence` must outlive this object.
  RedisFolder(std::string prefix, const RedisFence& fence) : prefix_(std::move(prefix)), fence_(fence) {}

  std::string SessionName(const StateKey& key) const { return RedisSessionName(prefix_, key); }

  // Reads the key's manifest. NOT_FOUND (SESSION_NOT_FOUND, CHECKPOINT_NOT_FOUND). DATA_LOSS (INVALID_STATE_FILE) if
  // the stored text is not a manifest.
  absl::StatusOr<RedisManifest> ReadManifest(RedisConnection& redis, const StateKey& key) const;
  // Makes the manifest's chunks the key's state: atomically sets the manifest, makes the chunks permanent and removes
  // those of the earlier manifest. All chunks must have been written; UNAVAILABLE, with nothing changed, if one has
  // expired.
  absl::Status SwitchTo(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest) const;
  // Erases the key's manifest and chunks atomically; with `all`, those of the session and of all its checkpoints. OK if
  // there are none. IsFenced if this server does not have the right, also because a shared session is not there at all.
  absl::Status Erase(RedisConnection& redis, const StateKey& key, bool all) const;

  // Lists the session's named checkpoints that have a manifest, in no order.
  absl::StatusOr<std::vector<StateKey>> ListCheckpoints(RedisConnection& redis, const StateKey& session) const;
  // Lists some of the keys with a manifest; a key may occur twice. `cursor` is "0" before the first and after the last.
  absl::StatusOr<std::vector<StateKey>> ListPage(RedisConnection& redis, std::string& cursor) const;
  // See StateTier::KeepSecret.
  absl::StatusOr<std::string> KeepSecret(RedisConnection& redis, std::string_view proposed) const;

 private:
  // Runs a script after kFencedScript. KEYS: the owner, the session, `more_keys`. ARGV: `token`, `arguments`.
  absl::StatusOr<RedisReply> RunFenced(RedisConnection& redis, const StateKey& key, std::string_view token,
                                       std::string_view script, const std::vector<std::string_view>& arguments,
                                       const std::vector<std::string>& more_keys = {}) const;

  const std::string prefix_;
  const RedisFence& fence_;
};

// Makes the error DATA_LOSS (INVALID_STATE_FILE: tier, endpoint) that `what` of the key's state is damaged.
absl::Status DamagedInRedis(const RedisEndpoint& endpoint, const StateKey& key, std::string_view what);

}  // namespace gdn
