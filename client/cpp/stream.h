// Streams of steps: StreamPrefill, StreamDecode and StreamStep for clients.
//
// Thread safety: one thread may Write (and WritesDone) while another Reads. Finish and the destructor need both to have
// ended. Cancel may be called at any time. Ownership: the stream owns its call, and must not outlive its Client. The
// destructor cancels an unfinished stream. Long prompts: a stream has bounded buffers in both directions. If you write
// everything first, the stream stalls when the replies fill the buffers. So read while you write, or write from a
// second thread.
//
//   GDN_ASSIGN_OR_RETURN(PrefillStream stream, client.StreamPrefill());
//   for (auto& segment : segments) {
//     GDN_RETURN_IF_ERROR(stream.Write(std::move(segment)));
//     GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply, stream.ReadOne());
//   }
//   GDN_RETURN_IF_ERROR(stream.Finish());
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "base/error.h"
#include "client/cpp/rpc_status.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"

namespace gdn {

// Step: the request of one step. Result: its reply. Request, Response: the messages that wrap them on the wire.
template <typename Step, typename Result, typename Request, typename Response>
class StepStream {
 public:
  using ReaderWriter = grpc::ClientReaderWriterInterface<Request, Response>;

  StepStream(std::unique_ptr<grpc::ClientContext> context, std::unique_ptr<ReaderWriter> stream)
      : context_(std::move(context)), stream_(std::move(stream)) {}
  StepStream(StepStream&& other) noexcept = default;
  StepStream& operator=(StepStream&&) = delete;
  ~StepStream() {
    if (stream_ == nullptr || final_status_.has_value()) return;
    Cancel();
    (void)Finish();
  }

  // Sends a step; blocks while the stream's buffers are full. UNAVAILABLE if the stream has ended; Finish() then
  // returns the reason. FAILED_PRECONDITION after WritesDone() or Finish().
  absl::Status Write(Step step) {
    if (writes_done_) return absl::FailedPreconditionError("a step was written after WritesDone() or Finish()");
    Request request;
    if constexpr (std::is_same_v<Step, v1::PrefillRequest>) {
      *request.mutable_segment() = std::move(step);
    } else {
      *request.mutable_step() = std::move(step);
    }
    return stream_->Write(request) ? absl::OkStatus() : StreamIsOver();
  }

  // Waits for the next reply, in the order of the writes. If a step failed, returns its status, and the stream
  // continues. nullopt at the end.
  std::optional<absl::StatusOr<Result>> Read() {
    Response response;
    if (final_status_.has_value() || !stream_->Read(&response)) return std::nullopt;
    if (absl::Status status = StatusFromRpc(response.status()); !status.ok()) return status;
    return std::move(*response.mutable_result());
  }

  // Read() for callers that expect a reply. At the end of the stream it calls Finish() and returns its status, or
  // INTERNAL if that is OK.
  absl::StatusOr<Result> ReadOne() {
    if (auto reply = Read(); reply.has_value()) return *std::move(reply);
    if (absl::Status status = Finish(); !status.ok()) return status;
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     "the stream ended before the reply that was due; the server closed it without an error");
  }

  // Ends the writes. Finish() does this too. UNAVAILABLE if the stream has ended.
  absl::Status WritesDone() {
    if (writes_done_) return absl::OkStatus();
    writes_done_ = true;
    return stream_->WritesDone() ? absl::OkStatus() : StreamIsOver();
  }

  // Ends the writes, waits for the end of the stream, drops unread replies and returns the stream's own status. The
  // status is an error only for protocol errors, a lost connection or a cancelled call. Later calls return the same
  // status.
  absl::Status Finish() {
    if (final_status_.has_value()) return *final_status_;
    (void)WritesDone();
    // gRPC gives the final status only after all replies were read.
    Response unread;
    while (stream_->Read(&unread)) {
    }
    final_status_ = StatusFromGrpc(stream_->Finish());
    return *final_status_;
  }

  // Cancels the call. Reads and writes in progress return.
  void Cancel() { context_->TryCancel(); }

 private:
  static absl::Status StreamIsOver() { return absl::UnavailableError("the stream is over; Finish() gives its status"); }

  std::unique_ptr<grpc::ClientContext> context_;  // null after a move
  std::unique_ptr<ReaderWriter> stream_;
  bool writes_done_ = false;
  std::optional<absl::Status> final_status_;  // set when the stream has ended
};

using PrefillStream =
    StepStream<v1::PrefillRequest, v1::PrefillResponse, v1::StreamPrefillRequest, v1::StreamPrefillResponse>;
using DecodeStream =
    StepStream<v1::DecodeRequest, v1::DecodeResponse, v1::StreamDecodeRequest, v1::StreamDecodeResponse>;
using MixedStream = StepStream<v1::StepRequest, v1::StepResponse, v1::StreamStepRequest, v1::StreamStepResponse>;

}  // namespace gdn
