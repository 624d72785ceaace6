// The reactors of Prefill, Decode, Step and their streams.
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/owned_flow.h"
#include "base/threads/this_thread.h"
#include "server/rpc/callers/call_charge.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/steps/step_call.h"
#include "server/rpc/steps/step_flow.h"
#include "server/rpc/steps/step_wire.h"
#include "server/rpc/transport/rpc_status.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

// Reads the request, runs its step and finishes with the reply. gRPC queues a Finish that comes before the reactor is
// returned to it, and calls OnDone after all other reactions have returned.
template <typename Request, typename Response, typename Message>
class UnaryStepReactor final : public grpc::ServerUnaryReactor, private StepFlow<Request, Response, Message> {
 public:
  UnaryStepReactor(const StepParts& parts, grpc::CallbackServerContext& call, RpcMethod method,
                   grpc::ByteBuffer& request, grpc::ByteBuffer* response)
      : StepFlow<Request, Response, Message>(parts, method), reply_wire_(response) {
    absl::Status charged = this->Charge(CallerOf(call, parts.common.access, this->gone_), request.Length());
    if (!charged.ok()) {
      request.Clear();
      this->Refuse(std::move(charged));
      return;
    }
    this->Begin(ReadStepRequest(
        request, parts.limits.max_message_bytes, parts.call_memory,
        [this](int64_t bytes) { return this->charge_.TryGrow(bytes); }, this->request_));
  }

  void OnCancel() override { this->gone_.Cancel(); }
  void OnDone() override {
    this->parts_.common.tracer.End(std::move(this->trace_));
    delete this;
  }
  // OnCancel and OnDone are short and take no lock of gRPC's, so gRPC may call them inline instead of on another
  // thread.
  bool InternalInlineable() override { return true; }

 private:
  void Reply(absl::Status status) override {
    if (status.ok()) *reply_wire_ = WriteStepReply(this->response_, std::move(this->output_));
    this->Note(status, reply_wire_->Length());
    this->Finish(ToGrpcStatus(status));
  }

  grpc::ByteBuffer* const reply_wire_;
};

// Reads a message, runs its step, writes the reply, and so on until the client is done.
template <typename Request, typename Response>
class StepStreamReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                          private OwnedFlow<absl::Status> {
 public:
  StepStreamReactor(const StepParts& parts, grpc::CallbackServerContext* call, RpcMethod method)
      : OwnedFlow(parts.common.calls),
        parts_(parts),
        call_(*call),
        caller_(CallerOf(*call, parts.common.access, gone_)),
        method_(method),
        meter_(parts.common.stats, method) {}

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    meter_ = RpcMeter(parts_.common.stats, method_);
    if (const absl::Status allowed = StillAllowed(call_, parts_.common.access, caller_); !allowed.ok())
      return Refuse(allowed);
    trace_ = parts_.common.tracer.Begin(kRpcMethodNames[static_cast<size_t>(method_)]);
    auto charge = ChargeCall(parts_.common.access.ledger, caller_, wire_.Length());
    if (std::exchange(is_large_, false)) request_ = Request();  // a reused message would keep its memory
    auto received = ReadStepRequest(
        wire_, parts_.limits.max_message_bytes, parts_.call_memory,
        [&](int64_t bytes) {
          is_large_ = true;
          return charge.ok() ? charge->TryGrow(bytes) : charge.status();
        },
        request_);
    if (!received.ok()) {  // the session is unknown, so the stream ends
      meter_.End(received.status());
      return Finish(ToGrpcStatus(received.status()));
    }
    received_ = *std::move(received);
    response_.Clear();
    if (!charge.ok()) return Ended(charge.status());
    charge_ = *std::move(charge);
    Start(Step());
  }
  void OnWriteDone(bool ok) override {
    parts_.common.tracer.End(std::move(trace_));
    charge_.Release();
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
    if (!end_.ok()) return Finish(ToGrpcStatus(end_));
    StartRead(&wire_);
  }
  void OnCancel() override { gone_.Cancel(); }
  void OnDone() override { delete this; }

 protected:
  // Runs the step of request_, which fills response_ and output_.
  virtual Task<absl::Status> Step() = 0;
  // Called before the reply is written.
  virtual void NoteEnd(const absl::Status& /*status*/) {}

  void Begin() { caller_.allowed.ok() ? StartRead(&wire_) : Refuse(caller_.allowed); }
  StepData data() { return {.in = received_, .out = output_, .charge = charge_}; }

  const StepParts& parts_;
  grpc::CallbackServerContext& call_;
  CancelSource gone_;  // the client
  const Caller caller_;
  Request request_;
  ReceivedTensors received_;
  Response response_;
  ReplyOutput output_;
  ByteCharge charge_;                 // for the message and its reply
  std::unique_ptr<CallTrace> trace_;  // for the message
  absl::Status end_;                  // an error that ends the stream after the present reply

 private:
  void Refuse(const absl::Status& status) {
    meter_.End(status);
    Finish(ToGrpcStatus(status));
  }
  void Ended(absl::Status status) override {
    if (RefusalPauses::Pauses(status) && !std::exchange(paused_, true)) {
      received_ = {};
      charge_.Release();
      wire_.Clear();
      return Start(parts_.common.refusals.Answer(std::move(status), gone_.Never()));
    }
    paused_ = false;
    NoteEnd(status);
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
  RpcMeter meter_;         // for the message
  grpc::ByteBuffer wire_;  // the message read, then the reply written
  bool is_large_ = false;  // the last message was large without its tensors' data
  bool paused_ = false;    // the present refusal was delayed already
};

class StreamPrefillReactor final : public StepStreamReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse> {
 public:
  StreamPrefillReactor(const StepParts& parts, grpc::CallbackServerContext* call)
      : StepStreamReactor(parts, call, RpcMethod::kStreamPrefill) {
    Begin();
  }

 protected:
  Task<absl::Status> Step() override {
    const v1::PrefillRequest& segment = request_.segment();
    NoteRequest(trace_.get(), caller_, segment, received_);
    if (failed_.count(Key()) != 0 && !segment.has_expected_token_count()) co_return PreviousSegmentFailed(segment);
    const PrefillMessage message(segment, *response_.mutable_result());
    Task<absl::Status> step = RunStep(parts_, caller_, message, data(), trace_.get());
    co_return co_await std::move(step);
  }
  void NoteEnd(const absl::Status& status) override {
    if (status.ok()) {
      failed_.erase(Key());
    } else if (ParseSessionName(request_.segment().session()).ok()) {
      // Not for an invalid name, because it has no session that could have a gap.
      failed_.insert(Key());
      if (failed_.size() > kMostFailed) end_ = TooManyFailed();
    }
  }

 private:
  static constexpr size_t kMostFailed = 4096;

  static absl::Status TooManyFailed() {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kBytesExhausted,
                     StrCat("segments of more than ", kMostFailed,
                            " session layers have failed in this stream, which is the most that one stream records; "
                            "find out why they fail, then open a new stream"),
                     {{"pool", "stream"}, {"limit", StrCat(kMostFailed)}});
  }
  absl::Status PreviousSegmentFailed(const v1::PrefillRequest& segment) const {
    absl::Status status = MakeError(
        absl::StatusCode::kAborted, reason::kPreviousSegmentFailed,
        StrCat("an earlier segment of ", segment.session(), " layer ", segment.layer(),
               " failed in this stream; applying this one would leave a gap. Send expected_token_count to go on"),
        {{"session", segment.session()}, {"layer", StrCat(segment.layer())}});
    const auto session = FindSession(parts_.common.lookup, caller_, segment.session());
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

// The stream of Decode or Step.
template <typename Request, typename Response, typename Message>
class PlainStreamReactor final : public StepStreamReactor<Request, Response> {
 public:
  PlainStreamReactor(const StepParts& parts, grpc::CallbackServerContext* call, RpcMethod method)
      : StepStreamReactor<Request, Response>(parts, call, method) {
    this->Begin();
  }

 protected:
  Task<absl::Status> Step() override {
    NoteRequest(this->trace_.get(), this->caller_, this->request_.step(), this->received_);
    const Message message(this->request_.step(), *this->response_.mutable_result());
    Task<absl::Status> step = RunStep(this->parts_, this->caller_, message, this->data(), this->trace_.get());
    co_return co_await std::move(step);
  }
};

}  // namespace

grpc::ServerUnaryReactor* NewPrefillReactor(const StepParts& parts, grpc::CallbackServerContext* call,
                                            grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
  return new UnaryStepReactor<v1::PrefillRequest, v1::PrefillResponse, PrefillMessage>(
      parts, *call, RpcMethod::kPrefill, request, response);
}

grpc::ServerUnaryReactor* NewDecodeReactor(const StepParts& parts, grpc::CallbackServerContext* call,
                                           grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
  return new UnaryStepReactor<v1::DecodeRequest, v1::DecodeResponse, DecodeMessage>(parts, *call, RpcMethod::kDecode,
                                                                                    request, response);
}

grpc::ServerUnaryReactor* NewStepReactor(const StepParts& parts, grpc::CallbackServerContext* call,
                                         grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
  return new UnaryStepReactor<v1::StepRequest, v1::StepResponse, MixedMessage>(parts, *call, RpcMethod::kStep, request,
                                                                               response);
}

ByteStreamReactor* NewStreamPrefillReactor(const StepParts& parts, grpc::CallbackServerContext* call) {
  return new StreamPrefillReactor(parts, call);
}

ByteStreamReactor* NewStreamDecodeReactor(const StepParts& parts, grpc::CallbackServerContext* call) {
  return new PlainStreamReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse, DecodeMessage>(
      parts, call, RpcMethod::kStreamDecode);
}

ByteStreamReactor* NewStreamStepReactor(const StepParts& parts, grpc::CallbackServerContext* call) {
  return new PlainStreamReactor<v1::StreamStepRequest, v1::StreamStepResponse, MixedMessage>(parts, call,
                                                                                             RpcMethod::kStreamStep);
}

}  // namespace gdn
