// Durable copies of sessions: when they are made, and how a session goes back to one.
//
// A checkpoint locks the session for as long as its states are copied to host memory; the copy is written to the
// durable tier while steps go on. With a policy by tokens, no layer is ever further from its last durable copy than
// that many tokens (or the one call that is larger): a checkpoint begins at half of them, and a step that would go
// beyond waits until it has ended (WaitForRoom). A checkpoint that failed holds nobody back: it is tried again later.
// Those that wait take turns by account, and end with their calls' deadlines.
// Thread safety: all methods from any thread; a task that has ended goes on at the executor that it began on.
// Ownership: what it is made with must outlive it; on destruction what was begun is finished.
//
//   Checkpointer checkpointer({.tiers = tiers, .copier = copier, .room = room, ...}, {.every_tokens = 256});
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
#include "base/steady_clock.h"
#include "base/task/deadline.h"
#include "base/task/signal.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task_queue.h"
#include "base/turn_queue.h"
#include "server/admission/byte_ledger.h"
#include "server/session/device_room.h"
#include "server/session/state_copier.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct CheckpointPolicy {
  int64_t every_tokens = 0;                         // 0: not by tokens
  absl::Duration every = absl::InfiniteDuration();  // since the last, where the session has moved
};

// What a checkpoint takes until its tier has it, which is charged for it then.
struct CheckpointRoom {
  const StateTier* tier = nullptr;                // the first that is asked to take it
  ByteCharge there = {}, state = {}, count = {};  // in that tier, in kStates, and in kCheckpoints
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

struct CheckpointerParts {
  TierStack& tiers;
  StateCopier& copier;
  DeviceRoom& room;      // forgets sessions that have gone back to a checkpoint
  TaskQueue& transfers;  // for what calls that do not step wait for
  ByteLedger& ledger;
  Executor& executor;  // of scheduled checkpoints
  const SteadyClock& clock = SteadyClock::Real();
};

class Checkpointer {
 public:
  Checkpointer(const CheckpointerParts& parts, const CheckpointPolicy& policy);
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Bases that whoever gets the copy has already; asked once the session is locked. Empty: none.
  using KnownBases = std::function<BaseVersions()>;
  // Copies the states from wherever they are, for a call that waits for them. `epoch`, here and below: the session's,
  // as the caller knows it; nullopt: any. In another epoch the call is ABORTED (EPOCH_MISMATCH), and nothing is copied,
  // written or restored. The epoch is compared under the lock that the states are taken under. DEADLINE_EXCEEDED,
  // CANCELLED while the session is not locked yet.
  Task<absl::StatusOr<CapturedState>> Capture(std::shared_ptr<Session> session, KnownBases known,
                                              Deadline deadline = {}, std::optional<int64_t> epoch = std::nullopt);

  // Waits for memory of the pool kCopies, without the session. `checkpoint_id` "": the newest. FAILED_PRECONDITION
  // (NO_DURABLE_TIER), RESOURCE_EXHAUSTED (TOO_MANY_CHECKPOINTS; BYTES_EXHAUSTED if the account may take no more room),
  // and errors of TierStack::Checkpoint.
  Task<absl::StatusOr<CheckpointResult>> Checkpoint(std::shared_ptr<Session> session, std::string checkpoint_id,
                                                    Deadline deadline = {},
                                                    std::optional<int64_t> epoch = std::nullopt);
  // The named ones, by id. FAILED_PRECONDITION (NO_DURABLE_TIER), and errors of TierStack::ListCheckpoints.
  Task<absl::StatusOr<std::vector<StoredSession>>> List(std::shared_ptr<Session> session);
  // A named one goes. FAILED_PRECONDITION (NO_DURABLE_TIER), and errors of TierStack::EraseCheckpoint.
  Task<absl::Status> Delete(std::shared_ptr<Session> session, std::string checkpoint_id);
  // The session goes back, under the next epoch; its states then come from the durable tier. NOT_FOUND
  // (CHECKPOINT_NOT_FOUND), FAILED_PRECONDITION (NO_DURABLE_TIER, STATE_MISMATCH), OUT_OF_RANGE (COUNT_LIMIT), errors
  // of the tier; nothing has changed then.
  Task<absl::Status> Restore(std::shared_ptr<Session> session, std::string checkpoint_id, Deadline deadline = {},
                             std::optional<int64_t> epoch = std::nullopt);

  // Whether a step may have to wait for room at all.
  bool bounds_steps() const { return policy_.every_tokens != 0 && parts_.tiers.durable() != nullptr; }
  // Waits until a step of so many tokens keeps to the policy: of `layer`, or of every layer with a draft if it is
  // nullopt. Does not wait if nothing can be made durable now. DEADLINE_EXCEEDED, CANCELLED.
  Task<absl::Status> WaitForRoom(std::shared_ptr<Session> session, std::optional<int32_t> layer, int64_t tokens,
                                 Deadline deadline = {});
  // By the policy: after a step, and for all sessions now and then.
  void NoteProgress(const std::shared_ptr<Session>& session);
  void Sweep(const std::vector<std::shared_ptr<Session>>& sessions, SteadyTime now);
  // Makes all of them durable as they are, and blocks until they are, at most so long. How many are not. `progress` is
  // told how many there are, and of those are durable and could not be made so: at first, and after each, one call at a
  // time, perhaps when nobody waits any more.
  using CheckpointProgress = std::function<void(int64_t all, int64_t durable, int64_t failed)>;
  int64_t CheckpointAll(const std::vector<std::shared_ptr<Session>>& sessions,
                        absl::Duration timeout = absl::InfiniteDuration(), CheckpointProgress progress = nullptr);

  const CheckpointPolicy& policy() const { return policy_; }
  int64_t made() const { return made_; }
  int64_t failed() const { return failed_; }

 private:
  struct Final;

  // Locks the session, for a call that still wants this state then.
  Task<absl::StatusOr<SessionLease>> LockWanted(std::shared_ptr<Session> session, Deadline deadline,
                                                std::optional<int64_t> epoch);
  // Copies the states out, and holds the session.
  absl::StatusOr<CapturedState> CopyOut(SessionLease lease, const KnownBases& known, StateCopier::Threads threads);
  // Copies a locked session's states, and writes them while its steps go on. `charge`: of the copy.
  Task<absl::StatusOr<CheckpointResult>> CheckpointLocked(SessionLease lease, ByteCharge charge,
                                                          std::string checkpoint_id);
  // Takes room in the fastest durable tier if the account may have it. If the checkpoint replaces none, an account over
  // its share must leave the headroom of the disk free.
  absl::StatusOr<CheckpointRoom> TakeRoom(const Session& session, const StateKey& key);
  absl::StatusOr<CheckpointRoom> TakeRoomIn(const StateTier& tier, const Session& session, const StateKey& key);
  absl::Status RestoreLocked(SessionLease& lease, const std::string& checkpoint_id);
  // Of a drain.
  Task<void> MakeDurable(std::shared_ptr<Session> session, std::shared_ptr<Final> final);

  // False if one is under way, or failed a moment ago.
  bool Schedule(const std::shared_ptr<Session>& session);
  bool HasRoom(const Session& session, std::optional<int32_t> layer, int64_t tokens) const;
  // Begins the next scheduled ones; few at a time, for each holds a copy of its session. Only those that have their
  // session locked count: waiting for its steps to end holds nothing.
  void Pump();
  Task<void> RunScheduled(std::shared_ptr<Session> session);
  void EndScheduled(const std::shared_ptr<Session>& session, const absl::Status& status);

  const CheckpointerParts parts_;
  const CheckpointPolicy policy_;
  std::atomic<int64_t> made_{0}, failed_{0};
  std::atomic<bool> last_ones_{false};  // nobody comes later who could need the room
  OpenCount open_;                      // calls that have not ended

  // A session's checkpoint that is to be made by the policy.
  struct Scheduled {
    SteadyTime again;               // InfiniteFuture: it is under way; else it failed, and is not to be tried before
    std::shared_ptr<Signal> ended;  // the one that is under way
  };
  mutable absl::Mutex mu_;
  std::unordered_map<const Session*, Scheduled> scheduled_ ABSL_GUARDED_BY(mu_);
  TurnQueue<std::shared_ptr<Session>> waiting_ ABSL_GUARDED_BY(mu_);  // scheduled, not begun
  int active_ ABSL_GUARDED_BY(mu_) = 0;                               // scheduled, with a copy

  // Last: their work uses all of the above. Checkpoints give way to steps; copies less so, for they keep their session
  // locked.
  TaskQueue copies_;
  TaskQueue writes_;
  TaskGroup group_;
};

}  // namespace gdn
