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
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/durable_recovery.h"

namespace gdn {

class DurableSession final : private RecoverableSession {
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

  using RecoverableSession::name;
  const v1::Session& session() const { return session_; }  // as it was when it was made or found
  int64_t token_count(int32_t layer) const;                // -1: no such layer
  int64_t kept_bytes() const;
  const DurableSessionStats& stats() const { return stats_; }

 private:
  DurableSession(Client& client, DurableSessionOptions options) : RecoverableSession(client, options) {}
  absl::Status Adopt(v1::Session session, Backoff& backoff);
  // The call's result once it is none that another try may better.
  template <typename Call>
  auto Retried(Backoff& backoff, const Call& call) -> decltype(call(CallOptions()));

  absl::Status Begin(CallInFlight call, Backoff& backoff);
  absl::StatusOr<Reply> RunStep(StepRequest request);
  absl::Status Commit(StepRequest request, const Reply& reply);
  absl::Status KeepWithinLimits(Backoff& backoff);
  absl::StatusOr<v1::Checkpoint> CheckpointWith(const std::string& checkpoint_id, Backoff& backoff);
};

}  // namespace gdn
