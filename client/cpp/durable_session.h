// One uninterrupted session on a server that may crash, restart or drain.
//
// It keeps the inputs of every step since the newest durable copy of each layer (the server says how far that is). When
// the server comes back with less than it had answered, the kept steps are sent again, with their original call
// boundaries, so that the state is the same bits; then the call that failed goes on. A call whose reply was lost is
// repeated under its request id, which the server answers from its memory. The caller sees every step applied once.
// A step without a server that has --disk-dir is replayed from the session's start, so all inputs are kept.
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
#include <string>
#include <variant>

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
  int64_t max_kept_bytes = int64_t{256} << 20;  // of inputs; above it the session is checkpointed before the next step
  int64_t checkpoint_every_tokens = 0;          // CheckpointSession whenever a layer has gone on by so many; 0: the
                                                // server's own policy alone
};

// Since the object was made.
struct DurableSessionStats {
  int64_t retries = 0;      // tries beyond the first, of whatever call
  int64_t recoveries = 0;   // times that the server had lost steps, or the whole session
  int64_t recreations = 0;  // of those, the session was made anew
  int64_t replayed_steps = 0;
  int64_t replayed_tokens = 0;
  int64_t last_lost_tokens = 0;  // of the layer that lost most, at the last recovery
  int64_t max_lost_tokens = 0;   // at any recovery
};

class DurableSession final {
 public:
  // Makes the session, or finds it where the request names one that the same request has made. INVALID_ARGUMENT,
  // NOT_FOUND, ALREADY_EXISTS, RESOURCE_EXHAUSTED of CreateSession. `client` is borrowed.
  static absl::StatusOr<std::unique_ptr<DurableSession>> Create(Client& client, v1::CreateSessionRequest request,
                                                                DurableSessionOptions options = {});
  // Goes on with a session that is there, from its token counts: an imported one, or a fork. It can be brought back
  // only as far as it is durable: checkpoint it first. FAILED_PRECONDITION (DRAFT_PENDING) while it has a draft.
  static absl::StatusOr<std::unique_ptr<DurableSession>> Attach(Client& client, const std::string& name,
                                                                DurableSessionOptions options = {});
  DurableSession(const DurableSession&) = delete;
  DurableSession& operator=(const DurableSession&) = delete;

  // One step. session, session_epoch, expected_token_count and request_id are set here, whatever they were; a
  // DecodeRequest has one row. Beside the server's refusals of the step, after which nothing has moved:
  //   UNAVAILABLE, DEADLINE_EXCEEDED ..  overall_timeout has passed; the step may have been applied. Make the same call
  //                                      again to find out and go on; another is refused (FAILED_PRECONDITION).
  //   DATA_LOSS                          the server lost more than is kept here, or somebody else moved the session
  //   INTERNAL                           a replayed step gave other bytes than at first, on equal numerics
  //   RESOURCE_EXHAUSTED                 the inputs are over max_kept_bytes and the session cannot be made durable
  absl::StatusOr<v1::PrefillResponse> Prefill(v1::PrefillRequest request);
  absl::StatusOr<v1::DecodeResponse> Decode(v1::DecodeRequest request);

  // Accepts the first tokens of the draft in every layer that has one. INVALID_ARGUMENT (TOO_MANY_TOKENS) where a
  // layer's is shorter. Other errors as above.
  absl::StatusOr<v1::SessionTokenCounts> AcceptTokens(int32_t accepted_tokens);

  // Makes the session durable now and forgets the inputs before. Errors as above.
  absl::StatusOr<v1::Checkpoint> Checkpoint(const std::string& checkpoint_id = "");

  // Ends the session on the server. OK where it is gone already.
  absl::Status Delete();

  const std::string& name() const { return session_.name(); }
  const v1::Session& session() const { return session_; }  // as it was when it was made or found
  int64_t token_count(int32_t layer) const;                // -1: no such layer
  int64_t kept_bytes() const;
  const DurableSessionStats& stats() const { return stats_; }

 private:
  struct Reply {
    std::variant<v1::PrefillResponse, v1::DecodeResponse> message;
    int64_t token_count = 0;
    int64_t durable_token_count = 0;
    Hash128 output;
  };
  struct AcceptCall {
    int32_t accepted_tokens = 0;
  };
  // A call that was sent and not yet answered; kept when overall_timeout ends it.
  struct CallInFlight {
    std::variant<StepRequest, AcceptCall> what;
    Hash128 identity;  // of what the caller asked for
    std::string request_id;
    bool applied = false;  // the server has done it, as its token counts tell
  };

  DurableSession(Client& client, DurableSessionOptions options);
  absl::Status Adopt(v1::Session session, Backoff& backoff);
  absl::Status Begin(std::variant<StepRequest, AcceptCall> what, Hash128 identity, Backoff& backoff);
  absl::StatusOr<Reply> RunStep(StepRequest request);
  absl::Status Commit(StepRequest request, const Reply& reply);
  absl::Status KeepWithinLimits(Backoff& backoff);
  absl::StatusOr<v1::Checkpoint> CheckpointWith(const std::string& checkpoint_id, Backoff& backoff);
  // The call's result once it is none that another try may better; Recovered brings the session back before each.
  template <typename Call>
  auto Retried(Backoff& backoff, const Call& call) -> decltype(call(CallOptions()));
  template <typename Call>
  auto Recovered(Backoff& backoff, const Call& call) -> decltype(call());

  Backoff NewBackoff() const;
  std::string NewRequestId();
  CallOptions TryOptions(const Backoff& backoff) const;

  // One try of a call.
  absl::StatusOr<Reply> Send(StepRequest& request, const std::string& request_id, int64_t token_count,
                             const Backoff& backoff);
  absl::StatusOr<v1::SessionTokenCounts> SendAccept(int32_t accepted_tokens, const std::string& request_id,
                                                    const Backoff& backoff);

  // Waits, and brings the server's session to where this side believes it to be, or to where the
  // call in flight has taken it.
  absl::Status Recover(absl::Status cause, Backoff& backoff);
  absl::Status RecoverOnce(const Backoff& backoff);
  absl::StatusOr<v1::Session> FindOrRecreate(bool* recreated, const Backoff& backoff);
  bool IsWhereExpected(const v1::Session& session) const;
  void NoteLoss(const v1::Session& session, bool recreated);
  absl::Status CompareNumerics(const Backoff& backoff);
  absl::Status DropDrafts(v1::Session* session, const Backoff& backoff);
  absl::Status Replay(const v1::Session& session, const Backoff& backoff);
  absl::Status ReplayLayer(LayerSteps& layer, int64_t token_count, const Backoff& backoff);
  absl::Status ReplayStep(KeptStep& step, const Backoff& backoff);
  bool InFlightIsApplied(const LayerSteps& layer, int64_t token_count) const;

  // Constant after construction.
  Client& client_;
  const DurableSessionOptions options_;
  const std::string id_prefix_;                     // of request ids: unlike those of any other object
  std::optional<v1::CreateSessionRequest> create_;  // none: attached
  std::map<int32_t, int64_t> initial_counts_;       // of a session that create_ makes

  v1::Session session_;
  std::map<int32_t, LayerSteps> layers_;
  int64_t epoch_ = 0;
  bool needs_replay_ = false;      // the server has lost something and not all of it is back
  std::string numerics_id_;        // "": not known
  bool numerics_changed_ = false;  // then replies of before and after differ
  std::optional<CallInFlight> in_flight_;
  int64_t next_request_ = 0;
  std::map<int32_t, int64_t> checkpointed_counts_;
  DurableSessionStats stats_;
};

}  // namespace gdn
