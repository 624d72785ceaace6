// One step of one layer for many DurableSessions in one call, each of whose rows is applied exactly once.
//
// All rows go to the server in one Decode, under one request id. A row that succeeds is its session's own step from
// then on, bit for bit as if DurableSession::Decode had taken it. A row that fails is brought back by its session
// (found again, replayed, gone back where its reply was dropped) and sent again with the others that failed, until it
// succeeds, cannot, or overall_timeout has passed. Rows are brought back one after the other, once those that need not
// be have been sent. A reply that is lost as a whole is answered from stored replies.
//
// Thread safety: one thread at a time, and none that uses one of the sessions. Ownership: the Client must outlive it;
// sessions are borrowed for a call. Between calls they may be stepped alone, or in other batches.
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
  // Timeouts and back-off of `options` are its own; how much is kept and when checkpoints are made is each session's.
  // `client` is borrowed, and that of all sessions.
  explicit DurableBatch(Client& client, DurableSessionOptions options = {});

  struct Reply {
    v1::Tensor output;  // as DecodeResponse.output: a row a session; of no shape where no row has succeeded
    std::vector<absl::Status> rows;  // the errors of DurableSession::Decode; such a row's output is zero
  };
  // `request` as that of a Decode of these sessions, whose names, epochs, counts and ids are set here. Where a row's
  // error says that its time is over, repeat that row before another step of its session, alone or in any batch: the
  // others are done. INVALID_ARGUMENT, and nothing has moved: DUPLICATE_SESSION; BATCH_TOO_LARGE where there is no
  // session; a session of another Client; tensors with another number of rows, or in shared memory.
  absl::StatusOr<Reply> Decode(absl::Span<DurableSession* const> sessions, v1::DecodeRequest request);

  // Accepts the first accepted_tokens[i] tokens of session i's draft, with the errors of DurableSession::AcceptTokens.
  // INVALID_ARGUMENT as above.
  absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> AcceptTokens(
      absl::Span<DurableSession* const> sessions, absl::Span<const int32_t> accepted_tokens);
  // The same of drafts that are trees: the tokens of paths[i], with the errors of DurableSession::AcceptPath.
  absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> AcceptPaths(
      absl::Span<DurableSession* const> sessions, absl::Span<const std::vector<int32_t>> paths);

 private:
  struct Row {
    DurableSession* session;
    absl::Status status;  // of the last try; UNAVAILABLE before the first
    bool pending = true;
  };
  // One try of these rows, under this id: their statuses. Those that succeeded are finished in their sessions.
  using SendRows = absl::FunctionRef<std::vector<absl::Status>(const std::vector<size_t>& rows, const std::string& id,
                                                               const CallOptions& call)>;

  absl::Status Check(absl::Span<DurableSession* const> sessions) const;
  // `what` are the choices to the caller.
  absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> Accept(absl::Span<DurableSession* const> sessions,
                                                                             const std::vector<DraftChoice>& choices,
                                                                             const std::string& what);
  // Until no row is pending. begin(i) begins row i's call in its session.
  std::vector<absl::Status> Run(absl::Span<DurableSession* const> sessions,
                                absl::FunctionRef<absl::Status(size_t)> begin, SendRows send);
  // Tries pending rows once: those whose sessions have to be brought back first, or the others.
  void TryOnce(std::vector<Row>& rows, bool astray, const Backoff& backoff, SendRows send);
  std::vector<absl::Status> SendDecode(absl::Span<DurableSession* const> sessions, const std::vector<size_t>& rows,
                                       const std::string& id, const CallOptions& call, v1::Tensor* output);

  Client& client_;
  const DurableSessionOptions options_;
  const std::string id_prefix_;  // of request ids: unlike those of any other object
  int64_t next_request_ = 0;
};

}  // namespace gdn
