// Prefill, Decode and Step: one call, from its message to its reply.
//
// RunStep names every stage in order. It checks the form of the request, brings sessions from other servers of the
// fleet, finds the sessions, and checks the values. Then it pins the sessions, which brings back states from lower
// tiers, admits every row, and only then gives jobs to the engines. Without partial_ok one bad row refuses the whole
// call. Rows whose states are on several devices become one job for each device. Either all jobs are accepted or none
// is; after that the jobs of different devices end independently.
// Thread safety: a step is one flow (base/task/executor.h). Ownership: the caller owns the message, the data and the
// trace, which must live until the task has ended.
//
//   DecodeMessage message(request, response);
//   const absl::Status status = co_await RunStep(parts, caller, message, data, nullptr);
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/task/task.h"
#include "gdn/v1/step.pb.h"
#include "server/admission/byte_ledger.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/steps/call_rows.h"
#include "server/rpc/steps/step_wire.h"
#include "server/validation/step_input.h"

namespace gdn {

// Tensor data of a call, which its messages do not contain: the request's inputs and the reply's output.
struct StepData {
  const ReceivedTensors& in;
  ReplyOutput& out;
  ByteCharge& charge;        // charge for the request; grows by the other memory that the call needs
  bool may_run_here = true;  // a short step may be computed on the thread that begins the call
};

// The rows of a step call, its checked input and its output (step_rows.h).
class StepRows;

// A Prefill, Decode or Step request and its reply.
class StepMessage {
 public:
  virtual ~StepMessage() = default;

  // Checks that need no session: the message's size, that an input is set, and the number of sessions.
  // RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE), INVALID_ARGUMENT (INPUT_MISSING, BATCH_TOO_LARGE).
  virtual absl::Status CheckForm(const ReceivedTensors& in, const StepLimits& limits) const = 0;
  virtual std::vector<WantedSession> Wanted(const SessionLookup& lookup, const Caller& caller) const = 0;
  // Returns one row for each session in the request, in its order, with the fields that the request gives for it. Names
  // are borrowed from the request.
  virtual std::vector<CallRow> Rows() const = 0;
  // Checks the request's tensors for sessions of `spec`, and returns views of them. Errors as of CheckStepInput
  // (step_input.h).
  virtual absl::StatusOr<CheckedInput> CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                                  const StepLimits& limits) const = 0;
  // Returns the reply's tensor for the caller to fill in; it belongs to the reply.
  virtual v1::Tensor& output() const = 0;
  // Fills in the rest of the reply: token counts, output, errors of rows. Call once StepRows::Finish has returned OK.
  virtual void Answer(StepRows& rows) const = 0;

  // True if errors of rows contain the row's number.
  virtual bool numbered() const = 0;
  virtual bool partial_ok() const = 0;
};

// The request and the response must outlive the message.
class PrefillMessage final : public StepMessage {
 public:
  PrefillMessage(const v1::PrefillRequest& request, v1::PrefillResponse& response)
      : request_(request), response_(response) {}

  absl::Status CheckForm(const ReceivedTensors& in, const StepLimits& limits) const override;
  std::vector<WantedSession> Wanted(const SessionLookup& lookup, const Caller& caller) const override;
  std::vector<CallRow> Rows() const override;
  absl::StatusOr<CheckedInput> CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                          const StepLimits& limits) const override;
  v1::Tensor& output() const override { return *response_.mutable_output(); }
  void Answer(StepRows& rows) const override;
  bool numbered() const override { return false; }
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
  std::vector<WantedSession> Wanted(const SessionLookup& lookup, const Caller& caller) const override;
  std::vector<CallRow> Rows() const override;
  absl::StatusOr<CheckedInput> CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                          const StepLimits& limits) const override;
  v1::Tensor& output() const override { return *response_.mutable_output(); }
  void Answer(StepRows& rows) const override;
  bool numbered() const override { return true; }
  bool partial_ok() const override { return request_.partial_ok(); }

 private:
  const v1::DecodeRequest& request_;
  v1::DecodeResponse& response_;
};

// The message of Step, whose rows are of several kinds. The request and the response must outlive it.
class MixedMessage final : public StepMessage {
 public:
  MixedMessage(const v1::StepRequest& request, v1::StepResponse& response) : request_(request), response_(response) {}

  absl::Status CheckForm(const ReceivedTensors& in, const StepLimits& limits) const override;
  std::vector<WantedSession> Wanted(const SessionLookup& lookup, const Caller& caller) const override;
  std::vector<CallRow> Rows() const override;
  absl::StatusOr<CheckedInput> CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                          const StepLimits& limits) const override;
  v1::Tensor& output() const override { return *response_.mutable_output(); }
  void Answer(StepRows& rows) const override;
  bool numbered() const override { return true; }
  bool partial_ok() const override { return request_.partial_ok(); }

 private:
  const v1::StepRequest& request_;
  v1::StepResponse& response_;
};

// Runs one step, and fills in the reply if the result is OK. With partial_ok the result is OK even if rows failed;
// their errors are then in the reply. A step that has not begun is dropped if the client goes. `trace`: null if the
// call is not traced.
Task<absl::Status> RunStep(const StepParts& parts, Caller caller, const StepMessage& message, StepData data,
                           CallTrace* trace);

}  // namespace gdn
