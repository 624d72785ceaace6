#include "client/cpp/stream.h"

#include <utility>

#include "base/error.h"
#include "client/cpp/rpc_status.h"

namespace gdn {
namespace {

void SetStep(v1::PrefillRequest step, v1::StreamPrefillRequest* request) {
  *request->mutable_segment() = std::move(step);
}
void SetStep(v1::DecodeRequest step, v1::StreamDecodeRequest* request) { *request->mutable_step() = std::move(step); }

absl::Status StreamIsOver() { return absl::UnavailableError("the stream is over; Finish() gives its status"); }

}  // namespace

template <typename Step, typename Result, typename Request, typename Response>
StepStream<Step, Result, Request, Response>::StepStream(std::unique_ptr<grpc::ClientContext> context,
                                                        std::unique_ptr<ReaderWriter> stream)
    : context_(std::move(context)), stream_(std::move(stream)) {}

template <typename Step, typename Result, typename Request, typename Response>
StepStream<Step, Result, Request, Response>::~StepStream() {
  if (stream_ == nullptr || final_status_.has_value()) return;
  Cancel();
  (void)Finish();
}

template <typename Step, typename Result, typename Request, typename Response>
absl::Status StepStream<Step, Result, Request, Response>::Write(Step step) {
  if (writes_done_) return absl::FailedPreconditionError("a step was written after WritesDone() or Finish()");
  Request request;
  SetStep(std::move(step), &request);
  return stream_->Write(request) ? absl::OkStatus() : StreamIsOver();
}

template <typename Step, typename Result, typename Request, typename Response>
std::optional<absl::StatusOr<Result>> StepStream<Step, Result, Request, Response>::Read() {
  Response response;
  if (final_status_.has_value() || !stream_->Read(&response)) return std::nullopt;
  if (absl::Status status = StatusFromRpc(response.status()); !status.ok()) return status;
  return std::move(*response.mutable_result());
}

template <typename Step, typename Result, typename Request, typename Response>
absl::StatusOr<Result> StepStream<Step, Result, Request, Response>::ReadOne() {
  if (auto reply = Read(); reply.has_value()) return *std::move(reply);
  if (absl::Status status = Finish(); !status.ok()) return status;
  return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                   "the stream ended before the reply that was due; the server closed it without an error");
}

template <typename Step, typename Result, typename Request, typename Response>
absl::Status StepStream<Step, Result, Request, Response>::WritesDone() {
  if (writes_done_) return absl::OkStatus();
  writes_done_ = true;
  return stream_->WritesDone() ? absl::OkStatus() : StreamIsOver();
}

template <typename Step, typename Result, typename Request, typename Response>
absl::Status StepStream<Step, Result, Request, Response>::Finish() {
  if (final_status_.has_value()) return *final_status_;
  (void)WritesDone();
  // The final status lies behind the replies.
  Response unread;
  while (stream_->Read(&unread)) {
  }
  final_status_ = StatusFromGrpc(stream_->Finish());
  return *final_status_;
}

template <typename Step, typename Result, typename Request, typename Response>
void StepStream<Step, Result, Request, Response>::Cancel() {
  context_->TryCancel();
}

template class StepStream<v1::PrefillRequest, v1::PrefillResponse, v1::StreamPrefillRequest, v1::StreamPrefillResponse>;
template class StepStream<v1::DecodeRequest, v1::DecodeResponse, v1::StreamDecodeRequest, v1::StreamDecodeResponse>;

}  // namespace gdn
