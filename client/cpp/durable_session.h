// One uninterrupted session on a server that may crash, restart or drain.
//
// It keeps the inputs of every step since the newest durable copy of each layer (the server says how far that is).
// When the server comes back with less than it had answered, the kept steps are sent again, with their original call
// boundaries, so that the state is the same bits; then the call that failed goes on. A call whose reply was lost is
// repeated under its request id, which the server answers from its memory. Where that has no room for the reply any
// more (REPLY_DROPPED), the session goes back to its durable copy, or is made anew, and takes the kept steps and this
// one again. Where a store was set back and has less of the session than the server knew, or a step failed halfway
// (STATE_ROLLED_BACK), it goes on from what is there in the same way; where nothing is there (STATE_LOST), it is made
// anew, but deleted only if all its inputs are kept. The caller sees every step applied once. On a server without
// --disk-dir a session is replayed from its start, so all inputs are kept. Forks, exports and checkpoints are of the
// state that this side knows, never of an older one that a crash has left: the session is brought back first.
// DurableBatch (durable_batch.h) takes a step of many such sessions in one call.
//
// Thread safety: one thread at a time; different sessions of one Client may be used at once. Ownership: the Client must
// outlive it; it keeps copies of inputs, up to max_kept_bytes. While it is used nobody else may move the session.
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
  absl::Duration try_timeout = absl::Seconds(30);     // of one try of one call
  absl::Duration overall_timeout = absl::Minutes(5);  // of a call of this class, waiting and replaying included
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration longest_backoff = absl::Seconds(2);
  int64_t max_kept_bytes = int64_t{256} << 20;  // of inputs; above it the session is
                                                // checkpointed before the next step
  int64_t checkpoint_every_tokens = 0;          // CheckpointSession whenever a layer has gone on by so many; 0: the
                                                // server's own policy alone
};

// Since the object was made.
struct DurableSessionStats {
  int64_t retries = 0;      // tries beyond the first, of whatever call
  int64_t recoveries = 0;   // times that the server had lost steps, or the whole session
  int64_t recreations = 0;  // the session was made anew, in a recovery or to go back
  int64_t rewinds = 0;      // times that a reply was not stored any more, so the
                            // session went back to before its step
  int64_t replayed_steps = 0;
  int64_t replayed_tokens = 0;
  int64_t last_lost_tokens = 0;  // of the layer that lost most, at the last recovery
  int64_t max_lost_tokens = 0;   // at any recovery
};

struct SeenTokens;

class DurableSession final {
 public:
  // Makes the session, or finds it where the request names one that the same
  // request has made. INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS,
  // RESOURCE_EXHAUSTED of CreateSession. `client` is borrowed.
  static absl::StatusOr<std::unique_ptr<DurableSession>> Create(Client& client, v1::CreateSessionRequest request,
                                                                DurableSessionOptions options = {});
  // Goes on with a session that is there, from its token counts: an imported
  // one, or a fork. It can be brought back only as far as it is durable:
  // checkpoint it first. FAILED_PRECONDITION (DRAFT_PENDING) while it has a
  // draft.
  static absl::StatusOr<std::unique_ptr<DurableSession>> Attach(Client& client, const std::string& name,
                                                                DurableSessionOptions options = {});
  DurableSession(const DurableSession&) = delete;
  DurableSession& operator=(const DurableSession&) = delete;

  // One step. session, session_epoch, expected_token_count and request_id are set here, whatever they were; a
  // DecodeRequest has one row. Beside the server's refusals of the step, after which nothing has moved:
  // - UNAVAILABLE, DEADLINE_EXCEEDED: overall_timeout has passed; the step may have been applied. Make the same call
  //   again to find out and go on; another is refused (FAILED_PRECONDITION).
  // - DATA_LOSS: the server lost more than is kept here, or somebody else moved the session, or (REPLY_DROPPED) the
  //   step is done, its reply is lost and there is no way back, or (CHECKPOINT_NOT_FOUND) the server has lost the
  //   state, has no durable copy, and the session cannot be made anew; it is not deleted then.
  // - INTERNAL: a replayed step gave other bytes than at first, on equal numerics.
  // - RESOURCE_EXHAUSTED: the inputs are over max_kept_bytes and the session cannot be made durable.
  absl::StatusOr<v1::PrefillResponse> Prefill(v1::PrefillRequest request);
  absl::StatusOr<v1::DecodeResponse> Decode(v1::DecodeRequest request);

  // Accepts the first tokens of the draft in every layer that has one.
  // INVALID_ARGUMENT (TOO_MANY_TOKENS) where a layer's is shorter. Other errors
  // as above.
  absl::StatusOr<v1::SessionTokenCounts> AcceptTokens(int32_t accepted_tokens);
  // Of drafts that are trees: the tokens of this path, root first, in every layer that has a draft. INVALID_ARGUMENT
  // (VALUE_OUT_OF_RANGE) where it is none of a layer's. An empty path accepts nothing.
  absl::StatusOr<v1::SessionTokenCounts> AcceptPath(std::vector<int32_t> path);

  // Makes the session durable now and forgets the inputs before. With an id it
  // makes a copy to go back to by hand: a crash leaves the newest one without,
  // so the inputs stay. Errors as above.
  absl::StatusOr<v1::Checkpoint> Checkpoint(const std::string& checkpoint_id = "");

  // The session's states as a file (docs/reference/state-files.md). name and session_epoch are set here. Errors as above.
  absl::StatusOr<std::string> ExportState(v1::ExportStateRequest request = {});

  // Sessions that go on from here, drafts included, one for each id; an empty id is drawn. A child keeps what this
  // session keeps, so it is made anew where the server loses it and all inputs are kept; else it can be brought back
  // once it is durable: checkpoint it. ALREADY_EXISTS (SESSION_EXISTS) where an id is taken, by a session that another
  // request has made or that is at other token counts. Other errors as above.
  absl::StatusOr<std::vector<std::unique_ptr<DurableSession>>> Fork(std::vector<std::string> ids);

  // Keeps the state as that of the prefix, which the session has just prefilled; see prompt_prefix.h. Errors as above,
  // and PREFIX_MISMATCH where the session has been brought back from a durable copy.
  absl::StatusOr<v1::KeepPrefixResponse> KeepPrefix(const v1::PromptPrefix& prefix);

  // Goes back to a checkpoint, in a new epoch; an empty id is the newest. The reply tells the token counts to go on
  // from. Inputs before are kept no more, for the copy is durable, and drafts that it has are dropped. Errors as above;
  // DATA_LOSS where the newest copy is older than the server had said. After UNAVAILABLE and DEADLINE_EXCEEDED the
  // session may be back there: restore it again, from this copy or another; other calls are refused
  // (FAILED_PRECONDITION) until then, or until a restore says that the session has gone.
  absl::StatusOr<v1::Session> Restore(const std::string& checkpoint_id = "");

  // Ends the session on the server. OK where it is gone already.
  absl::Status Delete();

  const std::string& name() const { return session_.name(); }
  const v1::Session& session() const { return session_; }  // as it was when it was made or found
  int64_t token_count(int32_t layer) const;                // -1: no such layer
  int64_t epoch() const { return epoch_; }  // of the server's session, as this side knows it: for calls of the Client
  int64_t kept_bytes() const;
  const DurableSessionStats& stats() const { return stats_; }

 private:
  friend class DurableBatch;

  // What a step did.
  struct StepResult {
    int64_t token_count = 0;
    int64_t durable_token_count = 0;
    Hash128 output;
  };
  struct Reply {
    std::variant<v1::PrefillResponse, v1::DecodeResponse> message;
    StepResult result;
  };
  struct AcceptCall {
    DraftChoice choice;
  };
  // A call that is under way; kept when overall_timeout ends it without an
  // answer.
  struct CallInFlight {
    std::variant<SessionStep, AcceptCall> what;
    Hash128 identity;             // of what the caller asked for
    std::string request_id = {};  // "": the next try takes a new one
    bool sent = false;            // so it may have been applied
    bool applied = false;         // the server has done it, as its token counts tell
    bool copy_tried = false;      // the durable copy has the step in it, and the
                                  // session is back there already
    std::string refusal = {};     // the reason why the session has to be looked at
  };

  DurableSession(Client& client, DurableSessionOptions options);
  absl::Status Adopt(v1::Session session, Backoff& backoff);

  // A call in parts, for the loops that try until it is answered (Recovered,
  // DurableBatch). Begin; then, until a try gives a result or TryAgainAfter
  // says that none will: Prepare, send, and a wait. Finish or, where the time
  // is over, GiveUp ends it.
  absl::Status BeginStep(SessionStep request);
  absl::Status BeginAccept(DraftChoice choice);
  absl::Status Begin(std::variant<SessionStep, AcceptCall> what, Hash128 identity);
  // Brings the server's session to where the call can be made, and makes a
  // checkpoint where one is due. One try.
  absl::Status Prepare(const Backoff& backoff);
  // After a try that failed, in Prepare or later: false where another will not
  // do better.
  bool TryAgainAfter(const absl::Status& status);
  void GiveUp();
  absl::Status FinishStep(const StepResult& result);
  absl::Status FinishAccept(const v1::SessionTokenCounts& counts);
  // The step in flight; its request, where it is a decode, and its place in a
  // message of several.
  SessionStep& step() { return std::get<SessionStep>(in_flight_->what); }
  void AddRowTo(v1::DecodeRequest& message, int64_t token_count) const;
  void AddRowTo(v1::AcceptTokensRequest& message, const DraftChoice& choice) const;

  absl::StatusOr<Reply> RunStep(SessionStep request);
  absl::StatusOr<v1::SessionTokenCounts> RunAccept(DraftChoice choice);
  // One try where the inputs are too many, or it is time.
  absl::Status KeepWithinLimits(const Backoff& backoff);
  // One try each of calls that use the session's state.
  absl::StatusOr<v1::Checkpoint> TryCheckpoint(const std::string& checkpoint_id, const Backoff& backoff);
  absl::StatusOr<std::string> TryExport(v1::ExportStateRequest& request, const Backoff& backoff);
  // `drawn`: names of children that nobody else can know.
  absl::StatusOr<std::vector<v1::Session>> TryFork(v1::ForkSessionRequest& request, const std::set<std::string>& drawn,
                                                   const Backoff& backoff);
  // Drafts are dropped, too. Where the server is in another epoch than the request's, the next try names that one.
  absl::Status TryRestore(v1::RestoreCheckpointRequest& request, v1::Session* restored, const Backoff& backoff);
  std::unique_ptr<DurableSession> ChildOf(v1::Session child) const;
  // FAILED_PRECONDITION while a call before has no answer.
  absl::Status CheckRestored() const;  // .. a restore
  absl::Status CheckIdle(std::string_view call) const;
  // ABORTED (TOKEN_COUNT_MISMATCH) where `what` is of other token counts, or drafts, than this side knows; a layer that
  // is not there has seen nothing.
  absl::Status CheckSeen(const std::map<int32_t, SeenTokens>& seen, std::string_view what) const;
  // The call's result once it is none that another try may better; Recovered
  // prepares each.
  template <typename Call>
  auto Retried(Backoff& backoff, const Call& call) -> decltype(call(CallOptions()));
  absl::Status Recovered(Backoff& backoff, absl::FunctionRef<absl::Status()> call);

  Backoff NewBackoff() const;
  std::string NewRequestId();
  const std::string& RequestIdInFlight();
  CallOptions TryOptions(const Backoff& backoff) const;

  // One try of a call.
  absl::StatusOr<Reply> Send(SessionStep& request, const std::string& request_id, int64_t token_count,
                             const Backoff& backoff);
  absl::StatusOr<v1::SessionTokenCounts> SendAccept(const DraftChoice& choice, const std::string& request_id,
                                                    const Backoff& backoff);

  // Brings the server's session to where this side believes it to be, or to
  // where the call in flight has taken it. One try, which goes on where the
  // last one broke.
  absl::Status Recover(const Backoff& backoff);
  absl::StatusOr<v1::Session> FindOrRecreate(bool* recreated, const Backoff& backoff);
  // Where the store was set back, or the state is lost: what is there now
  // under a new epoch, or the session made anew.
  absl::StatusOr<v1::Session> GoOnFromStore(bool* recreated, const Backoff& backoff);
  absl::StatusOr<v1::Session> Recreate(const Backoff& backoff);
  // nullptr where the inputs of all layers are kept from the start; else a
  // layer of which they are not.
  const LayerSteps* NotKeptFromStart() const;
  bool IsWhereExpected(const v1::Session& session) const;
  void NoteLoss(const v1::Session& session);
  // Whether the call in flight was applied and its reply is not to be had any
  // more.
  bool ReplyIsGone() const;
  // Whether the step in flight has no tokens, and its reply is not to be had any more.
  bool StepWithoutTokensIsGone() const;
  // Takes the session back to before the step in flight: to its durable copy,
  // or to its start.
  absl::Status Rewind(v1::Session* session, const Backoff& backoff);
  // nullopt: there is no copy that the session could go on from.
  absl::StatusOr<std::optional<v1::Session>> RestoreDurableCopy(const v1::Session& session, const Backoff& backoff);
  // Deletes the session and makes it again; `lost` makes the error where it
  // cannot be, of the reason why.
  absl::StatusOr<v1::Session> BeginAnew(absl::FunctionRef<absl::Status(const std::string&)> lost,
                                        const Backoff& backoff);
  absl::Status CompareNumerics(const Backoff& backoff);
  absl::Status DropDrafts(v1::Session* session, const Backoff& backoff);
  absl::Status Replay(const v1::Session& session, const Backoff& backoff);
  absl::Status ReplayLayer(LayerSteps& layer, int64_t token_count, const Backoff& backoff);
  absl::Status ReplayStep(KeptStep& step, const Backoff& backoff);
  bool InFlightIsApplied(const LayerSteps& layer, int64_t token_count) const;
  bool InFlightIsAppliedIn(const v1::Session& session) const;

  // Constant after construction.
  Client& client_;
  const DurableSessionOptions options_;
  const std::string id_prefix_;                     // of request ids: unlike those of any other object
  std::optional<v1::CreateSessionRequest> create_;  // none: attached
  std::map<int32_t, int64_t> initial_counts_;       // of a session that create_ makes
  int64_t prefix_tokens_ = 0;                       // that it begins behind

  v1::Session session_;
  std::map<int32_t, LayerSteps> layers_;
  int64_t epoch_ = 0;
  bool astray_ = false;            // the server's session may be elsewhere than this side believes
  bool rolled_back_ = false;       // .. and nothing is left of the state that the server had
  bool needs_replay_ = false;      // the server has lost something and not all of it is back
  std::string numerics_id_;        // "": not known
  bool numerics_changed_ = false;  // then replies of before and after differ
  std::optional<CallInFlight> in_flight_;
  bool restoring_ = false;  // a restore has had no answer: the state may be the checkpoint's. in_flight_ is none then
  int64_t next_request_ = 0;
  std::map<int32_t, int64_t> checkpointed_counts_;
  DurableSessionStats stats_;
};

}  // namespace gdn
