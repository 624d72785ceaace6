#include "server/rpc/export_reactor.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/file_reactor.h"
#include "server/rpc/principal.h"
#include "server/rpc/raw_message.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/session_calls.h"

namespace gdn {
namespace {

absl::StatusOr<StateFileOptions> OptionsOf(const v1::ExportStateRequest& request) {
  StateFileOptions options;
  options.include_recurrent_state = request.include_recurrent_state();
  switch (request.recurrent_state_dtype()) {
    case v1::DTYPE_UNSPECIFIED:
    case v1::DTYPE_F32:
      return options;
    case v1::DTYPE_BF16:
      options.recurrent_state_dtype = DType::kBF16;
      return options;
    default:
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
                       StrCat("recurrent_state_dtype is ", v1::DType_Name(request.recurrent_state_dtype()),
                              ", expected DTYPE_F32 or DTYPE_BF16"),
                       {{"field", "recurrent_state_dtype"}});
  }
}

std::string Tail(const PieceTail& tail) {
  v1::ExportStateResponse rest;
  rest.set_offset(tail.offset);
  rest.set_total_bytes(tail.total_bytes);
  rest.set_checksum(tail.checksum);
  return rest.SerializeAsString();
}

class ExportReactor final : public FileReactor {
 public:
  ExportReactor(const ServiceContext& context, grpc::CallbackServerContext* call, const grpc::ByteBuffer* message)
      : context_(context), call_(call) {
    if (absl::Status status = Begin(*message); !status.ok()) Finish(ToGrpcStatus(status));
  }

 private:
  absl::Status Begin(const grpc::ByteBuffer& message) {
    GDN_ASSIGN_OR_RETURN(const auto request, ParseMessage<v1::ExportStateRequest>(message));
    GDN_ASSIGN_OR_RETURN(options_, OptionsOf(request));
    GDN_ASSIGN_OR_RETURN(const auto session, FindSession(context_, PrincipalOf(*call_), request.name()));
    context_.checkpointer.Capture(session, /*known=*/nullptr, [this](absl::StatusOr<CapturedState> captured) {
      if (absl::Status status = Encode(std::move(captured)); !status.ok()) Finish(ToGrpcStatus(status));
    });
    return absl::OkStatus();
  }

  absl::Status Encode(absl::StatusOr<CapturedState> captured) {
    GDN_RETURN_IF_ERROR(captured.status());
    captured->held.Release();  // what is sent is a copy
    if (call_->IsCancelled()) {
      return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled, "the client has gone");
    }
    GDN_ASSIGN_OR_RETURN(EncodedStateFile file,
                         EncodeStateFile(std::move(captured->image), options_, &context_.copiers));
    Send(FilePieces(std::move(file), Tail));
    return absl::OkStatus();
  }

  void OnFileSent() override { Finish(grpc::Status::OK); }

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  StateFileOptions options_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewExportReactor(const ServiceContext& context,
                                                             grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request) {
  return new ExportReactor(context, call, request);
}

}  // namespace gdn
