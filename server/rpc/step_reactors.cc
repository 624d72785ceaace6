// The reactors of Prefill, Decode and their streams.
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "base/this_thread.h"
#include "server/rpc/calls.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/step_call.h"
#include "server/rpc/step_messages.h"

namespace gdn {
namespace {

// The step in flight of a reactor, and whether the client has gone: the two are told by different threads.
class CancelGate {
 public:
  void Cancel() {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    if (call_ != nullptr) call_->Cancel();
  }
  // `turn` counts a stream's calls: one may end, and the next be set by another thread, before the first is set here. A
  // call that has ended may still be set; cancelling it does nothing.
  void Set(int64_t turn, std::shared_ptr<StepCall> call) {
    absl::MutexLock lock(&mu_);
    if (turn < turn_) return;
    turn_ = turn;
    call_ = std::move(call);
    if (cancelled_) call_->Cancel();
  }

 private:
  absl::Mutex mu_;
  int64_t turn_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<StepCall> call_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

// What the request itself says of its call; nothing without a trace.
template <typename Request>
void NoteRequest(CallTrace* trace, const Caller& caller, const Request& request) {
  if (trace == nullptr) return;
  trace->principal = caller.principal;
  trace->layer = request.layer();
  trace->request_bytes = static_cast<int64_t>(request.ByteSizeLong());
}

template <typename Response>
void NoteReply(CallTrace* trace, const absl::Status& status, const Response& response) {
  if (trace == nullptr) return;
  trace->answered = TraceNow();
  trace->answerer = ThisThreadLabel();
  trace->status = status;
  if (status.ok()) trace->response_bytes = static_cast<int64_t>(response.ByteSizeLong());
}

// Runs `start(trace, done)` and finishes with its status. gRPC keeps a Finish that comes before the reactor is returned
// to it, and calls OnDone after every other reaction has returned.
class UnaryStepReactor : public grpc::ServerUnaryReactor {
 public:
  template <typename Response, typename Start>
  UnaryStepReactor(CallTracer& tracer, std::unique_ptr<CallTrace> trace, const Response& response, const Start& start)
      : tracer_(tracer), trace_(std::move(trace)) {
    gate_.Set(/*turn=*/0, start(trace_.get(), [this, &response](const absl::Status& status) {
                NoteReply(trace_.get(), status, response);
                Finish(ToGrpcStatus(status));
              }));
  }

  void OnCancel() override { gate_.Cancel(); }
  void OnDone() override {
    tracer_.End(std::move(trace_));
    delete this;
  }

 private:
  CallTracer& tracer_;
  std::unique_ptr<CallTrace> trace_;
  CancelGate gate_;
};

template <typename Request, typename Response, typename Start>
grpc::ServerUnaryReactor* NewUnaryReactor(std::string_view method, const ServiceContext& context,
                                          grpc::CallbackServerContext& call, const Request& request, Response* response,
                                          const Start& start) {
  auto trace = context.tracer.Begin(method, StepMessages<Request, Response>::ParseBegin(call));
  const Caller caller = CallerOf(call);
  NoteRequest(trace.get(), caller, request);
  return new UnaryStepReactor(context.tracer, std::move(trace), *response, [&](CallTrace* to, StepCall::Done done) {
    return start(context, caller, request, response, to, std::move(done));
  });
}

// Reads a message, runs its step, writes the reply, and so on until the client is done.
template <typename Request, typename Response>
class StepStreamReactor : public grpc::ServerBidiReactor<Request, Response> {
 public:
  StepStreamReactor(const ServiceContext& context, grpc::CallbackServerContext* call, std::string_view method)
      : context_(context), caller_(CallerOf(*call)), method_(method) {}

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    response_.Clear();
    trace_ = context_.tracer.Begin(method_);
    const int64_t turn = ++turn_;
    if (auto call = Step([this](const absl::Status& status) { Reply(status); }); call != nullptr)
      gate_.Set(turn, std::move(call));
  }
  void OnWriteDone(bool ok) override {
    context_.tracer.End(std::move(trace_));
    if (!ok) return this->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
    this->StartRead(&request_);
  }
  void OnCancel() override { gate_.Cancel(); }
  void OnDone() override { delete this; }

 protected:
  // Starts the step of request_, which fills response_; nullptr where `done` was called at once.
  virtual std::shared_ptr<StepCall> Step(StepCall::Done done) = 0;
  // Called before the reply is written.
  virtual void Ended(const absl::Status& /*status*/) {}

  void Start() { this->StartRead(&request_); }

  const ServiceContext& context_;
  const Caller caller_;
  Request request_;
  Response response_;
  std::unique_ptr<CallTrace> trace_;  // of the message

 private:
  void Reply(const absl::Status& status) {
    Ended(status);
    NoteReply(trace_.get(), status, response_);
    if (!status.ok()) {
      response_.clear_result();
      *response_.mutable_status() = ToRpcStatus(status);
    }
    this->StartWrite(&response_);
  }

  const std::string_view method_;
  int64_t turn_ = 0;  // messages read
  CancelGate gate_;
};

class StreamPrefillReactor final : public StepStreamReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse> {
 public:
  StreamPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call)
      : StepStreamReactor(context, call, "StreamPrefill") {
    Start();
  }

 protected:
  std::shared_ptr<StepCall> Step(StepCall::Done done) override {
    const v1::PrefillRequest& segment = request_.segment();
    NoteRequest(trace_.get(), caller_, segment);
    if (failed_.count(Key()) != 0 && !segment.has_expected_token_count()) {
      done(PreviousSegmentFailed(segment));
      return nullptr;
    }
    return StartPrefill(context_, caller_, segment, response_.mutable_result(), trace_.get(), std::move(done));
  }
  void Ended(const absl::Status& status) override {
    if (status.ok()) {
      failed_.erase(Key());
    } else {
      failed_.insert(Key());
    }
  }

 private:
  absl::Status PreviousSegmentFailed(const v1::PrefillRequest& segment) const {
    absl::Status status = MakeError(
        absl::StatusCode::kAborted, reason::kPreviousSegmentFailed,
        StrCat("an earlier segment of ", segment.session(), " layer ", segment.layer(),
               " failed in this stream; applying this one would leave a gap. Send expected_token_count to go on"),
        {{"session", segment.session()}, {"layer", StrCat(segment.layer())}});
    const auto session = FindSession(context_, caller_, segment.session());
    if (!session.ok()) return status;
    for (const LayerInfo& info : (*session)->Layers()) {
      if (info.layer != segment.layer()) continue;
      status = WithMetadata(std::move(status), "token_count", StrCat(info.progress.token_count));
    }
    return status;
  }
  std::pair<std::string, int32_t> Key() const { return {request_.segment().session(), request_.segment().layer()}; }

  std::set<std::pair<std::string, int32_t>> failed_;  // (session, layer)s whose last segment failed
};

class StreamDecodeReactor final : public StepStreamReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse> {
 public:
  StreamDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call)
      : StepStreamReactor(context, call, "StreamDecode") {
    Start();
  }

 protected:
  std::shared_ptr<StepCall> Step(StepCall::Done done) override {
    NoteRequest(trace_.get(), caller_, request_.step());
    return StartDecode(context_, caller_, request_.step(), response_.mutable_result(), trace_.get(), std::move(done));
  }
};

}  // namespace

grpc::ServerUnaryReactor* NewPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                            const v1::PrefillRequest* request, v1::PrefillResponse* response) {
  return NewUnaryReactor("Prefill", context, *call, *request, response, StartPrefill);
}

grpc::ServerUnaryReactor* NewDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                           const v1::DecodeRequest* request, v1::DecodeResponse* response) {
  return NewUnaryReactor("Decode", context, *call, *request, response, StartDecode);
}

grpc::ServerBidiReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse>* NewStreamPrefillReactor(
    const ServiceContext& context, grpc::CallbackServerContext* call) {
  return new StreamPrefillReactor(context, call);
}

grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>* NewStreamDecodeReactor(
    const ServiceContext& context, grpc::CallbackServerContext* call) {
  return new StreamDecodeReactor(context, call);
}

}  // namespace gdn
