// Calls of the Gated DeltaNet service that return at once. Each call's reply or error goes to a callback.
//
// A callback runs exactly once, on one of gRPC's threads, and never inside the method that takes it. It should do
// little: store the reply, wake a thread, start the next call. Calls may overtake each other, so start the next step of
// a session's layer in the callback of the step before, or use a stream (stream.h).
// Thread safety: all methods may be called from any thread at any time, also from callbacks. Only the destructor must
// not run in a callback. Ownership: borrows the Client, which must outlive it, and uses its connection and options. The
// destructor cancels the calls in flight and waits for their callbacks.
//
//   AsyncClient async(*client);
//   async.Decode(std::move(half),
//                [&](absl::StatusOr<v1::DecodeResponse> reply) { first.set_value(std::move(reply)); });
//   async.Decode(std::move(rest), ...);
//   Attend();                                     // while both are computed
//   GDN_ASSIGN_OR_RETURN(v1::DecodeResponse reply, first.get_future().get());
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"

namespace gdn {

// A call in flight. Thread safety: any thread, any time. Ownership: none; it may outlive its call and the AsyncClient.
class AsyncCall {
 public:
  // Cancels the call. Its callback gets CANCELLED, or an earlier result. Does nothing if the call has ended.
  void Cancel();

 private:
  friend class AsyncClient;
  explicit AsyncCall(std::weak_ptr<grpc::ClientContext> context) : context_(std::move(context)) {}

  std::weak_ptr<grpc::ClientContext> context_;
};

class AsyncClient {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  explicit AsyncClient(Client& client);
  AsyncClient(const AsyncClient&) = delete;
  AsyncClient& operator=(const AsyncClient&) = delete;
  ~AsyncClient();

  // Start a call and return at once; `done` gets the reply or the error later, on a thread of gRPC. Errors are those of
  // Client. If the Client was made from a stub (for tests), `done` gets FAILED_PRECONDITION before the method returns.
  AsyncCall Prefill(v1::PrefillRequest request, Done<v1::PrefillResponse> done, const CallOptions& call = {});
  AsyncCall Decode(v1::DecodeRequest request, Done<v1::DecodeResponse> done, const CallOptions& call = {});
  AsyncCall Step(v1::StepRequest request, Done<v1::StepResponse> done, const CallOptions& call = {});
  AsyncCall AcceptTokens(v1::AcceptTokensRequest request, Done<v1::AcceptTokensResponse> done,
                         const CallOptions& call = {});
  AsyncCall CreateSession(v1::CreateSessionRequest request, Done<v1::CreateSessionResponse> done,
                          const CallOptions& call = {});
  AsyncCall DeleteSession(v1::DeleteSessionRequest request, Done<v1::DeleteSessionResponse> done,
                          const CallOptions& call = {});
  AsyncCall ForkSession(v1::ForkSessionRequest request, Done<v1::ForkSessionResponse> done,
                        const CallOptions& call = {});
  AsyncCall SnapshotSession(v1::SnapshotSessionRequest request, Done<v1::SnapshotSessionResponse> done,
                            const CallOptions& call = {});
  AsyncCall SnapshotSessions(v1::SnapshotSessionsRequest request, Done<v1::SnapshotSessionsResponse> done,
                             const CallOptions& call = {});
  AsyncCall CheckpointSession(v1::CheckpointSessionRequest request, Done<v1::CheckpointSessionResponse> done,
                              const CallOptions& call = {});
  AsyncCall PrefetchSessions(v1::PrefetchSessionsRequest request, Done<v1::PrefetchSessionsResponse> done,
                             const CallOptions& call = {});

  // Waits until no call is in flight and all callbacks have returned. Must not be called from a callback.
  void WaitForAll();

 private:
  using Stub = v1::GdnService::StubInterface::async_interface;
  class Calls;

  template <typename Request, typename Response>
  AsyncCall Start(void (Stub::*method)(grpc::ClientContext*, const Request*, Response*,
                                       std::function<void(grpc::Status)>),
                  Request request, Done<Response> done, const CallOptions& call);

  Client& client_;
  const std::shared_ptr<Calls> calls_;  // calls in flight; callbacks share it, so it outlives them
};

}  // namespace gdn
