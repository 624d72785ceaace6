// The tier in a Redis server: a shared store, from which another server can take a session over.
//
// A state is its file (state_file/encode.h) in chunks, beside a manifest that names them; redis_folder.h says under
// which keys. Chunks expire while they are written. One script then lifts that, sets the manifest and drops the chunks
// of the one before, atomically: a reader finds the old file or the new one, never a manifest whose chunks may go, and
// a writer that dies leaves nothing behind for long. How much of it outlives the Redis server is for that server's
// settings to say (appendonly, appendfsync), and how much a failover keeps is `wait`'s. One server writes to a prefix,
// the last that took it (redis_claim.h); another that did before is refused with FAILED_PRECONDITION
// (STATES_TAKEN_OVER), whatever it asks for. With `share_sessions` that is so of each session by itself
// (redis_share.h).
// Thread safety: safe from any thread, a connection each. Ownership: the HostBlockPool must outlive it and the images.
//
//   GDN_ASSIGN_OR_RETURN(auto redis, RedisTier::Make({.endpoint = "10.0.0.7:6379", .max_draft = 8}, blocks));
//   GDN_RETURN_IF_ERROR(redis->NextIncarnation().status());
//   GDN_RETURN_IF_ERROR(redis->Store(key, image).status());
//   GDN_ASSIGN_OR_RETURN(SessionImagePtr again, redis->Load(key));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "state_store/tiers/redis_claim.h"
#include "state_store/tiers/redis_connection.h"
#include "state_store/tiers/redis_folder.h"
#include "state_store/tiers/redis_share.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

struct RedisTierOptions {
  std::string endpoint = {};       // as ParseRedisEndpoint takes it
  std::string password_file = {};  // RedisEndpoint::password_file
  std::string prefix = "gdn:";     // of all keys; tiers of different prefixes do not see each other
  absl::Duration connect_timeout = absl::Seconds(1);
  absl::Duration command_timeout = absl::Seconds(5);  // without any progress
  absl::Duration chunk_ttl = absl::Hours(1);          // of a file that is being written
  int64_t chunk_bytes = int64_t{1} << 20;
  int64_t window_bytes = int64_t{16} << 20;  // sent or asked for ahead of the replies
  RedisWait wait = {};
  bool share_sessions = false;  // with other servers
  std::string node_name = {};   // what this one is called to those; "": its id
  // The layout that loaded images are in.
  int32_t max_draft = 8;
  DType base_dtype = DType::kF32;  // states of another are refused, and stay
};

class RedisTier final : public StateTier {
 public:
  // Does not connect: a server that starts later will do. INVALID_ARGUMENT for an endpoint, prefix or size that cannot
  // be; UNAVAILABLE (TIER_UNAVAILABLE) where the password's file cannot be read.
  static absl::StatusOr<std::unique_ptr<RedisTier>> Make(RedisTierOptions options, HostBlockPool& blocks);

  std::string_view name() const override { return "redis"; }
  bool durable() const override { return true; }
  std::string endpoint() const { return pool_.endpoint().ToString(); }

  // UNAVAILABLE may also mean that the answer was lost: the new state is then there, whole.
  absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) override;
  absl::StatusOr<SessionImagePtr> Load(const StateKey& key) override;
  absl::Status Erase(const StateKey& key, bool all) override;
  absl::StatusOr<std::vector<StoredSession>> List() override;
  absl::StatusOr<StoredSession> Describe(const StateKey& key) override;
  // Takes the prefix, from whatever server has it; until then nothing can be stored or erased. UNAVAILABLE.
  absl::StatusOr<int64_t> NextIncarnation() override;
  absl::Status CheckClaim() override;
  absl::Status Probe() override {
    return pool_.Run([](RedisConnection& redis) { return redis.Call({"PING"}).status(); });
  }
  // RedisClaim's: the previous owner as NextIncarnation found it, and this server's orderly end, after its last write.
  std::string found() const { return claim_.found(); }
  absl::StatusOr<std::string> NoteStop();
  // The sum of RedisClaim's and RedisShare's.
  int64_t set_backs() const { return claim_.set_backs() + (share_ == nullptr ? 0 : share_->set_backs()); }
  RedisShare* share() { return share_.get(); }  // nullptr: the prefix is this server's alone
  // The named checkpoints of a session. Errors of the connection.
  absl::StatusOr<std::vector<StateKey>> ListCheckpoints(const StateKey& session);
  // The session is another server's now, with all that is here of it.
  void Forget(const StateKey& session);
  absl::StatusOr<std::string> KeepSecret(std::string_view proposed) override;
  // used_bytes and sessions: of what this object stored, loaded or listed.
  TierUsage usage() const override;

 private:
  RedisTier(RedisTierOptions options, RedisEndpoint endpoint, HostBlockPool& blocks);

  // What `use` answers of a connection, now that the key, or its prefix, is this server's.
  template <typename Use>
  auto RunFenced(const StateKey& key, Use use) -> decltype(use(std::declval<RedisConnection&>()));
  absl::Status CheckTaken() const;
  absl::Status CheckTaken(const StateKey& key) const;
  RedisFence& fence();
  absl::StatusOr<int64_t> StoreFile(RedisConnection& redis, const StateKey& key, const SessionImagePtr& image) const;
  absl::Status SendChunks(RedisConnection& redis, const std::vector<std::string>& names,
                          const std::vector<std::string_view>& pieces) const;
  // The whole file; false where a chunk is missing, as after a Store at the same time.
  absl::StatusOr<bool> ReadChunks(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest,
                                  char* file) const;
  absl::StatusOr<SessionImagePtr> LoadImage(RedisConnection& redis, const StateKey& key, int64_t& bytes) const;
  // Everything that is there; `passed_over` counts what is damaged.
  absl::StatusOr<std::vector<StoredSession>> ListAll(RedisConnection& redis, int64_t& passed_over) const;
  absl::StatusOr<StoredSession> ReadHeader(RedisConnection& redis, const StateKey& key) const;

  void Count(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetBytes(const StateKey& key, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RedisTierOptions options_;
  HostBlockPool& blocks_;
  RedisPool pool_;
  RedisClaim claim_;
  const std::unique_ptr<RedisShare> share_;
  const RedisFolder folder_;
  mutable absl::Mutex mu_;
  std::map<StateKey, int64_t> bytes_ ABSL_GUARDED_BY(mu_);
  TierUsage usage_ ABSL_GUARDED_BY(mu_);  // but for name and sessions
};

}  // namespace gdn
