// The rows of one Prefill or Decode call, on their way from sessions to the engines and back.
//
// Thread safety: belongs to the call's flow; engines and joined calls write their own rows until `open` has none of
// them. Ownership: lies in the frame of RunStep, which waits for `open` before it ends. Tokens that were taken from a
// quota and not used are given back on destruction.
//
//   StepRows rows(context, message, data, trace);
//   GDN_CO_RETURN_IF_ERROR(rows.Find(caller));
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/task/arrivals.h"
#include "server/batcher/step_job.h"
#include "server/rpc/call_rows.h"
#include "server/rpc/shared_tensors.h"
#include "server/rpc/step_call.h"

namespace gdn {

class StepRows final : public CallRows {
 public:
  StepRows(const ServiceContext& context, const StepMessage& message, StepData data, CallTrace* trace);
  ~StepRows();

  // --- The stages of RunStep, in their order, as CallRows has them. Looks up the rows' sessions.
  absl::Status Find(const Caller& caller);
  // True if no row has a session: each has its own error, and nothing is left to do.
  bool none_found() const { return spec_ == nullptr; }
  // Shapes and values of the inputs, of which those in shared memory are copied first.
  absl::Status CheckInput(const Caller& caller);
  // From the caller's quota, for the rows that are good.
  absl::Status TakeTokens(const Caller& caller);
  // Memory for the reply's tensor.
  absl::Status TakeOutput();
  // Each pinned row gets a stored reply, joins a call in flight, gets an error, or goes into the job of its device.
  absl::Status Admit();
  // All jobs, or none. `open` has them until they end.
  absl::Status Submit();
  // After an error of Admit or Submit: gives back the leases of rows that will not step.
  void DropJobs() { devices_.clear(); }
  // Drops what has not begun. `open` still ends.
  void CancelJobs();
  // Takes the results. The call's error, if it has one.
  absl::Status Finish();

  // --- For StepMessage::Answer.
  // After the step; if the row failed, what its layer has seen all the same, or 0 if it has no session.
  int64_t TokenCount(const CallRow& row) const;
  int64_t DurableTokenCount(const CallRow& row) const;
  int64_t compute_time_us() const { return compute_time_us_.load(); }
  // Writes zeros for failed rows, and hands the output to shared memory if the request asked for that.
  void FinishOutput(v1::Tensor& output);
  const CheckedInput& input() const { return input_; }
  // Jobs, and rows that wait for other calls' steps.
  Arrivals open;

 private:
  // The rows whose states are on one device.
  struct DeviceRows {
    int32_t device = 0;
    StepJobPtr job;
    std::vector<size_t> rows;  // rows_ index of each of the job's rows
  };

  absl::Status CheckSameSpec() const;
  absl::Status AdmitRow(size_t index);
  DeviceRows& RowsOn(int32_t device);
  StepJobPtr MakeJob(int32_t device) const;
  // Copies a stored reply into the row's part of the output. ABORTED (REPLY_DROPPED) if it is not as long as the row's
  // own: then it came with an imported state or from a tier, and is not this call's.
  absl::Status CopyReply(size_t index, const StoredReply& reply);
  // Rows on a failed device beside others that work get its error: each its own if it may have one, else the call.
  absl::Status RefuseFailedDevices();
  void NoteComputeTime(int64_t us);

  const StepMessage& message_;
  const StepData data_;
  CallTrace* const trace_;  // null if the call is not traced
  const std::thread::id starter_ = std::this_thread::get_id();

  const SessionSpec* spec_ = nullptr;  // of the first row that was found
  CheckedInput input_;
  SharedTensors shared_;
  SteadyTime deadline_;
  std::vector<DeviceRows> devices_;
  std::vector<JoinedCall>
      joined_;                // parallel to rows_; `ended` is null for rows that have joined no call; may be empty
  ByteAccountPtr metered_;    // whose tokens were taken; null: nobody's
  int64_t taken_tokens_ = 0;  // of it, less those that the step has used
  char* output_ = nullptr;
  size_t row_stride_ = 0;  // bytes of a row in the reply, padding included
  std::atomic<int64_t> compute_time_us_{0};
};

}  // namespace gdn
