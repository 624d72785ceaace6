// The tier in a Redis server: a shared store, from which another server can take over a session.
//
// A state is stored as its file (state_file/encode.h) in chunks, with a manifest that names them; redis_folder.h has
// the key names. While chunks are written, they have an expiry time. Then one script atomically makes them permanent,
// sets the manifest and removes the earlier chunks. So a reader finds the old or the new file, never a manifest whose
// chunks may expire; and if a writer dies, its chunks expire. Redis' settings (appendonly, appendfsync) decide what
// survives a crash of Redis; `wait` decides what survives a failover. Only the server that took the prefix last may use
// it (redis_claim.h). An earlier one gets FAILED_PRECONDITION (STATES_TAKEN_OVER) from every call. With
// `share_sessions` this holds for each session separately (redis_share.h).
// Thread safety: safe from any thread; each call takes a connection of its own. Ownership: the HostBlockPool must
// outlive it and the images.
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
#include "state_store/tiers/redis/redis_claim.h"
#include "state_store/tiers/redis/redis_connection.h"
#include "state_store/tiers/redis/redis_folder.h"
#include "state_store/tiers/redis/redis_share.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

struct RedisTierOptions {
  std::string endpoint = {};       // in the syntax of ParseRedisEndpoint
  std::string password_file = {};  // RedisEndpoint::password_file
  std::string prefix = "gdn:";  // beginning of all keys; tiers with different prefixes do not see each other's states
  absl::Duration connect_timeout = absl::Seconds(1);
  absl::Duration command_timeout = absl::Seconds(5);  // longest time that a command may make no progress
  absl::Duration chunk_ttl = absl::Hours(1);          // expiry time of chunks while their file is being written
  int64_t chunk_bytes = int64_t{1} << 20;
  int64_t window_bytes = int64_t{16} << 20;  // most bytes that are sent or requested before their replies arrive
  RedisWait wait = {};
  bool share_sessions = false;  // share the prefix with other servers
  std::string node_name = {};   // this server's name in other servers' messages; "": its id
  // The layout of loaded images.
  int32_t max_draft = 8;
  DType base_dtype = DType::kF32;  // Load refuses states of another dtype, which stay in Redis
};

class RedisTier final : public StateTier {
 public:
  // Does not connect, so Redis may be started later. INVALID_ARGUMENT for an invalid endpoint, prefix or size.
  // UNAVAILABLE (TIER_UNAVAILABLE) if the password file cannot be read.
  static absl::StatusOr<std::unique_ptr<RedisTier>> Make(RedisTierOptions options, HostBlockPool& blocks);

  std::string_view name() const override { return "redis"; }
  bool durable() const override { return true; }
  std::string endpoint() const { return pool_.endpoint().ToString(); }

  // Errors of StateTier::Store. UNAVAILABLE may also mean that only the reply was lost: the complete new state is then
  // stored.
  absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) override;
  absl::StatusOr<SessionImagePtr> Load(const StateKey& key) override;
  absl::Status Erase(const StateKey& key, bool all) override;
  absl::StatusOr<std::vector<StoredSession>> List() override;
  absl::StatusOr<StoredSession> Describe(const StateKey& key) override;
  // Takes the prefix, also from another server (RedisClaim::Take). Nothing can be stored or erased before that.
  // UNAVAILABLE (TIER_UNAVAILABLE), FAILED_PRECONDITION (STATES_TAKEN_OVER).
  absl::StatusOr<int64_t> NextIncarnation() override;
  absl::Status CheckClaim() override;
  absl::Status Probe() override {
    return pool_.Run([](RedisConnection& redis) { return redis.Call({"PING"}).status(); });
  }
  // RedisClaim::found: the prefix's previous owner, as NextIncarnation found it. NoteStop (RedisClaim::NoteStop)
  // records that this server has ended in order; call it after the last write.
  std::string found() const { return claim_.found(); }
  absl::StatusOr<std::string> NoteStop();
  // Number of times that Redis was found set back (RedisClaim::set_backs plus RedisShare::set_backs).
  int64_t set_backs() const { return claim_.set_backs() + (share_ == nullptr ? 0 : share_->set_backs()); }
  RedisShare* share() { return share_.get(); }  // nullptr: the prefix is this server's alone
  // Lists the named checkpoints of a session, in no order. Errors of the connection.
  absl::StatusOr<std::vector<StateKey>> ListCheckpoints(const StateKey& session);
  // Drops this object's record of the session, which is another server's now, so that usage() does not count it. Redis
  // is not changed.
  void Forget(const StateKey& session);
  absl::StatusOr<std::string> KeepSecret(std::string_view proposed) override;
  // used_bytes and sessions cover only states that this object has stored, loaded or listed.
  TierUsage usage() const override;

 private:
  RedisTier(RedisTierOptions options, RedisEndpoint endpoint, HostBlockPool& blocks);

  // Calls use(connection) and returns its result. If that is IsFenced, calls RedisFence::Recover and `use` again.
  template <typename Use>
  auto RunFenced(const StateKey& key, Use use) -> decltype(use(std::declval<RedisConnection&>()));
  absl::Status CheckTaken() const;
  absl::Status CheckTaken(const StateKey& key) const;
  RedisFence& fence();
  absl::StatusOr<int64_t> StoreFile(RedisConnection& redis, const StateKey& key, const SessionImagePtr& image) const;
  absl::Status SendChunks(RedisConnection& redis, const std::vector<std::string>& names,
                          const std::vector<std::string_view>& pieces) const;
  // Reads the whole file into `file`. False if a chunk is missing, because a Store replaced the file meanwhile.
  absl::StatusOr<bool> ReadChunks(RedisConnection& redis, const StateKey& key, const RedisManifest& manifest,
                                  char* file) const;
  absl::StatusOr<SessionImagePtr> LoadImage(RedisConnection& redis, const StateKey& key, int64_t& bytes) const;
  // Lists all states; `passed_over` counts the damaged ones, which are left out.
  absl::StatusOr<std::vector<StoredSession>> ListAll(RedisConnection& redis, int64_t& passed_over) const;
  absl::StatusOr<StoredSession> ReadHeader(RedisConnection& redis, const StateKey& key) const;

  void Count(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetBytes(const StateKey& key, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetBytes(const StateKey& key, bool all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RedisTierOptions options_;
  HostBlockPool& blocks_;
  RedisPool pool_;
  RedisClaim claim_;
  const std::unique_ptr<RedisShare> share_;
  const RedisFolder folder_;
  mutable absl::Mutex mu_;
  std::map<StateKey, int64_t> bytes_ ABSL_GUARDED_BY(mu_);
  TierUsage usage_ ABSL_GUARDED_BY(mu_);  // name and sessions are set in usage()
};

}  // namespace gdn
