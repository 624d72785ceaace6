// One Prefill or Decode: found sessions, checked input, admitted rows, the job, the reply.
//
// Order: everything about the request's form is checked first, then the rows' values; then the sessions are pinned,
// which brings back those whose states are in a lower tier; then every row is admitted, and only then does anything go
// to the engines. Without partial_ok one bad row refuses all of them. Rows whose states are on several devices go to
// several engines, all of them or none; after that each device's rows end by themselves.
// Thread safety: `done` is called once, maybe from the engine's thread, maybe before the function returns; Cancel from
// any thread.
// Ownership: request, response, data and trace are the caller's and must live until `done` was called.
//
//   auto call = StartDecode(context, caller, request, response, {.in = received, .out = output, .charge = charge},
//                           /*trace=*/nullptr, done);
//   call->Cancel();
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gdn/v1/step.pb.h"
#include "server/admission/byte_ledger.h"
#include "server/batcher/step_job.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/caller.h"
#include "server/rpc/service_context.h"
#include "server/rpc/shared_tensors.h"
#include "server/rpc/step_wire.h"
#include "server/validation/step_input.h"

namespace gdn {

// The tensors' data of a call: the request's, and the reply's, which its message lacks.
struct StepData {
  const ReceivedTensors& in;
  ReplyOutput& out;
  ByteCharge& charge;  // of the request; grows by what else the call takes
};

class StepCall : public std::enable_shared_from_this<StepCall> {
 public:
  using Done = std::function<void(absl::Status)>;

  // Drops the step where it has not begun. `done` still comes.
  void Cancel();

 private:
  friend std::shared_ptr<StepCall> StartPrefill(const ServiceContext&, const Caller&, const v1::PrefillRequest&,
                                                v1::PrefillResponse*, StepData, CallTrace*, Done);
  friend std::shared_ptr<StepCall> StartDecode(const ServiceContext&, const Caller&, const v1::DecodeRequest&,
                                               v1::DecodeResponse*, StepData, CallTrace*, Done);
  struct Row {
    std::string_view name;             // "sessions/ID", the request's
    std::shared_ptr<Session> session;  // nullptr where it was not found
    SessionPin pin;
    absl::Status status;
    int64_t token_count = 0;
    std::optional<int64_t> epoch;
    std::optional<int64_t> expected_token_count;
  };
  using FinishReply = std::function<void(StepCall&)>;

  StepCall(const ServiceContext& context, StepData data, CallTrace* trace, Done done)
      : context_(context), data_(data), trace_(trace), done_(std::move(done)) {}

  // `go_on`, once the sessions are here that other servers have (bring_sessions.h); its error is the call's.
  void WhenHere(const Caller& caller, std::vector<WantedSession> wanted,
                std::function<absl::Status(const Caller&)> go_on);
  void Begun(const absl::Status& status);
  absl::Status FindRows(const Caller& caller);
  const SessionSpec* Spec() const;  // of the first row that was found
  absl::Status CheckSameSpec() const;
  // Copies what the request names in shared memory.
  absl::Status LoadShared(const Caller& caller);
  // Checks values and pins. `output` is where the reply's tensor goes.
  absl::Status Run(const Caller& caller, v1::Tensor* output);
  // Of the caller's quota, for the rows that are good; those of rows that fail then are given back.
  absl::Status TakeTokens(const Caller& caller);
  void GiveTokensBack();
  // Room for the reply's tensor, zero where no step writes.
  absl::Status MakeRoom(v1::Tensor* output);
  // Pins once no row, from the first-th of pinned_rows_ on, would take its session too far from its last checkpoint.
  void Pin(size_t first);
  void Pinned(Residency::PinResults pins);
  // step_parts.cc: admits and submits.
  struct Part {
    int32_t device = 0;
    StepJobPtr job;
    std::vector<size_t> rows;  // rows_ index of each of the job's rows
  };
  absl::Status Proceed();
  absl::Status AdmitRow(size_t index, std::vector<Part>& parts);
  StepJobPtr MakeJob(int32_t device) const;
  Part& PartOn(int32_t device, std::vector<Part>& parts) const;
  // Of rows on a device that has failed beside others that work: their error where they may have one each, else the
  // call's.
  absl::Status RefuseFailedDevices(std::vector<Part>& parts);
  absl::Status Submit(const std::vector<Part>& parts);
  void PartDone(size_t index);
  void NoteComputeTime(int64_t us);
  // Rows whose session may be another server's by now count as not done, whatever their step did here.
  void CheckStillOurs();
  absl::Status FirstError() const;
  // `status` with the row's session named.
  absl::Status RowError(size_t index, const absl::Status& status) const;
  // After the step; where the row failed, what its layer has seen all the same, or 0 where it has no session.
  int64_t TokenCount(const Row& row) const;
  int64_t DurableTokenCount(const Row& row) const;
  // Into the row's part of the output. ABORTED (REPLY_DROPPED) where it is not as long as the row's own: then it came
  // with an imported state or from a tier, and is not this call's.
  absl::Status CopyReply(size_t index, const StoredReply& reply);
  // Once all rows have ended; where they failed, their output is zero.
  void FinishOutput(v1::Tensor* output);
  void Release();  // one of the things the call waits for has happened

  const ServiceContext& context_;
  const StepData data_;
  CallTrace* const trace_;  // null where the call is not traced; not touched once `done` is called
  const std::thread::id starter_ = std::this_thread::get_id();
  Done done_;
  FinishReply finish_;  // fills the reply's other fields
  bool partial_ok_ = false;
  bool prefill_ = false;

  std::vector<Row> rows_;
  std::vector<size_t> pinned_rows_;  // rows_ index of each session that is being pinned
  WaitLimit limit_;
  ByteAccountPtr metered_;    // what tokens were taken from; nullptr: from nobody
  int64_t taken_tokens_ = 0;  // and how many
  CheckedInput input_;
  SharedTensors shared_;
  char* output_ = nullptr;
  size_t row_stride_ = 0;  // bytes of a row in the reply, padding included
  absl::Mutex mu_;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<int64_t> compute_time_us_{0};
  std::atomic<int> waiting_{1};  // the pins, the jobs, joined rows, and the starting function itself
  absl::Status error_;           // of the whole call; set by whoever finds it, before releasing
};

std::shared_ptr<StepCall> StartPrefill(const ServiceContext& context, const Caller& caller,
                                       const v1::PrefillRequest& request, v1::PrefillResponse* response, StepData data,
                                       CallTrace* trace, StepCall::Done done);
std::shared_ptr<StepCall> StartDecode(const ServiceContext& context, const Caller& caller,
                                      const v1::DecodeRequest& request, v1::DecodeResponse* response, StepData data,
                                      CallTrace* trace, StepCall::Done done);

}  // namespace gdn
