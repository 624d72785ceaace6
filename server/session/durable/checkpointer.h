// Makes durable copies of sessions (checkpoints), by call and by policy, and restores sessions from them.
//
// A checkpoint locks the session for as long as its states are copied to host memory; the copy is written to the
// durable tier while steps go on. With a policy by tokens, no layer is ever further from its last durable copy than
// that many tokens (or one call, if that is larger). A checkpoint begins at half of them, and a step that would go
// beyond the limit waits until the checkpoint has ended (WaitForRoom). A failed checkpoint delays no step; it is tried
// again later. Waiting checkpoints take turns by account, and those of calls end with the call's deadline.
// Thread safety: all methods from any thread; a task ends on the executor that it began on. Ownership: the parts must
// outlive it. The destructor waits for everything that was begun.
//
//   Checkpointer checkpointer(parts, {.every_tokens = 256});
//   environment.on_progress = [&](const auto& session) { checkpointer.NoteProgress(session); };
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/open_count.h"
#include "base/task/deadline.h"
#include "base/task/signal.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/threads/steady_clock.h"
#include "base/threads/turn_queue.h"
#include "server/session/room/device_room.h"

namespace gdn {

struct CheckpointPolicy {
  int64_t every_tokens = 0;                         // 0: not by tokens
  absl::Duration every = absl::InfiniteDuration();  // due so long after the last one, if changed; infinite: never
};

// Charges of a checkpoint that is being written. When a tier has stored it, the tier's own charges replace them.
struct CheckpointRoom {
  const StateTier* tier = nullptr;                // the first tier that is asked to take it
  ByteCharge there = {}, state = {}, count = {};  // charges in that tier's pool, in kStates, and in kCheckpoints
};

// A consistent copy of a session's states.
struct CapturedState {
  SessionImagePtr image;
  SessionLease held;  // keeps other copies and moves of the session away until it dies; steps go on
  uint64_t changes = 0;
  std::vector<LayerInfo> layers;
  Session::Moment when;
};

struct CheckpointResult {
  StoreResult stored;
  int64_t epoch = 0;
  std::vector<LayerInfo> layers;
  absl::Time when;
};

class Checkpointer {
 public:
  Checkpointer(const StateParts& parts, const CheckpointPolicy& policy);
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Returns the bases that the receiver of the copy has already, which are left out. Called when the session is locked.
  using KnownBases = std::function<BaseVersions()>;
  // Copies the session's states, wherever they are, and returns a consistent copy. `known` null: with all bases.
  // `epoch`, here and below: the epoch that the caller knows; nullopt: any. If the session is in another epoch, the
  // call returns ABORTED (EPOCH_MISMATCH), and nothing is copied, written or restored. The epoch is compared under the
  // lock under which the states are taken. DEADLINE_EXCEEDED, CANCELLED before the session is locked; errors of
  // Session::CheckAlive, StateCopier::CopyOut and TierStack::Fetch.
  Task<absl::StatusOr<CapturedState>> Capture(std::shared_ptr<Session> session, KnownBases known,
                                              Deadline deadline = {}, std::optional<int64_t> epoch = std::nullopt);

  // Makes a durable copy, and ends once a tier has stored it. While it waits for memory of the pool kCopies, it does
  // not lock the session. `checkpoint_id` "": the newest checkpoint, which is replaced; else a named one, which is made
  // or replaced. `epoch`: as for Capture. FAILED_PRECONDITION (NO_DURABLE_TIER), RESOURCE_EXHAUSTED
  // (TOO_MANY_CHECKPOINTS; BYTES_EXHAUSTED or QUOTA_EXCEEDED if the account may take no more room), and errors of
  // Capture and TierStack::Checkpoint.
  Task<absl::StatusOr<CheckpointResult>> Checkpoint(std::shared_ptr<Session> session, std::string checkpoint_id,
                                                    Deadline deadline = {},
                                                    std::optional<int64_t> epoch = std::nullopt);
  // Lists the session's named checkpoints, sorted by id. FAILED_PRECONDITION (NO_DURABLE_TIER), and errors of
  // Session::CheckRestorable and TierStack::ListCheckpoints.
  Task<absl::StatusOr<std::vector<StoredSession>>> List(std::shared_ptr<Session> session);
  // Deletes a named checkpoint. FAILED_PRECONDITION (NO_DURABLE_TIER), and errors of Session::CheckAlive and
  // TierStack::EraseCheckpoint.
  Task<absl::Status> Delete(std::shared_ptr<Session> session, std::string checkpoint_id);
  // Restores the session from a checkpoint ("": the newest), in the next epoch, after its running steps. Its states are
  // then parked in the durable tier, and a lost state is usable again. `epoch`: as for Capture. NOT_FOUND
  // (CHECKPOINT_NOT_FOUND), FAILED_PRECONDITION (NO_DURABLE_TIER, STATE_MISMATCH), OUT_OF_RANGE (COUNT_LIMIT), ABORTED
  // (EPOCH_MISMATCH), DEADLINE_EXCEEDED, CANCELLED, errors of Session::CheckRestorable and of the tier. After an error
  // the session is as it was.
  Task<absl::Status> Restore(std::shared_ptr<Session> session, std::string checkpoint_id, Deadline deadline = {},
                             std::optional<int64_t> epoch = std::nullopt);

  // True if WaitForRoom may wait: there is a policy by tokens and a durable tier.
  bool bounds_steps() const { return policy_.every_tokens != 0 && parts_.tiers.durable() != nullptr; }
  // Waits until a step of `tokens` tokens keeps to CheckpointPolicy::every_tokens, on `layer`, or on every layer with a
  // draft if that is nullopt. Does not wait if the last checkpoint failed a moment ago, or the session takes no calls.
  // DEADLINE_EXCEEDED, CANCELLED.
  Task<absl::Status> WaitForRoom(std::shared_ptr<Session> session, std::optional<int32_t> layer, int64_t tokens,
                                 Deadline deadline = {});
  // Schedule checkpoints by the policy, and return at once. NoteProgress, after a step: if a layer is half of
  // every_tokens or more beyond its durable copy. Sweep, now and then: for sessions that have changed and were not made
  // durable for `every`; it also lets failed checkpoints be tried again. `now`: by StateParts::clock.
  void NoteProgress(const std::shared_ptr<Session>& session);
  void Sweep(const std::vector<std::shared_ptr<Session>>& sessions, SteadyTime now);
  // Makes the sessions durable in their present state. For a shutdown: from now on accounts' quotas in the tiers do not
  // count. Blocks at most `timeout`, and returns how many are not durable. A session with a lost state is restored
  // instead. `progress` receives the number of sessions, of durable ones and of failed ones: at first and after each
  // session, one call at a time, perhaps after this has returned.
  using CheckpointProgress = std::function<void(int64_t all, int64_t durable, int64_t failed)>;
  int64_t CheckpointAll(const std::vector<std::shared_ptr<Session>>& sessions,
                        absl::Duration timeout = absl::InfiniteDuration(), CheckpointProgress progress = nullptr);

  const CheckpointPolicy& policy() const { return policy_; }
  int64_t made() const { return made_; }
  int64_t failed() const { return failed_; }

 private:
  struct Final;

  // Locks the session. Fails if the deadline has passed by then, or the session has ended, is lost or is in another
  // epoch.
  Task<absl::StatusOr<SessionLease>> LockWanted(std::shared_ptr<Session> session, Deadline deadline,
                                                std::optional<int64_t> epoch);
  // Copies the states out of a locked session, and then holds it.
  absl::StatusOr<CapturedState> CopyOut(SessionLease lease, const KnownBases& known, StateCopier::Threads threads);
  // Copies a locked session's states, and writes the copy while its steps go on. `charge`: for the copy.
  Task<absl::StatusOr<CheckpointResult>> CheckpointLocked(SessionLease lease, ByteCharge charge,
                                                          std::string checkpoint_id);
  // Charges the account for a checkpoint in the fastest durable tier that allows it. A checkpoint that replaces one
  // there needs no charge. RESOURCE_EXHAUSTED (TOO_MANY_CHECKPOINTS, BYTES_EXHAUSTED, QUOTA_EXCEEDED).
  absl::StatusOr<CheckpointRoom> TakeRoom(const Session& session, const StateKey& key);
  absl::StatusOr<CheckpointRoom> TakeRoomIn(const StateTier& tier, const Session& session, const StateKey& key);
  absl::Status RestoreLocked(SessionLease& lease, const std::string& checkpoint_id);
  // Makes one session of CheckpointAll durable.
  Task<void> MakeDurable(std::shared_ptr<Session> session, std::shared_ptr<Final> final);

  // Schedules a checkpoint. False, with nothing done, if one is scheduled or under way, if one failed less than 5 s
  // ago, or without a durable tier.
  bool Schedule(const std::shared_ptr<Session>& session);
  bool HasRoom(const Session& session, std::optional<int32_t> layer, int64_t tokens) const;
  // Begins scheduled checkpoints. Only kMostCopies run at a time, because each holds a copy of its session. Checkpoints
  // that still wait for the lock do not count, because they hold no copy.
  void Pump();
  Task<void> RunScheduled(std::shared_ptr<Session> session);
  void EndScheduled(const std::shared_ptr<Session>& session, const absl::Status& status);

  const StateParts parts_;
  const CheckpointPolicy policy_;
  std::atomic<int64_t> made_{0}, failed_{0};
  std::atomic<bool> last_ones_{false};  // set by a drain: no later caller needs the room, so limits are ignored
  OpenCount open_;                      // calls that have not ended

  // A checkpoint that the policy has scheduled.
  struct Scheduled {
    // InfiniteFuture: waiting or under way; else it failed, and may be tried again at this time.
    SteadyTime again;
    std::shared_ptr<Signal> ended;  // raised when the present attempt ends; null after a failure
  };
  mutable absl::Mutex mu_;
  std::unordered_map<const Session*, Scheduled> scheduled_ ABSL_GUARDED_BY(mu_);
  TurnQueue<std::shared_ptr<Session>> waiting_ ABSL_GUARDED_BY(mu_);  // scheduled, not begun
  int active_ ABSL_GUARDED_BY(mu_) = 0;                               // scheduled checkpoints that hold a copy

  // Last: their work uses all of the above. Both run at low priority, so that steps come first. Copies have the higher
  // priority of the two, because they keep their session locked.
  TaskQueue copies_;
  TaskQueue writes_;
  TaskGroup group_;
};

}  // namespace gdn
