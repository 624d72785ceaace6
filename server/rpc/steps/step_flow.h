// A Prefill, Decode or Step from its message to its reply, whatever brings the message: a unary call or a ring.
//
// The derived class charges the message, reads it and begins. The flow runs the step, pauses before some refusals, and
// hands the reply over.
// Thread safety: one flow; `gone_` may be cancelled from any thread. Ownership: owns the request and the reply. Reply
// may destroy the object.
//
//   class Call : StepFlow<v1::StepRequest, v1::StepResponse, MixedMessage> {
//     void Reply(absl::Status status) override { Send(status, response_, output_); }
//   };
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/task/owned_flow.h"
#include "base/threads/this_thread.h"
#include "server/rpc/callers/call_charge.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/steps/step_call.h"
#include "server/rpc/steps/step_wire.h"

namespace gdn {

// Stores the request's fields in the call's trace, if there is one.
template <typename Request>
void NoteRequest(CallTrace* trace, const Caller& caller, const Request& request, const ReceivedTensors& received) {
  if (trace == nullptr) return;
  trace->principal = caller.principal;
  trace->context = caller.trace;
  trace->layer = request.layer();
  trace->request_bytes = received.message_bytes;
  trace->admit = TraceNow();
}

inline void NoteReply(CallTrace* trace, const absl::Status& status, size_t bytes) {
  if (trace == nullptr) return;
  trace->answered = TraceNow();
  trace->answerer = ThisThreadLabel();
  trace->status = status;
  if (status.ok()) trace->response_bytes = static_cast<int64_t>(bytes);
}

template <typename Request, typename Response, typename Message>
class StepFlow : protected OwnedFlow<absl::Status> {
 protected:
  StepFlow(const StepParts& parts, RpcMethod method)
      : OwnedFlow(parts.common.calls),
        parts_(parts),
        meter_(parts.common.stats, method),
        trace_(parts.common.tracer.Begin(kRpcMethodNames[static_cast<size_t>(method)])) {}
  ~StepFlow() = default;

  // Charges the caller for a message of so many bytes. Errors of ChargeCall.
  absl::Status Charge(Caller caller, size_t message_bytes) {
    caller_ = std::move(caller);
    GDN_ASSIGN_OR_RETURN(charge_, ChargeCall(parts_.common.access.ledger, caller_, message_bytes));
    return absl::OkStatus();
  }
  // Runs the step of request_, whose tensors are `received`, or ends with the error of reading it. Reply may come
  // before this returns.
  void Begin(absl::StatusOr<ReceivedTensors> received) {
    if (!received.ok()) return Refuse(received.status());
    received_ = *std::move(received);
    NoteRequest(trace_.get(), caller_, request_, received_);
    Start(RunStep(parts_, std::move(caller_), message_,
                  {.in = received_, .out = output_, .charge = charge_, .may_run_here = may_run_here_}, trace_.get()));
  }
  // Ends the step with an error.
  void Refuse(absl::Status status) { Ended(std::move(status)); }
  // Counts the step's end and notes it in its trace. Call it before the reply is handed over.
  void Note(const absl::Status& status, size_t reply_bytes) {
    NoteReply(trace_.get(), status, reply_bytes);
    meter_.End(status);
  }

  // Hands over the reply, which is response_ and output_ if the status is OK. Called once.
  virtual void Reply(absl::Status status) = 0;

  const StepParts& parts_;
  CancelSource gone_;         // the client
  bool may_run_here_ = true;  // the step may be computed on the thread that begins it

 private:
  void Ended(absl::Status status) override {
    if (RefusalPauses::Pauses(status) && !std::exchange(paused_, true)) {
      received_ = {};
      charge_.Release();
      return Start(parts_.common.refusals.Answer(std::move(status), gone_.Never()));
    }
    Reply(std::move(status));
  }

  Caller caller_;  // moved into the step when it begins
  const RpcMeter meter_;
  ReceivedTensors received_;
  bool paused_ = false;

 protected:
  std::unique_ptr<CallTrace> trace_;
  ByteCharge charge_;  // held until the reply is handed over
  Request request_;
  Response response_;
  ReplyOutput output_;

 private:
  const Message message_{request_, response_};
};

}  // namespace gdn
