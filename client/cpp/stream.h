// Streams of steps: StreamPrefill and StreamDecode from the client's side.
//
// Thread safety: one thread may Write (and WritesDone) while another Reads; Finish and destruction need both to be
// done. Cancel may be called at any time. Ownership: the stream owns its call, and must not outlive the Client that
// opened it. Destroying an unfinished stream cancels it.
// Long prompts: a stream has bounded buffers in both directions, so write from a second thread or read as you write;
// writing everything first stalls once the replies fill the buffers.
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

// Step: the request of one step; Result: its reply; Request, Response: the messages that wrap them on the wire.
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

  // Sends a step. UNAVAILABLE where the stream is over; Finish() then tells why.
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

  // The next reply, in the order of the writes; a step that failed gives its own status, and the stream goes on.
  // nullopt at the end.
  std::optional<absl::StatusOr<Result>> Read() {
    Response response;
    if (final_status_.has_value() || !stream_->Read(&response)) return std::nullopt;
    if (absl::Status status = StatusFromRpc(response.status()); !status.ok()) return status;
    return std::move(*response.mutable_result());
  }

  // Read() for callers who know that a reply is due: the end of the stream is its Finish() status, or INTERNAL where
  // that is OK.
  absl::StatusOr<Result> ReadOne() {
    if (auto reply = Read(); reply.has_value()) return *std::move(reply);
    if (absl::Status status = Finish(); !status.ok()) return status;
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     "the stream ended before the reply that was due; the server closed it without an error");
  }

  // No more writes. Finish() does this too. UNAVAILABLE where the stream is over.
  absl::Status WritesDone() {
    if (writes_done_) return absl::OkStatus();
    writes_done_ = true;
    return stream_->WritesDone() ? absl::OkStatus() : StreamIsOver();
  }

  // Ends the writes, drops replies not yet read and gives the stream's own status, which is not OK only for protocol
  // errors. Later calls give the same status.
  absl::Status Finish() {
    if (final_status_.has_value()) return *final_status_;
    (void)WritesDone();
    // The final status lies behind the replies.
    Response unread;
    while (stream_->Read(&unread)) {
    }
    final_status_ = StatusFromGrpc(stream_->Finish());
    return *final_status_;
  }

  // Cancels the call; reads and writes in progress return.
  void Cancel() { context_->TryCancel(); }

 private:
  static absl::Status StreamIsOver() { return absl::UnavailableError("the stream is over; Finish() gives its status"); }

  std::unique_ptr<grpc::ClientContext> context_;  // null after a move
  std::unique_ptr<ReaderWriter> stream_;
  bool writes_done_ = false;
  std::optional<absl::Status> final_status_;  // set once finished
};

using PrefillStream =
    StepStream<v1::PrefillRequest, v1::PrefillResponse, v1::StreamPrefillRequest, v1::StreamPrefillResponse>;
using DecodeStream =
    StepStream<v1::DecodeRequest, v1::DecodeResponse, v1::StreamDecodeRequest, v1::StreamDecodeResponse>;

}  // namespace gdn
