// A session: a recurrent state, token count and input kind for each Gated DeltaNet layer.
//
// A step is admitted, computed by the holder of its StepLease, and committed. A lease that is destroyed uncommitted
// leaves the state unchanged. session_rules/session_rules.h decides how steps and acceptances are answered. The states
// are on the device (the session is resident) or parked in a lower tier. Steps need a SessionPin, which keeps them on
// the device; copies, moves and forks need a SessionLease, which keeps steps out (session_lease.h).
// Thread safety: safe from any thread; the slots' contents belong to the holder of the StepLease or SessionLease.
// Ownership: sessions are shared; leases and pins keep their session alive.
//
//   GDN_ASSIGN_OR_RETURN(Admission admission, session->Admit(pin.Another(), request, &joined));
//   if (admission.lease.valid()) { ...compute...; admission.lease.Commit(outcome, reply); }
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/head_slice.h"
#include "base/layer_dims.h"
#include "base/name_rules.h"
#include "base/task/arrivals.h"
#include "base/task/deadline.h"
#include "base/threads/steady_clock.h"
#include "server/scheduler/session_turn.h"
#include "server/session/client_leases.h"
#include "server/session/session_environment.h"
#include "server/session/session_gate.h"
#include "session_rules/session_rules.h"
#include "state_store/session_image.h"
#include "state_store/state_store.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

// The model or operator that a session computes with.
struct SessionSpec {
  std::string model;  // without "models/"; "" for an operator session
  LayerDims dims;
  std::vector<int32_t> layers;  // ascending: some or all of a model's GDN layers, or 0 .. n - 1
  std::string fingerprint;      // the model's; "" for an operator session
  std::string family;           // the model's; "" for an operator session
  ModelSlice slice = {};        // the model's heads that are served here; by default all

  // True if the output of steps on hidden states is one term of a sum over servers.
  bool has_partial_sums() const { return !slice.heads.is_whole(); }

  friend bool operator==(const SessionSpec&, const SessionSpec&) = default;
};

// The values that a session is created with.
struct SessionInit {
  std::string principal = {};
  std::string id;
  SessionSpec spec;
  std::string affinity;         // sessions with the same one share a device if they can; "": Begin sets it to the id
  ByteAccountPtr account = {};  // charged for the session; nullptr: the principal's account, without an address
  Hash128 request = {};         // identifies the request that created it
  absl::Duration idle_ttl = absl::InfiniteDuration();
  absl::Duration max_lifetime = absl::InfiniteDuration();
  int64_t epoch = 1;
  int64_t changes = 1;                        // number of changes so far (SessionLease::changes); 1 for a new session
  absl::Time create_time = absl::Now();       // by the wall clock: for users, version() and order, not for expiry
  absl::Duration age = absl::ZeroDuration();  // age that it has already
  int64_t prefix_tokens = 0;                  // tokens of the kept prefix that it continues from; 0: none
  ClientLeasePtr lease = {};                  // the session ends with it; nullptr: none
};

using StepReplyPtr = StoredReplyPtr;

// A call that has joined the step of another call and gets that step's reply. `ended` counts it as one open operation;
// End sets the reply or error and ends that operation. It lives in the joined call's frame until that call has waited
// for `ended`.
struct JoinedCall {
  Arrivals* ended = nullptr;
  absl::StatusOr<StepReplyPtr> reply;

  void End(absl::StatusOr<StepReplyPtr> with) {
    reply = std::move(with);
    ended->End();
  }
};

using LayerProgress = SlotExtent;

struct LayerInfo {
  int32_t layer = 0;
  LayerProgress progress;
  InputKind kind = InputKind::kNone;
  int64_t durable_token_count = 0;
  // Number of calls that wait for the step in flight: the one that computes it and those that have joined it. 0: none
  // is in flight.
  int32_t waiting_calls = 0;
  PrefillCalls calls = {};  // the prefills that have led to `progress`
};

class Session;
class StepLease;
class SessionLease;

// Keeps a session's states on the device, and the session alive, until it is released or destroyed. Any number of calls
// may have one.
class SessionPin {
 public:
  SessionPin() = default;
  SessionPin(SessionPin&& other) noexcept = default;
  SessionPin& operator=(SessionPin&& other) noexcept;
  ~SessionPin() { Release(); }

  bool valid() const { return session_ != nullptr; }
  Session& session() const { return *session_; }
  SessionPin Another() const;
  void Release();

 private:
  friend class Session;
  friend class SessionLease;
  explicit SessionPin(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  std::shared_ptr<Session> session_;
};

struct Admission;

class Session : public std::enable_shared_from_this<Session> {
 public:
  // The first constructor makes a session on the device, with one claim for each layer; none for a snapshot. The second
  // makes one whose states are parked, or that has none yet. `parked` (parallel to spec.layers) describes them.
  // `environment` must outlive the session.
  Session(SessionInit init, std::vector<SlotClaim> claims, SessionEnvironment* environment);
  Session(SessionInit init, std::vector<LayerInfo> parked, SessionEnvironment* environment);

  const std::string& principal() const { return init_.principal; }
  const std::string& id() const { return init_.id; }
  // True if nobody may step the session: it is a snapshot, stored under the client's key.
  bool is_snapshot() const { return IsSnapshotId(init_.id); }
  const ByteAccountPtr& account() const { return init_.account; }
  const SessionSpec& spec() const { return init_.spec; }
  const std::string& affinity() const { return init_.affinity; }
  absl::Time create_time() const { return init_.create_time; }  // by the wall clock
  SteadyTime born() const { return born_; }
  absl::Duration idle_ttl() const { return init_.idle_ttl; }
  absl::Duration max_lifetime() const { return init_.max_lifetime; }
  int64_t prefix_tokens() const { return init_.prefix_tokens; }
  const ClientLeasePtr& lease() const { return init_.lease; }  // nullptr: none
  // SnapshotBook::MarkOf the principal, read without a mutex.
  int64_t snapshot_loss_mark() const { return snapshot_loss_mark_->load(std::memory_order_relaxed); }
  const Hash128& request() const { return init_.request; }
  SessionTurn& turn() const { return turn_; }  // used by the scheduler
  StateKey key() const { return {.principal = init_.principal, .id = init_.id, .checkpoint = {}}; }
  SessionGate& gate() { return gate_; }

  enum class PinOutcome { kPinned, kNotResident, kWait };
  // Pins the session without waiting. kPinned: `pin` has it. kNotResident: the states are parked. kWait: the session is
  // locked, or a lock waits; wait with SessionGate::Pinnable and try again.
  PinOutcome TryPin(SessionPin* pin);
  // Locks the session without waiting. The lease is invalid if the session is pinned, locked or held, or if somebody
  // waits for the lock.
  SessionLease TryLock();
  class LockAwaiter;
  // Waits for the lock, in the order of the calls, until all pins, locks and holds before it have gone. Does not check
  // whether the session is alive. DEADLINE_EXCEEDED, CANCELLED. Defined in session_lease.h.
  //
  //   GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await session->Lock(deadline));
  LockAwaiter Lock(Deadline deadline = {});

  // Admits a step. `pin` is of this session; the lease takes it over, and without a lease it is released.
  // INVALID_ARGUMENT (LAYER_NOT_GDN), errors of AnswerStep (session_rules.h) and CheckAlive. If the admission says
  // joined, `joined` gets the step's reply or error and ends, maybe before Admit returns. So set joined->ended and
  // begin its operation before the call; if the call has not joined, withdraw it. `joined` may be null for calls
  // without a request id, which never join.
  absl::StatusOr<Admission> Admit(SessionPin pin, const StepRequest& request, JoinedCall* joined);

  // Admits an acceptance for a caller with a pin. Returns leases, each with a pin of its own, on the layers with a
  // pending draft. None if the acceptance was done before (same request id), or if there is no draft and it accepts no
  // tokens. Errors of WasAccepted (session_rules.h) and CheckAlive.
  absl::StatusOr<std::vector<StepLease>> AdmitAccept(const SessionPin& pin, const Acceptance& request);
  // Records an acceptance by its request id, so that a retry is recognised; does nothing without an id. Call before its
  // leases are committed.
  void NoteAccepted(const Acceptance& request);

  std::vector<LayerInfo> Layers() const;
  // Return the index of a layer in spec().layers, and its present state. INVALID_ARGUMENT (LAYER_NOT_GDN) if the
  // session does not have it.
  absl::StatusOr<size_t> LayerIndex(int32_t layer) const;
  absl::StatusOr<LayerInfo> LayerAt(int32_t layer) const;

  bool resident() const;
  // Number of layers whose slot on the device other sessions use too.
  int32_t shared_layers() const;
  // OK, or why the session takes no calls: NOT_FOUND (SESSION_NOT_FOUND) if it was deleted, UNAVAILABLE (SESSION_MOVED)
  // if it has left, or the error with which it was lost (StopServing, LoseState).
  absl::Status CheckAlive() const;
  // Marks the session as lost because another server has it. Calls that begin later are refused with `why`. In a fleet,
  // so are calls whose step runs now (CallRows::CheckStillOurs). A session that was lost so before keeps its first
  // error.
  void StopServing(const absl::Status& why);
  // Marks the session as lost because a step of this layer failed with `why` and may have changed the state for good.
  // Every call is refused except its end and RestoreCheckpoint, which makes it usable again. Until then its states are
  // not stored. Returns the error for calls: DATA_LOSS (STATE_ROLLED_BACK if there is a durable copy, else STATE_LOST),
  // or that of an earlier loss.
  absl::Status LoseState(int32_t layer, const absl::Status& why);
  // OK, or why the session was lost. A session that was deleted or has left in order was not lost.
  absl::Status CheckNotLost() const;
  bool state_is_lost() const;  // lost by LoseState; the session still belongs to this server
  // OK if the session can be restored: CheckAlive is OK, or only the state is lost.
  absl::Status CheckRestorable() const;
  int64_t epoch() const;
  // Number of resets (SessionLease::Reset) in this process. After a reset, counts may be equal to earlier ones although
  // the states differ.
  int64_t resets() const;
  // Returns the version that a copy of the states would have if it were taken now.
  StateVersion version() const;
  absl::Time durable_time() const;  // by the wall clock; InfinitePast: no copy is durable
  SteadyTime last_used() const { return SteadyTime::FromNanos(last_used_.load(std::memory_order_relaxed)); }
  void Touch() { last_used_.store(environment_->clock().Now().ToNanos(), std::memory_order_relaxed); }

  // Drops the output of a stored reply, if `reply` is still the stored reply of the layer with this index in
  // spec().layers. A retry then gets REPLY_DROPPED.
  void DropOutput(size_t index, const StoredReply* reply);

  // When a copy of the states was taken: `shown` by the wall clock, for users; `at` by the steady clock, for schedules.
  struct Moment {
    absl::Time shown = absl::InfinitePast();
    SteadyTime at = SteadyTime::InfinitePast();
  };
  Moment Now() const { return {.shown = absl::Now(), .at = environment_->clock().Now()}; }
  // Records that a copy with the first `changes` changes (SessionLease::changes) is durable. `counts`: its token
  // counts, parallel to spec.layers.
  void NoteDurable(uint64_t changes, const std::vector<int64_t>& counts, const Moment& when);
  // Records that no copy is durable any more.
  void NoteNotDurable() { NoteDurable(/*changes=*/0, std::vector<int64_t>(spec().layers.size()), {}); }

  // Changes since the states were last made durable.
  struct Undurable {
    bool any = false;
    int64_t tokens = 0;  // tokens since then, of the layer that has advanced most
    SteadyTime since;    // time of the last durable copy, or of the session's creation
  };
  Undurable undurable() const;

 private:
  friend class SessionPin;
  friend class StepLease;
  friend class SessionLease;

  // Does what both other constructors need.
  Session(SessionInit init, SessionEnvironment* environment);

  struct Layer {
    // The slots of the layer's state on the device. Forks share `slot` until one of them writes. The writer takes the
    // slot of its `claim`, copies the log and the convolution columns to it, and reads the base from `shared_base`
    // until it folds. A fresh layer has a claim and no slot. Only the holder of the layer's StepLease or of the
    // SessionLease changes these.
    SlotRef slot;
    SlotRef shared_base;
    SlotClaim claim;
    BaseVersion base_version = 0;

    LayerProgress progress;
    PrefillCalls calls;
    InputKind kind = InputKind::kNone;
    int64_t durable_token_count = 0;
    bool busy = false;
    // The step in flight; valid while busy.
    std::string flight_id;
    Hash128 flight_payload;
    std::vector<JoinedCall*> joined;
    // The last step that had a request id.
    StepReplyPtr reply;
    StoredReplies::Kept kept;  // its output
  };

  absl::Status AliveLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_.ok() ? lost_ : ended_; }
  LayerInfo InfoLocked(size_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Return the facts that the rules need (session_rules/session_rules.h): views, valid while the mutex is held.
  SessionFacts FactsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LayerFacts FactsLocked(size_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stores the layer's reply. The caller must call StoredReplies::Trim after it has released the mutex.
  void SetReply(Layer& layer, StepReplyPtr reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes counts, kinds, replies and the last acceptance from the image. Layers that it leaves out become fresh.
  void Apply(const SessionImage& image) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Undurable UndurableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SessionInit init_;
  SessionEnvironment* const environment_;
  const SnapshotMarkPtr snapshot_loss_mark_;
  const SteadyTime born_;              // its creation, less init_.age
  std::atomic<int64_t> last_used_{0};  // SteadyTime in nanoseconds

  mutable SessionTurn turn_;

  mutable absl::Mutex mu_;  // the session's only one
  SessionGate gate_{mu_};
  std::vector<Layer> layers_ ABSL_GUARDED_BY(mu_);  // parallel to spec.layers; the vector's size is constant
  bool resident_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // why it ended, for good; OK while it lives
  absl::Status lost_ ABSL_GUARDED_BY(mu_);   // why it was lost; DATA_LOSS if only the state was lost; OK otherwise
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t resets_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mu_);              // SessionLease::changes
  uint64_t durable_changes_ ABSL_GUARDED_BY(mu_) = 0;  // changes that the newest durable copy has
  Moment durable_ ABSL_GUARDED_BY(mu_);                // when the newest durable copy was taken
  std::string accept_request_id_ ABSL_GUARDED_BY(mu_);
  int32_t accepted_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int32_t> accepted_path_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
