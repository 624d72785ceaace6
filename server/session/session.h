// A session: one recurrent state, token count and input kind for each Gated DeltaNet layer, and the rules of its steps.
//
// A step is admitted, computed by whoever holds its StepLease, and committed; a lease that dies uncommitted leaves the
// state as it was. What a step or an acceptance is answered with, and in which order it is checked, says
// session_rules/session_rules.h.
// States are on the device (resident) or parked in a lower tier. Steps need a SessionPin, which keeps them on the
// device; copies, moves and forks need a SessionLease, which keeps steps out (session_lease.h).
// Thread safety: safe from any thread; the slots' contents belong to the holder of the StepLease or SessionLease.
// Ownership: sessions are shared; leases and pins keep their session alive.
//
//   GDN_ASSIGN_OR_RETURN(Admission admission, session->Admit(pin.Another(), request, &joined));
//   if (admission.lease.valid()) { ...compute...; admission.lease.Commit(outcome, reply); }
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/head_slice.h"
#include "base/layer_dims.h"
#include "base/steady_clock.h"
#include "base/task/arrivals.h"
#include "base/task/deadline.h"
#include "server/scheduler/session_turn.h"
#include "server/session/session_environment.h"
#include "server/session/session_gate.h"
#include "session_rules/session_rules.h"
#include "state_store/session_image.h"
#include "state_store/state_store.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

// What a session computes with.
struct SessionSpec {
  std::string model;  // without "models/"; "" for an operator session
  LayerDims dims;
  std::vector<int32_t> layers;  // ascending: a model's GDN layers, or 0 .. n - 1
  std::string fingerprint;      // of the model; "" for an operator session
  std::string family;           // of the model; "" for an operator session
  ModelSlice slice = {};        // of the model's heads; none: all

  // Whether what steps of hidden states give is one term of a sum over servers.
  bool has_partial_sums() const { return !slice.heads.is_whole(); }

  friend bool operator==(const SessionSpec&, const SessionSpec&) = default;
};

// What a session is made with.
struct SessionInit {
  std::string principal = {};
  std::string id;
  SessionSpec spec;
  std::string affinity;         // "": the id
  ByteAccountPtr account = {};  // what it takes is charged to; nullptr: the principal's, of no known address
  Hash128 request = {};         // of the call that made it
  absl::Duration idle_ttl = absl::InfiniteDuration();
  absl::Duration max_lifetime = absl::InfiniteDuration();
  int64_t epoch = 1;
  int64_t changes = 1;                        // its making, and commits before this process had it
  absl::Time create_time = absl::Now();       // shown, and never counted with
  absl::Duration age = absl::ZeroDuration();  // that it has already
  int64_t prefix_tokens = 0;                  // of a kept prefix, which it begins behind
};

using StepReplyPtr = StoredReplyPtr;

// A call that has joined another's step, and gets its reply. Lies with the call, until `ended` has ended.
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
  int32_t waiting_calls = 0;  // for the step in flight: the call that computes it and those that have joined it
  PrefillCalls calls = {};    // that `progress` is the end of
};

class Session;
class StepLease;
class SessionLease;

// A call's hold on a session: its states stay on the device.
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
  // One claim a layer: on the device, with nothing seen. No claims: parked, and `progress` (parallel to spec.layers)
  // says what the parked states are.
  Session(SessionInit init, std::vector<SlotClaim> claims, SessionEnvironment* environment);
  Session(SessionInit init, std::vector<LayerInfo> parked, SessionEnvironment* environment);

  const std::string& principal() const { return init_.principal; }
  const std::string& id() const { return init_.id; }
  const ByteAccountPtr& account() const { return init_.account; }
  const SessionSpec& spec() const { return init_.spec; }
  const std::string& affinity() const { return init_.affinity; }
  absl::Time create_time() const { return init_.create_time; }  // shown
  SteadyTime born() const { return born_; }
  absl::Duration idle_ttl() const { return init_.idle_ttl; }
  absl::Duration max_lifetime() const { return init_.max_lifetime; }
  int64_t prefix_tokens() const { return init_.prefix_tokens; }
  const Hash128& request() const { return init_.request; }
  SessionTurn& turn() const { return turn_; }  // the scheduler's
  StateKey key() const { return {.principal = init_.principal, .id = init_.id, .checkpoint = {}}; }
  SessionGate& gate() { return gate_; }

  enum class PinOutcome { kPinned, kNotResident, kWait };
  // kWait: the gate is closed for now (SessionGate::Pinnable waits until then).
  PinOutcome TryPin(SessionPin* pin);
  // Invalid where somebody is in the way.
  SessionLease TryLock();
  class LockAwaiter;
  // Waits for the lease, in the order of the calls. DEADLINE_EXCEEDED, CANCELLED. In session_lease.h.
  //
  //   GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await session->Lock(deadline));
  LockAwaiter Lock(Deadline deadline = {});

  // `pin` is of this session; the lease takes it along. INVALID_ARGUMENT (LAYER_NOT_GDN, REQUEST_ID_REUSED),
  // FAILED_PRECONDITION (INPUT_KIND_MISMATCH, INPUT_NEEDS_MODEL, DRAFT_PENDING), ABORTED (EPOCH_MISMATCH,
  // TOKEN_COUNT_MISMATCH, SESSION_BUSY, REPLY_DROPPED), OUT_OF_RANGE (COUNT_LIMIT), NOT_FOUND (SESSION_NOT_FOUND) once
  // deleted. `joined` ends only if the admission says joined, which needs a request id; null for calls without one.
  absl::StatusOr<Admission> Admit(SessionPin pin, const StepRequest& request, JoinedCall* joined);

  // Leases on the layers with a pending draft; none where the call was done before (same request id). INVALID_ARGUMENT
  // (TOO_MANY_TOKENS, VALUE_OUT_OF_RANGE, REQUEST_ID_REUSED), ABORTED (EPOCH_MISMATCH, SESSION_BUSY), NOT_FOUND
  // (SESSION_NOT_FOUND).
  absl::StatusOr<std::vector<StepLease>> AdmitAccept(const SessionPin& pin, const Acceptance& request);
  // All of those leases are committed.
  void NoteAccepted(const Acceptance& request);

  std::vector<LayerInfo> Layers() const;
  // INVALID_ARGUMENT (LAYER_NOT_GDN).
  absl::StatusOr<size_t> LayerIndex(int32_t layer) const;
  absl::StatusOr<LayerInfo> LayerAt(int32_t layer) const;

  bool resident() const;
  // OK; NOT_FOUND (SESSION_NOT_FOUND) once deleted; where the session was lost, why.
  absl::Status CheckAlive() const;
  // The session is lost: another server has it. No further call of it is taken, but for its end; each is refused with
  // this error. The work of a step that runs counts no more.
  void StopServing(const absl::Status& why);
  // The session is lost: a step of this layer failed (`why`) when it may have changed the state for good. Every call is
  // refused but its end and RestoreCheckpoint, after which it is not lost any more; nothing stores its states
  // meanwhile. Returns what calls are told: DATA_LOSS (STATE_ROLLED_BACK where there is a durable copy, else
  // STATE_LOST).
  absl::Status LoseState(int32_t layer, const absl::Status& why);
  // OK, or why the session was lost; one that has ended, or left in order, was not lost.
  absl::Status CheckNotLost() const;
  bool state_is_lost() const;  // by LoseState; the session is still this server's
  // CheckAlive, but OK if only the state is lost.
  absl::Status CheckRestorable() const;
  int64_t epoch() const;
  // The version that a copy of the states has if it is taken now.
  StateVersion version() const;
  absl::Time durable_time() const;  // shown; InfinitePast: never
  SteadyTime last_used() const { return SteadyTime::FromNanos(last_used_.load(std::memory_order_relaxed)); }
  void Touch() { last_used_.store(environment_->clock().Now().ToNanos(), std::memory_order_relaxed); }

  // Of the layer with this index, where `reply` is still its stored one.
  void DropOutput(size_t index, const StoredReply* reply);

  // When a copy of the states was taken: by the wall's clock, to be shown, and for what is due.
  struct Moment {
    absl::Time shown = absl::InfinitePast();
    SteadyTime at = SteadyTime::InfinitePast();
  };
  Moment Now() const { return {.shown = absl::Now(), .at = environment_->clock().Now()}; }
  // A copy that has the first `changes` commits (SessionLease::changes) is durable; `counts` is parallel to
  // spec.layers.
  void NoteDurable(uint64_t changes, const std::vector<int64_t>& counts, const Moment& when);

  // What steps have done since the states were last made durable.
  struct Undurable {
    bool any = false;
    int64_t tokens = 0;  // of the layer that has moved most
    SteadyTime since;    // of the last durable copy, or of the session's making
  };
  Undurable undurable() const;

 private:
  friend class SessionPin;
  friend class StepLease;
  friend class SessionLease;

  // What both others begin with.
  Session(SessionInit init, SessionEnvironment* environment);

  struct Layer {
    // Where the state is on the device. Forks share `slot` until one of them writes; it then takes a slot of its own by
    // its `claim`, with a copy of the log and the convolution columns, and reads the base from `shared_base` until it
    // folds. A fresh layer has no slot, and a claim. Changed by whoever holds the layer's StepLease or the
    // SessionLease.
    SlotRef slot;
    SlotRef shared_base;
    SlotClaim claim;
    BaseVersion base_version = 0;

    LayerProgress progress;
    PrefillCalls calls;
    InputKind kind = InputKind::kNone;
    int64_t durable_token_count = 0;
    bool busy = false;
    // The step in flight, while busy.
    std::string flight_id;
    Hash128 flight_payload;
    std::vector<JoinedCall*> joined;
    // The last step that had a request id.
    StepReplyPtr reply;
    StoredReplies::Kept kept;  // its output
  };

  absl::Status AliveLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_.ok() ? lost_ : ended_; }
  LayerInfo InfoLocked(size_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What the rules look at (session_rules/session_rules.h).
  SessionFacts FactsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LayerFacts FactsLocked(size_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // StoredReplies::Trim is the caller's, once the mutex is free.
  void SetReply(Layer& layer, StepReplyPtr reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts, kinds and replies become the image's.
  void Apply(const SessionImage& image) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Undurable UndurableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SessionInit init_;
  SessionEnvironment* const environment_;
  const SteadyTime born_;              // `init_.age` before it was made
  std::atomic<int64_t> last_used_{0};  // a SteadyTime's

  mutable SessionTurn turn_;

  mutable absl::Mutex mu_;  // the session's only one
  SessionGate gate_{mu_};
  std::vector<Layer> layers_ ABSL_GUARDED_BY(mu_);  // parallel to spec.layers; the vector's size is constant
  bool resident_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // for good, and why
  absl::Status lost_ ABSL_GUARDED_BY(mu_);   // why; DATA_LOSS where the state is, and not the session
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t changes_ ABSL_GUARDED_BY(mu_);              // its making, and commits
  uint64_t durable_changes_ ABSL_GUARDED_BY(mu_) = 0;  // those that the newest durable copy has
  Moment durable_ ABSL_GUARDED_BY(mu_);                // when the newest durable copy was taken
  std::string accept_request_id_ ABSL_GUARDED_BY(mu_);
  int32_t accepted_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int32_t> accepted_path_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
