// The rows of one Prefill, Decode or Step call, from finding their sessions to their results.
//
// Thread safety: belongs to the call's flow. Engines, and the calls that this call's rows have joined, write results
// until no operation of `open` is left. Ownership: lives in the frame of RunStep, which waits for `open` before it
// ends. The destructor gives back tokens that were taken from a quota and not used.
//
//   StepRows rows(parts, message, data, trace);
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
#include "server/rpc/steps/call_rows.h"
#include "server/rpc/steps/shared_tensors.h"
#include "server/rpc/steps/step_call.h"

namespace gdn {

class StepRows final : public CallRows {
 public:
  StepRows(const StepParts& parts, const StepMessage& message, StepData data, CallTrace* trace);
  ~StepRows();

  // --- The stages of RunStep, in their order; errors as in CallRows.
  // Reads the rows from the message, and looks up their sessions as CallRows::Find.
  absl::Status Find(const Caller& caller);
  // True if no row has a session. Each row then has its own error, and there is nothing to run.
  bool none_found() const { return spec_ == nullptr; }
  // Checks that the sessions have one spec, and the shapes and values of the inputs. Inputs in shared memory are copied
  // first. INVALID_ARGUMENT (MIXED_SESSIONS), errors of StepMessage::CheckInput and SharedTensors::Load; those of
  // CheckRowValues are a row's.
  absl::Status CheckInput(const Caller& caller);
  // Takes the tokens of the good rows from the caller's quota, if it has a token rate. RESOURCE_EXHAUSTED
  // (QUOTA_EXCEEDED).
  absl::Status TakeTokens(const Caller& caller);
  // Sets the reply tensor's dtype and shape, and charges and allocates memory for its data. Errors of
  // ByteCharge::TryGrow and HostBlockPool::TakeForCall.
  absl::Status TakeOutput();
  // Admits each pinned row (Session::Admit): it gets a stored reply, joins a call in flight, gets an error, or is added
  // to its device's job.
  absl::Status Admit();
  // Submits all jobs, or none. Each counts in `open` until it ends. Errors of Engines::Submit.
  absl::Status Submit();
  // After an error of Admit or Submit: gives back the leases of rows that will not step.
  void DropJobs() { jobs_.clear(); }
  // Cancels jobs that have not begun. They still end in `open`.
  void CancelJobs();
  // Takes the results of the rows. Call once `open` has no operation left. Returns the call's error as
  // CallRows::Outcome.
  absl::Status Finish();

  // --- For StepMessage::Answer.
  // Returns the token count of the row's layer after the step. If the row failed: the layer's present count, or 0 if
  // the row has no session or the session no such layer.
  int64_t TokenCount(const CallRow& row) const;
  int64_t DurableTokenCount(const CallRow& row) const;
  int64_t compute_time_us() const { return compute_time_us_.load(); }
  // Returns SnapshotBook::MarkOf the caller's principal, for the reply. Takes no mutex if any row has a session.
  int64_t SnapshotLossMark() const;
  // Writes zeros for failed rows, and copies the output to shared memory if the request asked for that. If that fails,
  // the output stays in the reply.
  void FinishOutput(v1::Tensor& output);
  const CheckedInput& input() const { return input_; }
  // Operations under way: submitted jobs, and rows that wait for the step of another call.
  Arrivals open;

 private:
  // The rows that one job computes: those of a kind whose states are on one device, or one prefill.
  struct JobRows {
    int32_t device = 0;
    RowKind kind = RowKind::kDecode;
    StepJobPtr job;
    std::vector<size_t> rows;  // indices in rows_, parallel to the job's rows
  };

  absl::Status CheckSameSpec() const;
  absl::Status AdmitRow(size_t index);
  JobRows& RowsFor(int32_t device, RowKind kind);
  StepJobPtr MakeJob(int32_t device, RowKind kind) const;
  // Copies a stored reply into the row's part of the output. ABORTED (REPLY_DROPPED) if its output was dropped, or has
  // another size than the row's. A reply of another size came with an imported or parked state and belongs to another
  // call.
  absl::Status CopyReply(size_t index, const StoredReply& reply);
  // With several devices: refuses the rows on failed devices with the device's error. With partial_ok that is the row's
  // own error, else the call's.
  absl::Status RefuseFailedDevices();
  void NoteComputeTime(int64_t us);
  // Returns the row's bytes in the output, without padding; empty if there is no output.
  absl::Span<char> OutputOf(size_t index) const;
  // True if the row's output is kept for a retry: the call has a request id, and the output has at most
  // StepLimits::max_stored_reply_bytes bytes.
  bool KeepsOutput(const CheckedRow& row) const;

  const StepMessage& message_;
  const StepData data_;
  CallTrace* const trace_;  // null if the call is not traced
  const std::thread::id starter_ = std::this_thread::get_id();

  const SessionSpec* spec_ = nullptr;  // spec of the first row with a session
  CheckedInput input_;
  SharedTensors shared_;
  SteadyTime deadline_;
  std::string_view principal_;  // in the call's Caller, which outlives this object
  std::vector<JobRows> jobs_;
  std::vector<JoinedCall>
      joined_;                // parallel to rows_; `ended` is null for rows that have joined no call; may be empty
  ByteAccountPtr metered_;    // account that the tokens were taken from; null: none were taken
  int64_t taken_tokens_ = 0;  // tokens taken from metered_, without those that the step has used
  char* output_ = nullptr;
  std::atomic<int64_t> compute_time_us_{0};
};

}  // namespace gdn
