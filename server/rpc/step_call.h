// Prefill and Decode: one call, from its message to its reply.
//
// RunStep names every stage in the order in which they happen. Everything about the request's form is checked first,
// then the rows' values; then the sessions are pinned, which brings back those whose states are in a lower tier; then
// every row is admitted, and only then does anything go to the engines. Without partial_ok one bad row refuses all of
// them. Rows whose states are on several devices go to several engines, all of them or none; after that each device's
// rows end by themselves.
// Thread safety: a step is one flow (base/task/executor.h). Ownership: the message, the data
// and the trace are the caller's, and must live until the task has ended.
//
//   DecodeMessage message(request, response);
//   const absl::Status status = co_await RunStep(context, caller, message, data, nullptr);
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/task/task.h"
#include "gdn/v1/step.pb.h"
#include "server/admission/byte_ledger.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/call_rows.h"
#include "server/rpc/caller.h"
#include "server/rpc/service_context.h"
#include "server/rpc/step_wire.h"
#include "server/validation/step_input.h"

namespace gdn {

// The tensors' data of a call: the request's, and the reply's, which its message lacks.
struct StepData {
  const ReceivedTensors& in;
  ReplyOutput& out;
  ByteCharge& charge;  // of the request; grows by what else the call takes
};

// A step call's rows, its checked input, and where its output goes.
class StepRows;

// A request and its reply.
class StepMessage {
 public:
  virtual ~StepMessage() = default;

  // Everything that needs no session.
  virtual absl::Status CheckForm(const ReceivedTensors& in, const StepLimits& limits) const = 0;
  virtual std::vector<WantedSession> Wanted(const ServiceContext& context, const Caller& caller) const = 0;
  // The rows with what the request says of each.
  virtual std::vector<CallRow> Rows() const = 0;
  // The tensors, for sessions of `spec`.
  virtual absl::StatusOr<CheckedInput> CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                                  const StepLimits& limits) const = 0;
  // The reply's tensor.
  virtual v1::Tensor& output() const = 0;
  // Fills the rest of the reply, of rows that have ended.
  virtual void Answer(StepRows& rows) const = 0;

  virtual bool is_prefill() const = 0;
  virtual bool partial_ok() const = 0;
};

// Request and response must outlive it.
class PrefillMessage final : public StepMessage {
 public:
  PrefillMessage(const v1::PrefillRequest& request, v1::PrefillResponse& response)
      : request_(request), response_(response) {}

  absl::Status CheckForm(const ReceivedTensors& in, const StepLimits& limits) const override;
  std::vector<WantedSession> Wanted(const ServiceContext& context, const Caller& caller) const override;
  std::vector<CallRow> Rows() const override;
  absl::StatusOr<CheckedInput> CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                          const StepLimits& limits) const override;
  v1::Tensor& output() const override { return *response_.mutable_output(); }
  void Answer(StepRows& rows) const override;
  bool is_prefill() const override { return true; }
  bool partial_ok() const override { return false; }

 private:
  const v1::PrefillRequest& request_;
  v1::PrefillResponse& response_;
};

class DecodeMessage final : public StepMessage {
 public:
  DecodeMessage(const v1::DecodeRequest& request, v1::DecodeResponse& response)
      : request_(request), response_(response) {}

  absl::Status CheckForm(const ReceivedTensors& in, const StepLimits& limits) const override;
  std::vector<WantedSession> Wanted(const ServiceContext& context, const Caller& caller) const override;
  std::vector<CallRow> Rows() const override;
  absl::StatusOr<CheckedInput> CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                          const StepLimits& limits) const override;
  v1::Tensor& output() const override { return *response_.mutable_output(); }
  void Answer(StepRows& rows) const override;
  bool is_prefill() const override { return false; }
  bool partial_ok() const override { return request_.partial_ok(); }

 private:
  const v1::DecodeRequest& request_;
  v1::DecodeResponse& response_;
};

// Runs one step. One that has not begun when the client goes is dropped.
Task<absl::Status> RunStep(const ServiceContext& context, Caller caller, const StepMessage& message, StepData data,
                           CallTrace* trace);

}  // namespace gdn
