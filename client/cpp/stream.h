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

#include "absl/status/statusor.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"

namespace gdn {

// Step: the request of one step; Result: its reply; Request, Response: the messages that wrap them on the wire.
template <typename Step, typename Result, typename Request, typename Response>
class StepStream {
 public:
  using ReaderWriter = grpc::ClientReaderWriterInterface<Request, Response>;

  StepStream(std::unique_ptr<grpc::ClientContext> context, std::unique_ptr<ReaderWriter> stream);
  StepStream(StepStream&& other) noexcept = default;
  StepStream& operator=(StepStream&&) = delete;
  ~StepStream();

  // Sends a step. UNAVAILABLE where the stream is over; Finish() then tells why.
  absl::Status Write(Step step);

  // The next reply, in the order of the writes; a step that failed gives its own status, and the stream goes on.
  // nullopt at the end.
  std::optional<absl::StatusOr<Result>> Read();

  // Read() for callers who know that a reply is due: the end of the stream is its Finish() status, or INTERNAL where
  // that is OK.
  absl::StatusOr<Result> ReadOne();

  // No more writes. Finish() does this too. UNAVAILABLE where the stream is over.
  absl::Status WritesDone();

  // Ends the writes, drops replies not yet read and gives the stream's own status, which is not OK only for protocol
  // errors. Later calls give the same status.
  absl::Status Finish();

  // Cancels the call; reads and writes in progress return.
  void Cancel();

 private:
  std::unique_ptr<grpc::ClientContext> context_;  // null after a move
  std::unique_ptr<ReaderWriter> stream_;
  bool writes_done_ = false;
  std::optional<absl::Status> final_status_;  // set once finished
};

using PrefillStream =
    StepStream<v1::PrefillRequest, v1::PrefillResponse, v1::StreamPrefillRequest, v1::StreamPrefillResponse>;
using DecodeStream =
    StepStream<v1::DecodeRequest, v1::DecodeResponse, v1::StreamDecodeRequest, v1::StreamDecodeResponse>;

extern template class StepStream<v1::PrefillRequest, v1::PrefillResponse, v1::StreamPrefillRequest,
                                 v1::StreamPrefillResponse>;
extern template class StepStream<v1::DecodeRequest, v1::DecodeResponse, v1::StreamDecodeRequest,
                                 v1::StreamDecodeResponse>;

}  // namespace gdn
