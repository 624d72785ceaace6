// Calls of the Gated DeltaNet service that return at once: each one's reply or error goes to a callback.
//
// A callback runs on one of gRPC's threads, exactly once, and never within the method that takes it; it should do
// little: keep the reply, wake somebody, make the next call. Calls go out in any order: a step of a session's layer
// belongs into the callback of the one before, or into a stream (stream.h).
// Thread safety: all methods may be called from any thread at any time, callbacks included; the destructor from no
// callback. Ownership: borrows the Client, whose connection and options it uses, and which must outlive it. Destroying
// it cancels what is under way and waits for the callbacks.
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

// A call under way. Thread safety: any thread, any time. Ownership: none; it may outlive its call and the AsyncClient.
class AsyncCall {
 public:
  // Asks for the call's end; its callback gets CANCELLED, or what came first. Nothing where the call has ended.
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

  // The errors are Client's; where that was made of a stub (for tests) FAILED_PRECONDITION, at once.
  AsyncCall Prefill(v1::PrefillRequest request, Done<v1::PrefillResponse> done, const CallOptions& call = {});
  AsyncCall Decode(v1::DecodeRequest request, Done<v1::DecodeResponse> done, const CallOptions& call = {});
  AsyncCall AcceptTokens(v1::AcceptTokensRequest request, Done<v1::AcceptTokensResponse> done,
                         const CallOptions& call = {});
  AsyncCall CreateSession(v1::CreateSessionRequest request, Done<v1::CreateSessionResponse> done,
                          const CallOptions& call = {});
  AsyncCall DeleteSession(v1::DeleteSessionRequest request, Done<v1::DeleteSessionResponse> done,
                          const CallOptions& call = {});
  AsyncCall ForkSession(v1::ForkSessionRequest request, Done<v1::ForkSessionResponse> done,
                        const CallOptions& call = {});
  AsyncCall CheckpointSession(v1::CheckpointSessionRequest request, Done<v1::CheckpointSessionResponse> done,
                              const CallOptions& call = {});
  AsyncCall PrefetchSessions(v1::PrefetchSessionsRequest request, Done<v1::PrefetchSessionsResponse> done,
                             const CallOptions& call = {});

  // Waits until no call is under way and all callbacks have returned; not to be called from one.
  void WaitForAll();

 private:
  using Stub = v1::GdnService::StubInterface::async_interface;
  class Calls;

  template <typename Request, typename Response>
  AsyncCall Start(void (Stub::*method)(grpc::ClientContext*, const Request*, Response*,
                                       std::function<void(grpc::Status)>),
                  Request request, Done<Response> done, const CallOptions& call);

  Client& client_;
  const std::shared_ptr<Calls> calls_;  // those under way; callbacks hold it too, so that none ends in freed memory
};

}  // namespace gdn
