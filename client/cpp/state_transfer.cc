#include "client/cpp/state_transfer.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/state_watch.h"
#include "client/cpp/upload.h"

namespace gdn {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr char kImportMethod[] = "/gdn.v1.GdnService/ImportState";

absl::Status BadExport(std::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the exported state is not whole: ", what, "; export it again"));
}

// Of ImportState: `data` and its checksum. The one copy of the bytes is the one that gRPC sends.
grpc::ByteBuffer DataMessage(std::string_view data) {
  uint8_t head[16];
  uint8_t* end = WireFormatLite::WriteTagToArray(v1::ImportStateRequest::kDataFieldNumber,
                                                 WireFormatLite::WIRETYPE_LENGTH_DELIMITED, head);
  end = CodedOutputStream::WriteVarint64ToArray(data.size(), end);
  v1::ImportStateRequest rest;
  rest.set_checksum(Hash64(data));
  const grpc::Slice slices[] = {
      {head, static_cast<size_t>(end - head)}, {data.data(), data.size()}, grpc::Slice(rest.SerializeAsString())};
  return {slices, std::size(slices)};
}

}  // namespace

absl::Status ReceiveState(grpc::ClientReaderInterface<v1::ExportStateResponse>& reader, grpc::ClientContext& context,
                          absl::FunctionRef<absl::Status(std::string_view)> sink, const TransferProgress& progress) {
  absl::Status status;
  StatePieces pieces;
  v1::ExportStateResponse piece;
  while (status.ok() && reader.Read(&piece)) {
    status = pieces.Add(piece.data(), piece.offset(), piece.total_bytes(), piece.checksum());
    if (status.ok()) status = sink(piece.data());
    if (status.ok() && progress) progress(pieces.received_bytes(), pieces.total_bytes());
  }
  if (!status.ok()) {
    context.TryCancel();
    (void)reader.Finish();
    return status;
  }
  GDN_RETURN_IF_ERROR(StatusFromGrpc(reader.Finish()));
  if (!pieces.begun()) return BadExport("no piece came");
  if (!pieces.whole()) return BadExport(StrCat(pieces.received_bytes(), " of ", pieces.total_bytes(), " bytes came"));
  return absl::OkStatus();
}

absl::StatusOr<v1::Session> SendState(const std::shared_ptr<grpc::ChannelInterface>& channel,
                                      grpc::ClientContext& context, const v1::ImportStateRequest::Target& target,
                                      absl::FunctionRef<absl::StatusOr<std::string_view>(size_t)> source,
                                      const TransferProgress& progress) {
  Upload upload(channel, kImportMethod, &context);

  v1::ImportStateRequest first;
  *first.mutable_target() = target;
  const grpc::Slice message(first.SerializeAsString());
  bool open = upload.Write({&message, 1});
  for (int64_t sent = 0; open;) {
    absl::StatusOr<std::string_view> piece = source(kImportChunkBytes);
    if (!piece.ok()) {
      // Cancelled and not ended: the server must not take what it has for the whole file.
      context.TryCancel();
      (void)upload.Finish();
      return piece.status();
    }
    if (piece->empty()) break;
    open = upload.Write(DataMessage(*piece));
    if (!open) break;
    sent += static_cast<int64_t>(piece->size());
    if (progress) progress(sent, target.total_bytes());
  }
  GDN_ASSIGN_OR_RETURN(grpc::ByteBuffer answer, upload.Finish());
  v1::ImportStateResponse response;
  grpc::ProtoBufferReader reader(&answer);
  if (answer.Valid() && response.ParseFromZeroCopyStream(&reader)) return std::move(*response.mutable_session());
  return absl::InternalError("the server's answer is no ImportStateResponse");
}

}  // namespace gdn
