// One step of one layer for many DurableSessions in one call. Each row is applied exactly once.
//
// All rows go to the server in one Decode or Step, under one request id. A row that succeeds counts as a step of its
// session, with the bits of the same row alone. If rows fail, their sessions recover: they are found again, replayed,
// or set back if a reply was dropped. Then these rows are sent again, until each row succeeds, cannot succeed, or
// overall_timeout has passed. Rows that need no recovery are sent first; the others recover one after the other. If a
// whole reply is lost, the server answers the retry from stored replies.
//
// Thread safety: one thread at a time, and no other thread may use one of the sessions. Ownership: the Client must
// outlive it; sessions are borrowed for a call. Between calls they may be stepped alone, or in other batches.
//
//   DurableBatch batch(client);
//   *step.mutable_hidden_states()->mutable_hidden_states() = x;  // [B, T, D]
//   GDN_ASSIGN_OR_RETURN(DurableBatch::Reply reply, batch.Decode({a.get(), b.get()}, step));
//   if (reply.rows[1].ok()) Use(reply.output, 1);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/durable_session.h"

namespace gdn {

class DurableBatch final {
 public:
  // The batch uses the overall_timeout and back-off of `options`. A try's timeout is the smaller of its try_timeout and
  // that of the first session in the call; calls that recover a session use the session's. Each session's own options
  // say how many inputs it keeps and when it makes checkpoints. `client` is borrowed, and must be the Client of all
  // sessions.
  explicit DurableBatch(Client& client, DurableSessionOptions options = {});

  struct Reply {
    v1::Tensor output;               // as DecodeResponse.output, a row for each session; no shape if all rows failed
    std::vector<absl::Status> rows;  // errors as of DurableSession::Decode; the output of a failed row is zero
  };
  // Applies one step to each session, until each row has succeeded or cannot. `request` is a Decode of these sessions.
  // The call sets its names, epochs, token counts and ids. If the time is over before a row is done, repeat that row
  // before any other step of its session, alone or in any batch. All other rows are done. INVALID_ARGUMENT with nothing
  // changed: DUPLICATE_SESSION; BATCH_TOO_LARGE if there is no session; a session of another Client; tensors with
  // another number of rows, or in shared memory.
  absl::StatusOr<Reply> Decode(absl::Span<DurableSession* const> sessions, v1::DecodeRequest request);

  // Applies one row of a Step to each session, as Decode does. `request` is a Step whose row i is of session i; the
  // names in the rows are ignored. Rows may be decodes, drafts and prefills, and may accept their layer's draft before.
  // The output has the tokens of all rows, as StepResponse.output; it has no shape if no row with tokens succeeded.
  // Errors as in Decode, and INVALID_ARGUMENT (INVALID_LENGTHS) if there is not one row for each session. On a server
  // without Step (version 0.1.0), each row is sent alone: see DurableSession::Step.
  absl::StatusOr<Reply> Step(absl::Span<DurableSession* const> sessions, v1::StepRequest request);

  // Accepts the first accepted_tokens[i] tokens of session i's draft. Returns each session's token counts or its error,
  // which is one of DurableSession::AcceptTokens. INVALID_ARGUMENT with nothing changed: DUPLICATE_SESSION;
  // BATCH_TOO_LARGE if there is no session; INVALID_LENGTHS if there is not one number for each; a session of another
  // Client.
  absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> AcceptTokens(
      absl::Span<DurableSession* const> sessions, absl::Span<const int32_t> accepted_tokens);
  // Accepts the tokens of paths[i], root first, from session i's draft, which is a tree. Returns each session's token
  // counts or its error, which is one of DurableSession::AcceptPath. INVALID_ARGUMENT as in AcceptTokens.
  absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> AcceptPaths(
      absl::Span<DurableSession* const> sessions, absl::Span<const std::vector<int32_t>> paths);

 private:
  struct Row {
    DurableSession* session;
    absl::Status status;  // status of the last try; UNAVAILABLE before the first
    bool pending = true;
  };
  // Sends these rows once, under this request id, and returns their statuses. For rows that succeed, also finishes the
  // step in their sessions.
  using SendRows = absl::FunctionRef<std::vector<absl::Status>(const std::vector<size_t>& rows, const std::string& id,
                                                               const CallOptions& call, const Backoff& backoff)>;
  // The place of each row in the first dimension of the whole batch's tensors: row i has [first[i], first[i + 1]).
  using RowBounds = std::vector<size_t>;

  absl::Status Check(absl::Span<DurableSession* const> sessions) const;
  // Accepts choices[i] in session i. `what` names the caller's argument, for errors.
  absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> Accept(absl::Span<DurableSession* const> sessions,
                                                                             const std::vector<DraftChoice>& choices,
                                                                             const std::string& what);
  // Tries the rows until none is pending or overall_timeout has passed, and returns their statuses. begin(i) begins row
  // i's call in its session.
  std::vector<absl::Status> Run(absl::Span<DurableSession* const> sessions,
                                absl::FunctionRef<absl::Status(size_t)> begin, SendRows send);
  // Tries the pending rows once: with `astray` those whose sessions must recover first, otherwise the others.
  void TryOnce(std::vector<Row>& rows, bool astray, const Backoff& backoff, SendRows send);
  std::vector<absl::Status> SendDecode(absl::Span<DurableSession* const> sessions, const std::vector<size_t>& rows,
                                       const std::string& id, const CallOptions& call, const RowBounds& first,
                                       v1::Tensor* output);
  std::vector<absl::Status> SendStep(absl::Span<DurableSession* const> sessions, const std::vector<size_t>& rows,
                                     const std::string& id, const CallOptions& call, const Backoff& backoff,
                                     const RowBounds& first, v1::Tensor* output);
  // Finishes the steps that a reply to these rows says to be applied, and copies their outputs to `output`. Returns the
  // status of each of `rows`.
  template <typename Response>
  static std::vector<absl::Status> TakeRows(absl::Span<DurableSession* const> sessions, const std::vector<size_t>& rows,
                                            const absl::StatusOr<Response>& reply, const RowBounds& first,
                                            v1::Tensor* output);

  Client& client_;
  const DurableSessionOptions options_;
  const std::string id_prefix_;  // beginning of its request ids; unique to this object
  int64_t next_request_ = 0;
};

}  // namespace gdn
