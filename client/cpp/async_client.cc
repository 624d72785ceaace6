#include "client/cpp/async_client.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/reply_epoch.h"
#include "client/cpp/rpc_status.h"

namespace gdn {

class AsyncClient::Calls {
 public:
  // False where the calls are about to end: this one should, too.
  bool Add(const std::shared_ptr<grpc::ClientContext>& context) {
    absl::MutexLock lock(&mu_);
    contexts_.insert(context);
    ++under_way_;
    return !ending_;
  }
  // The caller's callback has returned. A context holds its channel, and a channel may not end on one of gRPC's own
  // threads, which would wait for itself: so the context is gone before the call no longer counts as under way.
  void Remove(std::shared_ptr<grpc::ClientContext> context) {
    {
      absl::MutexLock lock(&mu_);
      contexts_.erase(context);
    }
    context.reset();
    absl::MutexLock lock(&mu_);
    --under_way_;
  }
  void CancelAll() {
    std::set<std::shared_ptr<grpc::ClientContext>> contexts;
    {
      absl::MutexLock lock(&mu_);
      ending_ = true;
      contexts = contexts_;
    }
    for (const auto& context : contexts) context->TryCancel();
  }
  void WaitForNone() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &Calls::None));
  }

 private:
  bool None() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return under_way_ == 0; }

  absl::Mutex mu_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<grpc::ClientContext>> contexts_ ABSL_GUARDED_BY(mu_);
  int64_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
};

void AsyncCall::Cancel() {
  if (const auto context = context_.lock()) context->TryCancel();
}

AsyncClient::AsyncClient(Client& client) : client_(client), calls_(std::make_shared<Calls>()) {}

AsyncClient::~AsyncClient() {
  calls_->CancelAll();
  calls_->WaitForNone();
}

void AsyncClient::WaitForAll() { calls_->WaitForNone(); }

template <typename Request, typename Response>
AsyncCall AsyncClient::Start(void (Stub::*method)(grpc::ClientContext*, const Request*, Response*,
                                                  std::function<void(grpc::Status)>),
                             Request request, Done<Response> done, const CallOptions& call) {
  Stub* const stub = client_.stub_->async();
  if (stub == nullptr) {
    std::move(done)(absl::FailedPreconditionError("calls with callbacks need a client that was made of a channel"));
    return AsyncCall({});
  }
  struct State {
    grpc::ClientContext context;
    Request request;
    Response response;
    Done<Response> done;
    absl::Status unsent;  // why the call is not one to send; it is begun all the same, as it ends where all calls end
  };
  const auto state = std::make_shared<State>();
  std::shared_ptr<grpc::ClientContext> context(state, &state->context);
  state->request = std::move(request);
  state->done = std::move(done);
  state->unsent = client_.PrepareContext(call, client_.options_.default_timeout, &state->context);
  if (!calls_->Add(context) || !state->unsent.ok()) state->context.TryCancel();
  // gRPC keeps the function longer than the call counts as under way, so it must not keep the context.
  (stub->*method)(&state->context, &state->request, &state->response,
                  [calls = calls_, kept = state](const grpc::Status& status) mutable {
                    absl::Status error = kept->unsent.ok() ? StatusFromGrpc(status) : kept->unsent;
                    if (error.ok()) error = CheckReplyEpoch(kept->request, kept->response);
                    if (error.ok()) {
                      std::move(kept->done)(std::move(kept->response));
                    } else {
                      std::move(kept->done)(std::move(error));
                    }
                    kept->done = nullptr;  // what it holds ends before WaitForAll does
                    std::shared_ptr<grpc::ClientContext> ended(kept, &kept->context);
                    kept.reset();
                    calls->Remove(std::move(ended));
                  });
  return AsyncCall(std::move(context));
}

AsyncCall AsyncClient::Prefill(v1::PrefillRequest request, Done<v1::PrefillResponse> done, const CallOptions& call) {
  return Start(&Stub::Prefill, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::Decode(v1::DecodeRequest request, Done<v1::DecodeResponse> done, const CallOptions& call) {
  return Start(&Stub::Decode, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::Step(v1::StepRequest request, Done<v1::StepResponse> done, const CallOptions& call) {
  return Start(&Stub::Step, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::AcceptTokens(v1::AcceptTokensRequest request, Done<v1::AcceptTokensResponse> done,
                                    const CallOptions& call) {
  return Start(&Stub::AcceptTokens, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::CreateSession(v1::CreateSessionRequest request, Done<v1::CreateSessionResponse> done,
                                     const CallOptions& call) {
  return Start(&Stub::CreateSession, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::DeleteSession(v1::DeleteSessionRequest request, Done<v1::DeleteSessionResponse> done,
                                     const CallOptions& call) {
  return Start(&Stub::DeleteSession, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::ForkSession(v1::ForkSessionRequest request, Done<v1::ForkSessionResponse> done,
                                   const CallOptions& call) {
  return Start(&Stub::ForkSession, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::SnapshotSession(v1::SnapshotSessionRequest request, Done<v1::SnapshotSessionResponse> done,
                                       const CallOptions& call) {
  return Start(&Stub::SnapshotSession, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::SnapshotSessions(v1::SnapshotSessionsRequest request, Done<v1::SnapshotSessionsResponse> done,
                                        const CallOptions& call) {
  return Start(&Stub::SnapshotSessions, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::CheckpointSession(v1::CheckpointSessionRequest request, Done<v1::CheckpointSessionResponse> done,
                                         const CallOptions& call) {
  return Start(&Stub::CheckpointSession, std::move(request), std::move(done), call);
}

AsyncCall AsyncClient::PrefetchSessions(v1::PrefetchSessionsRequest request, Done<v1::PrefetchSessionsResponse> done,
                                        const CallOptions& call) {
  return Start(&Stub::PrefetchSessions, std::move(request), std::move(done), call);
}

}  // namespace gdn
