// How Client sends and receives state files: in pieces with checksums, each of which is copied once.
//
// Thread safety: free functions. Ownership: all arguments are borrowed for the length of the call.
//
//   GDN_RETURN_IF_ERROR(ReceiveState(*stub.ExportState(&context, request), context, sink, call.progress));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace gdn {

// Called after each piece of a state file's transfer. total_bytes is 0 if it is not known.
using TransferProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Bytes of a state file in one ImportState message.
inline constexpr size_t kImportChunkBytes = size_t{2} << 20;

// Passes every piece to `sink`, in order, after its checksum is verified. Errors as of Client::ExportState.
absl::Status ReceiveState(grpc::ClientReaderInterface<v1::ExportStateResponse>& reader, grpc::ClientContext& context,
                          absl::FunctionRef<absl::Status(std::string_view)> sink, const TransferProgress& progress);

// Sends the pieces that `source` returns until it returns an empty one; its argument is the most bytes of a piece.
// Blocks. An error of `source` cancels the call and is returned. Returns the session that was made from the file.
// Errors as of Client::ImportState.
absl::StatusOr<v1::Session> SendState(const std::shared_ptr<grpc::ChannelInterface>& channel,
                                      grpc::ClientContext& context, const v1::ImportStateRequest::Target& target,
                                      absl::FunctionRef<absl::StatusOr<std::string_view>(size_t)> source,
                                      const TransferProgress& progress);

}  // namespace gdn
