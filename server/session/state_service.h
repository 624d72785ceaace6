// Everything that keeps sessions and their states, put together: the devices' pools, the tiers below, moves,
// checkpoints, housekeeping.
//
// Thread safety: the parts are safe from any thread; Make, Recover and Drain are for the thread that owns it.
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
#include "server/session/checkpointer.h"
#include "server/session/housekeeper.h"
#include "server/session/prefix_index.h"
#include "server/session/prefix_keeper.h"
#include "server/session/recovery.h"
#include "server/session/residency.h"
#include "server/session/scrub_thread.h"
#include "server/session/session_manager.h"
#include "server/session/store_watch.h"
#include "state_store/state_store.h"
#include "state_store/tiers/disk_scrubber.h"
#include "state_store/tiers/disk_tier.h"
#include "state_store/tiers/host_tier.h"
#include "state_store/tiers/redis_tier.h"
#include "state_store/tiers/tier_guard.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct StateServiceOptions {
  int64_t device_bytes = 0;  // of each device
  int32_t max_draft = 8;
  DType state_dtype = DType::kF32;  // of the states' bases
  int64_t host_bytes = 0;           // 0: no host tier
  int64_t prefix_bytes = 0;         // of kept prefixes; 0: none are kept
  absl::Duration prefix_ttl = absl::InfiniteDuration();
  // The tiers' max_draft, dtype and threads follow from the rest.
  DiskTierOptions disk = {};                            // directory "": no disk tier
  DiskScrubberOptions scrub = {.bytes_per_second = 0};  // 0: states are verified when they are loaded only
  RedisTierOptions redis = {};                          // endpoint "": no Redis tier
  CheckpointPolicy policy = {};
  absl::Duration housekeeping = absl::Milliseconds(200);
};

class StateService {
 public:
  // Errors of opening the tiers, which name the flag.
  // `executor` has the timers, and runs what no call waits for.
  static absl::StatusOr<std::unique_ptr<StateService>> Make(std::vector<StateDevice> devices, ByteLedger& ledger,
                                                            Executor& executor, const StateServiceOptions& options);
  ~StateService();

  // Sessions that an earlier process left behind, unless they are shared: these come when they are called for. Where
  // there is a disk, a Redis that does not answer is taken in once it does; `spec_of` is then called by another thread,
  // until StopWatching.
  absl::StatusOr<Recovered> Recover(const SpecOfModelFn& spec_of);
  // A random secret for principals' names (server/rpc/principals.h): kept on the disk, else in Redis, else nowhere.
  absl::StatusOr<std::string> KeepSecret();
  // After Recover: verifies what is on the disk while there is no work. Until StopWatching; nothing without a disk.
  void StartScrubbing(const DiskScrubberOptions& options, std::function<ScrubActivity()> activity);
  void StopWatching() {
    store_watch_ = nullptr;
    scrub_thread_ = nullptr;
  }
  // Makes sessions durable as they are, where there is a durable tier, while calls that do not step may come; a part of
  // Drain's work, of which that is then spared.
  void MakeDurable(absl::Duration timeout, Checkpointer::CheckpointProgress progress);
  // Makes every session durable as it is, where there is a durable tier. With a disk it leaves a note there of those
  // that are (clean_marker.h). No step may run any more. False where a session could not be made durable, or not before
  // the time was over.
  bool Drain(absl::Duration timeout);
  // After a Recover, if the server cannot serve after all and no call has come: the next start finds what this one did.
  void GiveUpStart();

  StateStore& store() { return stores_.front(); }  // of the first device
  TierStack& tiers() { return *tiers_; }
  DeviceRoom& room() { return *room_; }
  // For work on states that a call waits for: threads that may block, memory for copies, threads to spread loops over.
  // Not those that bring states back for steps.
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
  // How full the disk is, without waiting for one that hangs.
  void LookAtDisk();
  void MakePrefixes(ByteLedger& ledger, const StateServiceOptions& options);
  // Of a Redis that did not answer when the server started, and does now.
  absl::Status TakeRedisIn(const SpecOfModelFn& spec_of);
  // RecoverSessions of these tiers, which count so many starts; what is held back is told to the sessions.
  absl::StatusOr<Recovered> RecoverFrom(const std::vector<StateTier*>& durable, int64_t starts,
                                        const CleanMarker* marker, const SpecOfModelFn& spec_of);
  // Returns the marker, which names the stored states that the next server may rely on.
  CleanMarker MakeMarker();
  void WriteMarker(const CleanMarker& marker);
  // Its checkpoint is gone: the next is due, and has all of it.
  void CountNotDurable(const StateKey& key);

  absl::Duration watch_interval_;
  // Each uses those before it.
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
  TaskQueue io_;                // what steps wait for: states that come back from a disk or a network
  TaskQueue memory_io_;         // and those from host memory, and what else must not wait for a tier
  TaskQueue transfer_threads_;  // exports, imports, watches, restores, deletions
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<PrefixKeeper> prefix_keeper_;
  std::unique_ptr<SessionManager> sessions_;
  std::optional<CleanMarker> marker_;  // of the server before
  HeldBack held_back_;                 // until the store watch has taken Redis in
  std::unique_ptr<Housekeeper> housekeeper_;
  std::unique_ptr<StoreWatch> store_watch_;
  std::unique_ptr<DiskScrubber> scrubber_;
  std::unique_ptr<ScrubThread> scrub_thread_;
};

}  // namespace gdn
