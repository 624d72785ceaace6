// The names that a RedisTier has in its server: which keys are a session's, which files they stand for, what there is.
//
// All of a session's keys share a hash tag:
//   PREFIX{PRINCIPAL/ID}            hash: "state", "checkpoint:NAME" -> RedisManifest, as JSON;
//                                   "server" -> whose the session is (redis_share.h)
//   PREFIX{PRINCIPAL/ID}:VERSION:I  chunk I of the file
//   PREFIXowner, PREFIXincarnation  whose it all is (redis_claim.h)
//   PREFIXprincipal-key             what principals' names are made with
// Errors of all that take a connection: as of RedisConnection; where another server has the prefix, IsFenced: what is
// written is compared by the very script that writes, what is read only once the prefix was taken.
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
#include "state_store/tiers/redis_connection.h"
#include "state_store/tiers/redis_fence.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

// Of a file's chunks but the last.
inline constexpr int64_t kLeastChunkBytes = 1024;
inline constexpr int64_t kMostChunkBytes = int64_t{256} << 20;

// What is kept of a state beside its chunks: how many they are and what they hold.
struct RedisManifest {
  std::string version;  // of the chunks' names; no two files share one
  int64_t bytes = 0;    // the file's
  int64_t chunk_bytes = 0;
  std::string xxh3 = {};  // of the whole file

  int64_t chunks() const { return (bytes + chunk_bytes - 1) / chunk_bytes; }
  std::string ChunkName(std::string_view session, int64_t chunk) const;
  std::vector<std::string> ChunkNames(std::string_view session) const;

  std::string ToJson() const;
  // nullopt for what is not a manifest, or one whose numbers contradict each other.
  static std::optional<RedisManifest> Parse(std::string_view json);
};

std::string RedisSessionName(std::string_view prefix, const StateKey& key);  // PREFIX{PRINCIPAL/ID}

class RedisFolder {
 public:
  // `fence` must outlive it.
  RedisFolder(std::string prefix, const RedisFence& fence) : prefix_(std::move(prefix)), fence_(fence) {}

  std::string SessionName(const StateKey& key) const { return RedisSessionName(prefix_, key); }

  // NOT_FOUND (SESSION_NOT_FOUND, CHECKPOINT_NOT_FOUND); DATA_LOSS (INVALID_STATE_FILE) for what is no manifest.
  absl::StatusOr<RedisManifest> ReadManifest(RedisConnection& redis, const StateKey& key) const;
  // Makes the manifest's chunks, all of which have been written, the key's state: atomically, with those of the one
  // before dropped. They do not expire then.
  absl::Status SwitchTo(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest) const;
  // Erases the key's state, or with `all` the session's and all its checkpoints, manifest and chunks at once.
  absl::Status Erase(RedisConnection& redis, const StateKey& key, bool all) const;

  // The named checkpoints that the session has a manifest of.
  absl::StatusOr<std::vector<StateKey>> ListCheckpoints(RedisConnection& redis, const StateKey& session) const;
  // Some of the keys that have a manifest, perhaps one twice. `cursor` is "0" before the first call and after the last.
  absl::StatusOr<std::vector<StateKey>> ListPage(RedisConnection& redis, std::string& cursor) const;
  // As StateTier's.
  absl::StatusOr<std::string> KeepSecret(RedisConnection& redis, std::string_view proposed) const;

 private:
  const std::string prefix_;
  const RedisFence& fence_;
};

// DATA_LOSS (INVALID_STATE_FILE: tier, endpoint).
absl::Status DamagedInRedis(const RedisEndpoint& endpoint, const StateKey& key, std::string_view what);

}  // namespace gdn
