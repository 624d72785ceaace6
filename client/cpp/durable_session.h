// One uninterrupted session on a server that may crash, restart or drain.
//
// The object keeps the inputs of every step since the newest durable copy of each layer. (The server reports how far
// the copy reaches.) If the server comes back with fewer tokens than it had answered, the object sends the kept steps
// again. It keeps their call boundaries, so the state has the same bits, and then repeats the call that failed. If a
// reply is lost, the object repeats the call under its request id, and the server answers with the stored reply. If
// the reply is not stored any more (REPLY_DROPPED), the session returns to its durable copy, or is recreated, and all
// steps from there are applied again. If the server has only an older copy, or a step failed halfway
// (STATE_ROLLED_BACK), the same is done from that copy. If the server has no copy (STATE_LOST), the session is
// recreated; it is deleted first only if all its inputs are kept. The caller sees every step applied once. If the
// server has neither --disk-dir nor --redis, a replay begins at the session's start, so all inputs are kept. Forks,
// exports and checkpoints first recover the session, so they have the state that the caller has seen. DurableBatch
// (durable_batch.h) applies one step to many sessions in one call.
//
// Thread safety: one thread at a time; threads may use different sessions of one Client. Ownership: the Client must
// outlive it. It keeps copies of inputs, up to max_kept_bytes. While it is in use, nothing else may step the session.
//
//   v1::CreateSessionRequest create;
//   create.set_model("models/qwen");
//   GDN_ASSIGN_OR_RETURN(auto session, DurableSession::Create(client, create));
//   GDN_ASSIGN_OR_RETURN(v1::PrefillResponse prompt, session->Prefill(prefill));  // fills in session, epoch, count, id
//   GDN_ASSIGN_OR_RETURN(v1::DecodeResponse token, session->Decode(decode));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "client/cpp/client.h"
#include "client/cpp/kept_steps.h"
#include "client/cpp/retry.h"

namespace gdn {

struct DurableSessionOptions {
  absl::Duration try_timeout = absl::Seconds(30);     // for one try of one call
  absl::Duration overall_timeout = absl::Minutes(5);  // for a call of this class, with its waits and replays
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration longest_backoff = absl::Seconds(2);
  // Most bytes of inputs to keep. Above it the session is checkpointed before the next step.
  int64_t max_kept_bytes = int64_t{256} << 20;
  // Checkpoint when a layer has advanced by this many tokens since the last one; 0: only the server decides.
  int64_t checkpoint_every_tokens = 0;
};

// Counts since the object was made.
struct DurableSessionStats {
  int64_t retries = 0;      // tries after the first, of any call
  int64_t recoveries = 0;   // times that the server had lost steps or the whole session
  int64_t recreations = 0;  // times that the session was recreated, to recover or to go back
  int64_t rewinds = 0;      // times that a reply was not stored any more, so that its step was undone
  int64_t replayed_steps = 0;
  int64_t replayed_tokens = 0;
  int64_t last_lost_tokens = 0;  // tokens lost in the last recovery, in the layer that lost most
  int64_t max_lost_tokens = 0;   // the largest last_lost_tokens of all recoveries
};

struct RowStep;
struct SeenTokens;

class DurableSession final {
 public:
  // Makes a session on the server, and retries until overall_timeout. If the same request has made it before, continues
  // that session. An empty session_id becomes a random one. `client` is borrowed. Errors of Client::CreateSession;
  // after UNAVAILABLE or DEADLINE_EXCEEDED the session may exist.
  static absl::StatusOr<std::unique_ptr<DurableSession>> Create(Client& client, v1::CreateSessionRequest request,
                                                                DurableSessionOptions options = {});
  // Continues an existing session ("sessions/ID"), such as an imported one or a fork, from its token counts. The inputs
  // before that are not known here, so the session can be recovered only from its durable copy: checkpoint it first.
  // FAILED_PRECONDITION (DRAFT_PENDING) if it has a draft. Other errors of Client::GetSession.
  static absl::StatusOr<std::unique_ptr<DurableSession>> Attach(Client& client, const std::string& name,
                                                                DurableSessionOptions options = {});
  DurableSession(const DurableSession&) = delete;
  DurableSession& operator=(const DurableSession&) = delete;

  // Applies one step. session, session_epoch, expected_token_count and request_id are set here, whatever they were. A
  // DecodeRequest has one row. If the server refuses the step, nothing has changed. Further errors:
  // - UNAVAILABLE, DEADLINE_EXCEEDED: overall_timeout has passed; the step may have been applied. Repeat the same call
  //   to find out and continue. Other calls are refused (FAILED_PRECONDITION).
  // - DATA_LOSS: the server lost more than is kept here, or something else stepped the session. REPLY_DROPPED: the step
  //   was applied, its reply is lost, and there is no way back. CHECKPOINT_NOT_FOUND: the server lost the state, has no
  //   durable copy, and the session cannot be recreated; it is not deleted.
  // - INTERNAL: a replayed step gave other bytes than before, on equal numerics.
  // - RESOURCE_EXHAUSTED: the inputs are over max_kept_bytes, and the session cannot be made durable.
  absl::StatusOr<v1::PrefillResponse> Prefill(v1::PrefillRequest request);
  absl::StatusOr<v1::DecodeResponse> Decode(v1::DecodeRequest request);

  // Applies a Step of one row; the tensors are [T, ..]. The session, the epoch, the count and the id are set here. The
  // row's accept_before is applied together with its tokens, or not at all. Errors as in Prefill. INVALID_ARGUMENT
  // also: BATCH_TOO_LARGE if there is another number of rows; TOO_MANY_TOKENS if the layer's draft is shorter than the
  // accepted tokens. On a server without Step (version 0.1.0) this makes an AcceptTokens and then a Prefill or Decode.
  // AcceptTokens accepts the drafts of all layers, so the next Step of each other layer must accept the same tokens;
  // another choice: FAILED_PRECONDITION. If the server then refuses the row, the acceptance stays, and the same call
  // again is allowed.
  absl::StatusOr<v1::StepResponse> Step(v1::StepRequest request);

  // Accepts the first tokens of the draft, in every layer that has one, and drops the others. Returns the counts of all
  // layers. INVALID_ARGUMENT (TOO_MANY_TOKENS) if the draft of a layer is shorter, or the number is negative. Other
  // errors as in Prefill.
  absl::StatusOr<v1::SessionTokenCounts> AcceptTokens(int32_t accepted_tokens);
  // For drafts that are trees: accepts the tokens of this path, root first, in every layer that has a draft, and drops
  // the others. INVALID_ARGUMENT (VALUE_OUT_OF_RANGE) if it is not a path of a layer's draft, (TOO_MANY_TOKENS) if it
  // is longer than one. An empty path accepts nothing. Other errors as in Prefill.
  absl::StatusOr<v1::SessionTokenCounts> AcceptPath(std::vector<int32_t> path);

  // Makes the session durable now, and drops earlier inputs. A checkpoint with an id is only for Restore, and keeps the
  // inputs, because a crash returns to the newest checkpoint without an id. Errors as in Prefill.
  absl::StatusOr<v1::Checkpoint> Checkpoint(const std::string& checkpoint_id = "");

  // Returns the states as a file (docs/reference/state-files.md). Sets name and session_epoch. Errors as in Prefill.
  absl::StatusOr<std::string> ExportState(v1::ExportStateRequest request = {});

  // Makes sessions that continue from here, with drafts, one for each id. An empty id becomes a random one. A child
  // keeps the inputs that this session keeps. If these are all inputs, a lost child is recreated; else checkpoint it,
  // so that it can be recovered. ALREADY_EXISTS (SESSION_EXISTS) if another request has made a session with this id, or
  // it is at other token counts. Other errors as in Prefill.
  absl::StatusOr<std::vector<std::unique_ptr<DurableSession>>> Fork(std::vector<std::string> ids);

  // Stores the states as those of the prefix that the session has just prefilled, for new sessions to start from
  // (prompt_prefix.h). Errors as in Prefill, and PREFIX_MISMATCH if the session was recovered from a durable copy.
  absl::StatusOr<v1::KeepPrefixResponse> KeepPrefix(const v1::PromptPrefix& prefix);

  // Goes back to a checkpoint, in a new epoch. An empty id is the newest one. The reply has the token counts to
  // continue from. Earlier inputs are dropped, because the copy is durable; drafts in it are dropped too. Errors as in
  // Prefill. DATA_LOSS if the newest copy is older than the server had reported. After UNAVAILABLE or DEADLINE_EXCEEDED
  // it may have been applied: call Restore again, with any copy. Until a Restore succeeds or reports that the session
  // does not exist, other calls return FAILED_PRECONDITION.
  absl::StatusOr<v1::Session> Restore(const std::string& checkpoint_id = "");

  // Deletes the session on the server. OK also if the server has none of this name. Blocks, and retries for at most
  // overall_timeout; then returns the last try's error, as TimeIsOver does.
  absl::Status Delete();

  const std::string& name() const { return session_.name(); }
  const v1::Session& session() const { return session_; }  // as of Create or Attach; not updated
  int64_t token_count(int32_t layer) const;                // tokens that the layer has seen; -1: no such layer
  int64_t epoch() const { return epoch_; }                 // last known epoch, for calls of the Client
  int64_t kept_bytes() const;
  const DurableSessionStats& stats() const { return stats_; }

 private:
  friend class DurableBatch;

  // The result of a step.
  struct StepResult {
    int64_t token_count = 0;
    int64_t durable_token_count = 0;
    Hash128 output;
  };
  struct Reply {
    std::variant<v1::PrefillResponse, v1::DecodeResponse, v1::StepResponse> message;
    StepResult result;
  };
  struct AcceptCall {
    DraftChoice choice;
  };
  // A call that was begun and is not finished. It stays if overall_timeout passes without an answer.
  struct CallInFlight {
    std::variant<SessionStep, AcceptCall> what;
    Hash128 identity;             // hash of the caller's arguments, by which a repeated call is recognised
    std::string request_id = {};  // "": the next try takes a new one
    bool sent = false;            // it was sent at least once, so it may have been applied
    bool applied = false;         // the server has applied it, by its token counts
    bool copy_tried = false;      // the session has already gone back to a durable copy that contains the step
    std::string refusal = {};     // reason because of which the session is checked
    bool unanswered = false;      // a try may have been applied since the session was last compared
    bool accepted = false;        // for an acceptance: the server has applied it in all layers

    // For a row of a Step.
    std::optional<v1::StepKind> kind = {};          // kind of the row if Step sends it; absent otherwise
    std::optional<DraftChoice> accept_before = {};  // applied with the step, or not at all
    std::optional<SessionStep> next = {};           // step that follows the acceptance, on a server without Step
  };

  DurableSession(Client& client, DurableSessionOptions options);
  absl::Status Adopt(v1::Session session, Backoff& backoff);

  // The stages of a call, for the loops that retry it until it is answered (Recovered, DurableBatch). First Begin. Then
  // Prepare, send and a wait, until a try gives a result or TryAgainAfter says that none will. Then Finish, or GiveUp
  // if the time has passed.
  absl::Status BeginStep(SessionStep request);
  absl::Status BeginRow(RowStep row);
  absl::Status BeginAccept(DraftChoice choice);
  absl::Status Begin(CallInFlight call);
  absl::StatusOr<const LayerSteps*> FindLayer(int32_t index) const;
  // FAILED_PRECONDITION (DRAFT_PENDING) with this advice if the layer has a draft that no call in flight is about.
  absl::Status CheckNoDraft(const LayerSteps& layer, std::string_view advice) const;
  // OK, or INVALID_ARGUMENT (TOO_MANY_TOKENS) if the choice has more tokens than a draft of this length, or fewer than
  // 0.
  absl::Status CheckChoice(const LayerSteps& layer, int64_t draft_length, const DraftChoice& choice) const;
  // Brings the server's session to where the call can be made. Makes a checkpoint if one is due. One try.
  absl::Status Prepare(const Backoff& backoff);
  // Call after a try that failed, in Prepare or later. False if another try cannot succeed.
  bool TryAgainAfter(const absl::Status& status);
  void GiveUp();
  absl::Status FinishStep(const StepResult& result);
  absl::Status FinishAccept(const v1::SessionTokenCounts& counts);
  absl::Status NoteAccepted(const DraftChoice& accepted, const v1::SessionTokenCounts& counts);
  // step(): the step in flight. AddRowTo: adds this session as a row to a message for several sessions, with its name
  // and epoch, and the expected count or the acceptance.
  SessionStep& step() { return std::get<SessionStep>(in_flight_->what); }
  void AddRowTo(v1::DecodeRequest& message, int64_t token_count) const;
  void AddRowTo(v1::StepRequest& message) const;
  void AddRowTo(v1::AcceptTokensRequest& message, const DraftChoice& choice) const;

  absl::StatusOr<Reply> RunStep(SessionStep request);
  absl::StatusOr<v1::SessionTokenCounts> RunAccept(DraftChoice choice);
  // Makes a checkpoint if too many inputs are kept, or if one is due. One try.
  absl::Status KeepWithinLimits(const Backoff& backoff);
  // One try each of calls that use the session's state.
  absl::StatusOr<v1::Checkpoint> TryCheckpoint(const std::string& checkpoint_id, const Backoff& backoff);
  // Forks the session once. `drawn`: names of children that this object chose at random. Nobody else can have made
  // sessions with these names.
  absl::StatusOr<std::vector<v1::Session>> TryFork(v1::ForkSessionRequest& request, const std::set<std::string>& drawn,
                                                   const Backoff& backoff);
  // Restores the session once. Drops drafts. If the server is in another epoch than the request names, the next try
  // names that epoch.
  absl::StatusOr<v1::Session> TryRestore(v1::RestoreCheckpointRequest& request, const Backoff& backoff);
  std::unique_ptr<DurableSession> ChildOf(v1::Session child) const;
  // CheckRestored: FAILED_PRECONDITION while a Restore has no answer. CheckIdle: also while another call has none;
  // `call` names the call that is then refused.
  absl::Status CheckRestored() const;
  absl::Status CheckIdle(std::string_view call) const;
  // ABORTED (TOKEN_COUNT_MISMATCH) if the token counts or drafts of `what` differ from those known here. A layer that
  // is missing in `seen` counts as zero tokens.
  absl::Status CheckSeen(const std::map<int32_t, SeenTokens>& seen, std::string_view what) const;
  // Retries the call until it succeeds or another try cannot help, and returns the last result. Recovered also recovers
  // the session before each try.
  template <typename Call>
  auto Retried(Backoff& backoff, const Call& call) -> decltype(call(CallOptions()));
  template <typename Result>
  using Attempt = absl::FunctionRef<absl::StatusOr<Result>(const Backoff& backoff)>;
  template <typename Result>
  absl::StatusOr<Result> Recovered(Attempt<Result> attempt);

  static Backoff NewBackoff(const DurableSessionOptions& options);
  std::string NewRequestId();
  const std::string& RequestIdInFlight();
  CallOptions TryOptions(const Backoff& backoff) const;

  // Each sends a step or an acceptance once.
  absl::StatusOr<Reply> Send(SessionStep& request, const std::string& request_id, int64_t token_count,
                             const Backoff& backoff);
  absl::StatusOr<v1::SessionTokenCounts> SendAccept(const DraftChoice& choice, const std::string& request_id,
                                                    const Backoff& backoff);
  // Sends the row in flight. The reply's message is a StepResponse.
  absl::StatusOr<Reply> SendRow(const Backoff& backoff);
  // Sends the row in flight to a server without Step: an AcceptTokens if the row accepts a draft, then a Prefill or
  // Decode.
  absl::StatusOr<Reply> SendRowInParts(const Backoff& backoff);
  // For a row that a server with Step may have applied, before it is sent in parts to another server: that server must
  // take its id for another call's. Makes the next try recover the session, to before the row.
  absl::Status CompareBeforeParts();

  // Brings the server's session to where the caller believes it to be, or to where the call in flight has taken it:
  // finds or recreates it, and replays lost steps. One try, which continues where the last one broke off.
  absl::Status Recover(const Backoff& backoff);
  // Finds the session on the server. If it has lost the session, recreates it and sets *recreated to true, which else
  // stays. If it has lost only the state, does GoOnFromStore. DATA_LOSS if the inputs from the start are not all kept.
  absl::StatusOr<v1::Session> FindOrRecreate(bool* recreated, const Backoff& backoff);
  // For a session that exists on the server but whose state was lost or rolled back (DATA_LOSS): restores its newest
  // durable copy in a new epoch. If there is no copy, deletes and recreates the session, and sets `recreated`. Replay
  // sends the steps after that.
  absl::StatusOr<v1::Session> GoOnFromStore(bool* recreated, const Backoff& backoff);
  // Makes the session again, with the request that first made it.
  absl::StatusOr<v1::Session> Recreate(const Backoff& backoff);
  // Returns nullptr if the inputs of all layers are kept from the start; else a layer whose inputs are not.
  const LayerSteps* NotKeptFromStart() const;
  bool IsWhereExpected(const v1::Session& session) const;
  void NoteLoss(const v1::Session& session);
  // True if the call in flight was applied, and its reply is not stored any more.
  bool ReplyIsGone() const;
  // True if the step in flight has no tokens, and its reply is not stored any more.
  bool StepWithoutTokensIsGone() const;
  // Takes the session back to before the step in flight: to its durable copy, or to its start.
  absl::Status Rewind(v1::Session* session, const Backoff& backoff);
  // Restores the newest durable copy. nullopt, with nothing done, if there is no copy from which the kept steps lead
  // on.
  absl::StatusOr<std::optional<v1::Session>> RestoreDurableCopy(const v1::Session& session, const Backoff& backoff);
  // Deletes and recreates the session. If that would lose tokens or named checkpoints, returns lost(obstacle) instead,
  // with a text that says what would be lost.
  absl::StatusOr<v1::Session> BeginAnew(absl::FunctionRef<absl::Status(const std::string&)> lost,
                                        const Backoff& backoff);
  absl::Status CompareNumerics(const Backoff& backoff);
  absl::Status DropDrafts(v1::Session* session, const Backoff& backoff);
  absl::Status Replay(const v1::Session& session, const Backoff& backoff);
  absl::Status ReplayLayer(LayerSteps& layer, int64_t token_count, const Backoff& backoff);
  absl::Status ReplayStep(KeptStep& step, const Backoff& backoff);
  // Tokens of the layer's draft that the call in flight accepts. nullptr: it has no acceptance for this layer.
  const DraftChoice* ChoiceInFlight(const LayerSteps& layer) const;
  // If the server has applied a row that accepts a draft and adds no tokens to the count, keeps the acceptance. The
  // next try then has only the rest: a draft, or a step without tokens.
  void KeepAppliedAcceptance(const v1::Session& session);
  bool InFlightIsApplied(const LayerSteps& layer, int64_t token_count) const;
  bool InFlightIsAppliedIn(const v1::Session& session) const;
  // True if the acceptance in flight was applied in every layer that has a draft here.
  bool AcceptanceIsApplied(const v1::Session& session) const;
  // The tokens that the acceptance in flight has to accept: none if the server has applied it, and forgotten its id.
  DraftChoice ChoiceToSend(const DraftChoice& choice) const;
  // True if an acceptance in flight may be refused because an earlier try of it was applied and forgotten.
  bool MayRefuseForItself(const absl::Status& status) const;

  // Constant after construction.
  Client& client_;
  const DurableSessionOptions options_;
  const std::string id_prefix_;                     // beginning of its request ids; unique to this object
  std::optional<v1::CreateSessionRequest> create_;  // request that makes the session; none: attached
  std::map<int32_t, int64_t> initial_counts_;       // token counts of a session that create_ makes
  int64_t prefix_tokens_ = 0;                       // tokens of the prefix that the session started from

  v1::Session session_;
  std::map<int32_t, LayerSteps> layers_;
  std::map<int32_t, DraftChoice> accepted_ahead_;  // drafts that a server without Step accepted with another layer's
  int64_t epoch_ = 0;
  bool astray_ = false;            // the server's session may not be where this object believes it to be
  bool rolled_back_ = false;       // astray_ holds, and the server has lost its state
  bool needs_replay_ = false;      // the server has lost something, and the replay is not complete
  std::string numerics_id_;        // of the server at Create or Attach; "": not known
  bool numerics_changed_ = false;  // replayed outputs may then differ from the first ones
  std::optional<CallInFlight> in_flight_;
  bool restoring_ = false;  // a restore got no answer, so the state may be the checkpoint's; in_flight_ is then none
  int64_t next_request_ = 0;
  std::map<int32_t, int64_t> checkpointed_counts_;
  DurableSessionStats stats_;
};

}  // namespace gdn
