// Builds and owns all parts that keep sessions and their states: the devices' pools, the tiers below, moves,
// checkpoints, housekeeping.
//
// Thread safety: the parts are safe from any thread; Make, Recover and Drain are for the owner's thread.
// Ownership: owns the parts; the devices, the ledger and the executor must outlive it. Nothing may use a session when
// it is destroyed.
//
//   GDN_ASSIGN_OR_RETURN(auto states, StateService::Make({{backend, health}}, ledger, executor,
//                                                        {.device_bytes = bytes, .disk = {.directory = "/d"}}));
//   GDN_ASSIGN_OR_RETURN(Recovered recovered, states->Recover(spec_of));
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/session/durable/checkpointer.h"
#include "server/session/durable/recovery.h"
#include "server/session/durable/store_watch.h"
#include "server/session/housekeeper.h"
#include "server/session/loop_thread.h"
#include "server/session/prefixes/prefix_index.h"
#include "server/session/prefixes/prefix_keeper.h"
#include "server/session/room/residency.h"
#include "server/session/session_manager.h"
#include "state_store/state_store.h"
#include "state_store/tiers/disk/disk_scrubber.h"
#include "state_store/tiers/disk/disk_tier.h"
#include "state_store/tiers/host_tier.h"
#include "state_store/tiers/redis/redis_tier.h"
#include "state_store/tiers/tier_guard.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct StateServiceOptions {
  int64_t device_bytes = 0;  // budget in bytes for states on each device
  int32_t max_draft = 8;
  DType state_dtype = DType::kF32;  // dtype of the states' bases
  int64_t host_bytes = 0;           // 0: no host tier
  int64_t prefix_bytes = 0;         // memory for kept prefixes; 0: none are kept
  absl::Duration prefix_ttl = absl::InfiniteDuration();
  // Options of the tiers. Their max_draft, dtype and threads are set by Make.
  DiskTierOptions disk = {};                            // directory "": no disk tier
  DiskScrubberOptions scrub = {.bytes_per_second = 0};  // 0: states are verified only when they are loaded
  RedisTierOptions redis = {};                          // endpoint "": no Redis tier
  CheckpointPolicy policy = {};
  absl::Duration housekeeping = absl::Milliseconds(200);
};

class StateService {
 public:
  // Makes the parts and opens the tiers. `executor` has the timers and runs work that no call waits for. Returns errors
  // of opening the tiers, with the flag's name.
  static absl::StatusOr<std::unique_ptr<StateService>> Make(std::vector<StateDevice> devices, ByteLedger& ledger,
                                                            Executor& executor, const StateServiceOptions& options);
  ~StateService();

  // Recovers the sessions that an earlier process left behind. Call once, before the first call is served. Shared
  // sessions are left out; they come when they are called for. If there is a disk and Redis does not answer, its
  // sessions are recovered later, when it does; `spec_of` is then called on another thread, until StopWatching. Errors
  // of the durable tiers: the server cannot start then.
  absl::StatusOr<Recovered> Recover(const SpecOfModelFn& spec_of);
  // Returns a random secret for principals' names (server/rpc/callers/principals.h). It is kept on the disk, else in
  // Redis, so that later starts return the same; without both, each call returns another. Errors of
  // StateTier::KeepSecret.
  absl::StatusOr<std::string> KeepSecret();
  // Starts to verify states on the disk while there is no work, until StopWatching. Call after Recover. Does nothing
  // without a disk, or if options.bytes_per_second is 0.
  void StartScrubbing(const DiskScrubberOptions& options, std::function<ScrubActivity()> activity);
  void StopWatching() {
    store_watch_ = nullptr;
    scrub_thread_ = nullptr;
  }
  // Ends housekeeping, and makes all sessions durable in their present state, if there is a durable tier. Blocks at
  // most `timeout`. Calls that do not step may still come. This does most of Drain's work in advance. `progress`: as
  // for Checkpointer::CheckpointAll.
  void MakeDurable(absl::Duration timeout, Checkpointer::CheckpointProgress progress);
  // Makes all sessions durable in their present state, if there is a durable tier, and waits at most `timeout` for
  // that. With a disk it leaves a note there of the sessions that are durable (clean_marker.h). No step may run any
  // more. Returns false if a session could not be made durable in time; true without a durable tier.
  bool Drain(absl::Duration timeout);
  // Undoes Recover's changes to the durable tiers, so that the next start finds what this one did. Call if the server
  // cannot serve after all and no call has come.
  void GiveUpStart();

  StateStore& store() { return stores_.front(); }  // the first device's
  TierStack& tiers() { return *tiers_; }
  DeviceRoom& room() { return *room_; }
  // For work on states that a call waits for, except bringing them back for steps: threads that may block, memory for
  // copies, and threads to spread loops over.
  TaskQueue& transfer_threads() { return transfer_threads_; }
  HostBlockPool& memory() { return memory_; }
  SharedThreadPool& copiers() { return copiers_; }
  SessionEnvironment& environment() { return environment_; }
  Residency& residency() { return *residency_; }
  Checkpointer& checkpointer() { return *checkpointer_; }
  SessionManager& sessions() { return *sessions_; }
  PrefixIndex& prefixes() { return *prefixes_; }
  PrefixKeeper& prefix_keeper() { return *prefix_keeper_; }
  const DiskTier* disk() const { return disk_.get(); }              // nullptr: there is none
  RedisTier* redis() { return redis_.get(); }                       // nullptr: there is none
  const DiskScrubber* scrubber() const { return scrubber_.get(); }  // nullptr: there is none, or not yet

 private:
  StateService(std::vector<StateDevice> devices, ByteLedger& ledger, const StateServiceOptions& options);
  absl::Status OpenTiers(const StateServiceOptions& options);
  // Ends the periodic work and calls Checkpointer::CheckpointAll, if there is a durable tier.
  int64_t CheckpointAll(absl::Duration timeout, Checkpointer::CheckpointProgress progress);
  // Measures how full the disk is, if there is one. If the disk hangs, waits TierGuardOptions::stall_after once; later
  // calls then return at once until it answers.
  void LookAtDisk();
  void MakePrefixes(ByteLedger& ledger, const StateServiceOptions& options);
  // Recovers the sessions of a Redis that did not answer when the server started, and does now.
  absl::Status TakeRedisIn(const SpecOfModelFn& spec_of);
  // Calls RecoverSessions for these tiers. `starts`: number of starts that the tiers have counted. Sessions that are
  // held back are marked as away (SessionManager::SetAway).
  absl::StatusOr<Recovered> RecoverFrom(const std::vector<StateTier*>& durable, int64_t starts,
                                        const CleanMarker* marker, const SpecOfModelFn& spec_of);
  // Makes the marker with the stored states that the next start may rely on.
  CleanMarker MakeMarker();
  void WriteMarker(const CleanMarker& marker);
  // Marks a session as not durable because its checkpoint on the disk is gone. Its next checkpoint is then due and
  // complete. Does nothing if the state rests on the disk.
  void CountNotDurable(const StateKey& key);

  absl::Duration watch_interval_;
  // Each member uses those before it.
  std::deque<StateStore> stores_;  // by device
  HostBlockPool memory_;
  SharedThreadPool copiers_;
  StateCopier copier_;
  SessionEnvironment environment_;
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<RedisTier> redis_;
  std::unique_ptr<TierGuard> disk_guard_, redis_guard_;  // nullptr: there is no such tier
  std::unique_ptr<TierStack> tiers_;                     // host_ and the guards
  std::unique_ptr<PrefixIndex> prefixes_;
  std::unique_ptr<DeviceRoom> room_;
  TaskQueue io_;  // brings states back for steps from disk and Redis
  // Brings states back from host memory, and does other work that must not wait for a tier.
  TaskQueue memory_io_;
  TaskQueue transfer_threads_;  // work of calls that may take long: exports, imports, restores, deletions and others
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<PrefixKeeper> prefix_keeper_;
  std::unique_ptr<SessionManager> sessions_;
  std::optional<CleanMarker> marker_;  // left by the previous server
  HeldBack held_back_;                 // until the sessions of Redis are recovered
  std::unique_ptr<Housekeeper> housekeeper_;
  std::unique_ptr<StoreWatch> store_watch_;
  std::unique_ptr<DiskScrubber> scrubber_;
  std::unique_ptr<LoopThread> scrub_thread_;
};

}  // namespace gdn
