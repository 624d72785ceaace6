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
#include "server/rpc/call_charge.h"
#include "server/rpc/calls.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/step_call.h"
#include "server/rpc/step_wire.h"
#include "server/validation/names.h"

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
void NoteRequest(CallTrace* trace, const Caller& caller, const Request& request, const ReceivedTensors& received) {
  if (trace == nullptr) return;
  trace->principal = caller.principal;
  trace->context = caller.trace;
  trace->layer = request.layer();
  trace->request_bytes = received.message_bytes;
  trace->admit = TraceNow();
}

void NoteReply(CallTrace* trace, const absl::Status& status, size_t bytes) {
  if (trace == nullptr) return;
  trace->answered = TraceNow();
  trace->answerer = ThisThreadLabel();
  trace->status = status;
  if (status.ok()) trace->response_bytes = static_cast<int64_t>(bytes);
}

// Reads the request, runs its step and finishes with the reply. gRPC keeps a Finish that comes before the reactor is
// returned to it, and calls OnDone after every other reaction has returned.
template <typename Request, typename Response>
class UnaryStepReactor : public grpc::ServerUnaryReactor {
 public:
  using StartFn = std::shared_ptr<StepCall>(const ServiceContext&, const Caller&, const Request&, Response*, StepData,
                                            CallTrace*, StepCall::Done);

  UnaryStepReactor(const ServiceContext& context, grpc::CallbackServerContext& call, RpcMethod method,
                   grpc::ByteBuffer& request, grpc::ByteBuffer* response, StartFn* start)
      : context_(context),
        meter_(context.stats, method),
        trace_(context.tracer.Begin(kRpcMethodNames[static_cast<size_t>(method)])),
        reply_wire_(response) {
    const Caller caller = CallerOf(call, context);
    auto charge = ChargeCall(context, caller, request.Length());
    if (!charge.ok()) {
      request.Clear();
      Reply(charge.status());
      return;
    }
    charge_ = *std::move(charge);
    auto received = ReadStepRequest(
        request, context.limits.max_message_bytes, context.call_memory,
        [this](int64_t bytes) { return charge_.TryGrow(bytes); }, request_);
    if (!received.ok()) {
      Reply(received.status());
      return;
    }
    received_ = *std::move(received);
    NoteRequest(trace_.get(), caller, request_, received_);
    const StepData data{.in = received_, .out = output_, .charge = charge_};
    gate_.Set(/*turn=*/0, start(context, caller, request_, &response_, data, trace_.get(),
                                [this](const absl::Status& status) { Reply(status); }));
  }

  void OnCancel() override { gate_.Cancel(); }
  void OnDone() override {
    context_.tracer.End(std::move(trace_));
    delete this;
  }
  // Both take no time and no lock of gRPC's: no need to hand each call's end to another thread.
  bool InternalInlineable() override { return true; }

 private:
  void Reply(const absl::Status& status) {
    if (!RefusalPauses::Pauses(status)) return Send(status);
    received_ = {};
    charge_.Release();
    context_.refusals.After(refused_, [this, status] { Send(status); });
  }
  void Send(const absl::Status& status) {
    if (status.ok()) *reply_wire_ = WriteStepReply(response_, std::move(output_));
    NoteReply(trace_.get(), status, reply_wire_->Length());
    meter_.End(status);
    Finish(ToGrpcStatus(status));
  }

  const ServiceContext& context_;
  const RpcMeter meter_;
  std::unique_ptr<CallTrace> trace_;
  grpc::ByteBuffer* const reply_wire_;
  ByteCharge charge_;  // until the reply is with the transport
  Request request_;
  ReceivedTensors received_;
  Response response_;
  ReplyOutput output_;
  RefusalPauses::Answer refused_;
  CancelGate gate_;
};

// Reads a message, runs its step, writes the reply, and so on until the client is done.
template <typename Request, typename Response>
class StepStreamReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StepStreamReactor(const ServiceContext& context, grpc::CallbackServerContext* call, RpcMethod method)
      : context_(context),
        call_(*call),
        caller_(CallerOf(*call, context)),
        method_(method),
        meter_(context.stats, method) {}

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    meter_ = RpcMeter(context_.stats, method_);
    if (const absl::Status allowed = StillAllowed(call_, context_, caller_); !allowed.ok()) return Refuse(allowed);
    trace_ = context_.tracer.Begin(kRpcMethodNames[static_cast<size_t>(method_)]);
    auto charge = ChargeCall(context_, caller_, wire_.Length());
    if (std::exchange(is_large_, false)) request_ = Request();  // or it would keep its memory
    auto received = ReadStepRequest(
        wire_, context_.limits.max_message_bytes, context_.call_memory,
        [&](int64_t bytes) {
          is_large_ = true;
          return charge.ok() ? charge->TryGrow(bytes) : charge.status();
        },
        request_);
    if (!received.ok()) {  // nobody knows which session it was for
      meter_.End(received.status());
      return Finish(ToGrpcStatus(received.status()));
    }
    received_ = *std::move(received);
    response_.Clear();
    if (!charge.ok()) return Reply(charge.status());
    charge_ = *std::move(charge);
    const int64_t turn = ++turn_;
    if (auto call = Step([this](const absl::Status& status) { Reply(status); }); call != nullptr)
      gate_.Set(turn, std::move(call));
  }
  void OnWriteDone(bool ok) override {
    context_.tracer.End(std::move(trace_));
    charge_.Release();
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
    if (!end_.ok()) return Finish(ToGrpcStatus(end_));
    StartRead(&wire_);
  }
  void OnCancel() override { gate_.Cancel(); }
  void OnDone() override { delete this; }

 protected:
  // Starts the step of request_, which fills response_ and output_; nullptr where `done` was called at once.
  virtual std::shared_ptr<StepCall> Step(StepCall::Done done) = 0;
  // Called before the reply is written.
  virtual void Ended(const absl::Status& /*status*/) {}

  void Start() { caller_.allowed.ok() ? StartRead(&wire_) : Refuse(caller_.allowed); }
  StepData data() { return {.in = received_, .out = output_, .charge = charge_}; }

  const ServiceContext& context_;
  grpc::CallbackServerContext& call_;
  const Caller caller_;
  Request request_;
  ReceivedTensors received_;
  Response response_;
  ReplyOutput output_;
  ByteCharge charge_;                 // of the message and its reply
  std::unique_ptr<CallTrace> trace_;  // of the message
  absl::Status end_;                  // an error ends the stream, behind the reply that is on its way

 private:
  void Refuse(const absl::Status& status) {
    meter_.End(status);
    Finish(ToGrpcStatus(status));
  }
  void Reply(const absl::Status& status) {
    Ended(status);
    if (!RefusalPauses::Pauses(status)) return Send(status);
    received_ = {};
    charge_.Release();
    wire_.Clear();
    context_.refusals.After(refused_, [this, status] { Send(status); });
  }
  void Send(const absl::Status& status) {
    if (!status.ok()) {
      response_.clear_result();
      *response_.mutable_status() = ToRpcStatus(status);
    }
    wire_ = WriteStepReply(response_, std::exchange(output_, {}));
    received_ = {};
    NoteReply(trace_.get(), status, wire_.Length());
    meter_.End(status);
    StartWrite(&wire_);
  }

  const RpcMethod method_;
  RpcMeter meter_;         // of the message
  grpc::ByteBuffer wire_;  // what is read, then what is written
  int64_t turn_ = 0;       // messages read
  bool is_large_ = false;  // the last of them, beside its tensors' data
  RefusalPauses::Answer refused_;
  CancelGate gate_;
};

class StreamPrefillReactor final : public StepStreamReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse> {
 public:
  StreamPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call)
      : StepStreamReactor(context, call, RpcMethod::kStreamPrefill) {
    Start();
  }

 protected:
  std::shared_ptr<StepCall> Step(StepCall::Done done) override {
    const v1::PrefillRequest& segment = request_.segment();
    NoteRequest(trace_.get(), caller_, segment, received_);
    if (failed_.count(Key()) != 0 && !segment.has_expected_token_count()) {
      done(PreviousSegmentFailed(segment));
      return nullptr;
    }
    return StartPrefill(context_, caller_, segment, response_.mutable_result(), data(), trace_.get(), std::move(done));
  }
  void Ended(const absl::Status& status) override {
    if (status.ok()) {
      failed_.erase(Key());
    } else if (ParseSessionName(request_.segment().session()).ok()) {  // else no session can have a gap
      failed_.insert(Key());
      if (failed_.size() > kMostFailed) end_ = TooManyFailed();
    }
  }

 private:
  static constexpr size_t kMostFailed = 4096;

  static absl::Status TooManyFailed() {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kBytesExhausted,
                     StrCat("segments of more than ", kMostFailed,
                            " layers of sessions have failed in this stream, and it remembers no more of them; begin "
                            "another, and look why they fail"),
                     {{"pool", "stream"}, {"limit", StrCat(kMostFailed)}});
  }
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
      : StepStreamReactor(context, call, RpcMethod::kStreamDecode) {
    Start();
  }

 protected:
  std::shared_ptr<StepCall> Step(StepCall::Done done) override {
    NoteRequest(trace_.get(), caller_, request_.step(), received_);
    return StartDecode(context_, caller_, request_.step(), response_.mutable_result(), data(), trace_.get(),
                       std::move(done));
  }
};

}  // namespace

grpc::ServerUnaryReactor* NewPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                            grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
  return new UnaryStepReactor<v1::PrefillRequest, v1::PrefillResponse>(context, *call, RpcMethod::kPrefill, request,
                                                                       response, StartPrefill);
}

grpc::ServerUnaryReactor* NewDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                           grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
  return new UnaryStepReactor<v1::DecodeRequest, v1::DecodeResponse>(context, *call, RpcMethod::kDecode, request,
                                                                     response, StartDecode);
}

ByteStreamReactor* NewStreamPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call) {
  return new StreamPrefillReactor(context, call);
}

ByteStreamReactor* NewStreamDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call) {
  return new StreamDecodeReactor(context, call);
}

}  // namespace gdn
