// The client's transfers of state files.
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"

namespace gdn {
namespace {

absl::Status BadExport(std::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the exported state is not whole: ", what, "; export it again"));
}

}  // namespace

absl::Status Client::ExportState(const v1::ExportStateRequest& request,
                                 absl::FunctionRef<absl::Status(std::string_view)> sink, const CallOptions& call) {
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(call, options_.default_timeout, &context));
  const auto reader = stub_->ExportState(&context, request);

  absl::Status status;
  StatePieces pieces;
  v1::ExportStateResponse piece;
  while (status.ok() && reader->Read(&piece)) {
    status = pieces.Add(piece.data(), piece.offset(), piece.total_bytes(), piece.checksum());
    if (status.ok()) status = sink(piece.data());
    if (status.ok() && call.progress) call.progress(pieces.received_bytes(), pieces.total_bytes());
  }
  if (!status.ok()) {
    context.TryCancel();
    (void)reader->Finish();
    return status;
  }
  GDN_RETURN_IF_ERROR(StatusFromGrpc(reader->Finish()));
  if (!pieces.begun()) return BadExport("no piece came");
  if (!pieces.whole()) return BadExport(StrCat(pieces.received_bytes(), " of ", pieces.total_bytes(), " bytes came"));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Client::ExportState(const v1::ExportStateRequest& request, const CallOptions& call) {
  std::string file;
  GDN_RETURN_IF_ERROR(ExportState(
      request,
      [&file](std::string_view piece) {
        file.append(piece);
        return absl::OkStatus();
      },
      call));
  return file;
}

absl::StatusOr<v1::Session> Client::ImportState(const v1::ImportStateRequest::Target& target, std::string_view file,
                                                const CallOptions& call) {
  v1::ImportStateRequest::Target sized = target;
  sized.set_total_bytes(static_cast<int64_t>(file.size()));
  size_t sent = 0;
  return ImportState(
      sized,
      [&](size_t bytes) -> absl::StatusOr<std::string_view> {
        const std::string_view piece = file.substr(sent, bytes);
        sent += piece.size();
        return piece;
      },
      call);
}

absl::StatusOr<v1::Session> Client::ImportState(const v1::ImportStateRequest::Target& target,
                                                absl::FunctionRef<absl::StatusOr<std::string_view>(size_t)> source,
                                                const CallOptions& call) {
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(call, options_.default_timeout, &context));
  v1::ImportStateResponse response;
  const auto writer = stub_->ImportState(&context, &response);

  v1::ImportStateRequest message;
  *message.mutable_target() = target;
  // A failed write means that the server has already answered; Finish() has the answer.
  bool open = writer->Write(message);
  for (int64_t sent = 0; open;) {
    absl::StatusOr<std::string_view> piece = source(kImportChunkBytes);
    if (!piece.ok()) {
      // Cancelled and not ended: the server must not take what it has for the whole file.
      context.TryCancel();
      (void)writer->Finish();
      return piece.status();
    }
    if (piece->empty()) break;
    message.set_data(piece->data(), piece->size());
    message.set_checksum(Hash64(*piece));
    open = writer->Write(message);
    if (!open) break;
    sent += static_cast<int64_t>(piece->size());
    if (call.progress) call.progress(sent, target.total_bytes());
  }
  if (open) writer->WritesDone();
  GDN_RETURN_IF_ERROR(StatusFromGrpc(writer->Finish()));
  return std::move(*response.mutable_session());
}

absl::StatusOr<StateWatch> Client::WatchState(const v1::WatchStateRequest& request, const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  GDN_RETURN_IF_ERROR(PrepareContext(call, std::nullopt, context.get()));
  auto reader = stub_->WatchState(context.get(), request);
  return StateWatch(std::move(context), std::move(reader));
}

}  // namespace gdn
