#include "client/cpp/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace gdn {
namespace {

constexpr int kListPageSize = 1000;

// gRPC aborts the process on metadata it cannot send, so it must not get that far.
absl::Status AddMetadata(grpc::ClientContext* context, const char* key, const std::string& value) {
  if (value.empty()) return absl::OkStatus();
  if (!std::all_of(value.begin(), value.end(), [](unsigned char c) { return absl::ascii_isprint(c); })) {
    return absl::InvalidArgumentError(StrCat("the value of the metadata '", key, "' must be printable ASCII"));
  }
  context->AddMetadata(key, value);
  return absl::OkStatus();
}

absl::Status BadExport(std::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the exported state is not whole: ", what, "; export it again"));
}

}  // namespace

std::unique_ptr<Client> Client::Connect(const std::string& target, ClientOptions options) {
  return Connect(target, grpc::InsecureChannelCredentials(), std::move(options));
}

std::unique_ptr<Client> Client::Connect(const std::string& target,
                                        const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                        ClientOptions options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_receive_message_bytes);
  return std::make_unique<Client>(v1::GdnService::NewStub(grpc::CreateCustomChannel(target, credentials, arguments)),
                                  std::move(options));
}

Client::Client(std::unique_ptr<v1::GdnService::StubInterface> stub, ClientOptions options)
    : stub_(std::move(stub)), options_(std::move(options)) {}

absl::Status Client::PrepareContext(const CallOptions& call, std::optional<absl::Duration> default_timeout,
                                    grpc::ClientContext* context) const {
  const absl::Duration timeout = call.timeout.value_or(default_timeout.value_or(absl::InfiniteDuration()));
  if (timeout < absl::InfiniteDuration()) context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  GDN_RETURN_IF_ERROR(AddMetadata(context, "authorization", options_.token));
  return AddMetadata(context, "x-gdn-affinity", call.affinity);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Client::Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                      const Request& request, const CallOptions& call) {
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(call, options_.default_timeout, &context));
  Response response;
  GDN_RETURN_IF_ERROR(StatusFromGrpc((stub_.get()->*method)(&context, request, &response)));
  return response;
}

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo(const CallOptions& call) {
  return Call(&Stub::GetServerInfo, v1::GetServerInfoRequest(), call);
}

absl::StatusOr<std::vector<v1::Model>> Client::ListModels(const CallOptions& call) {
  GDN_ASSIGN_OR_RETURN(v1::ListModelsResponse response, Call(&Stub::ListModels, v1::ListModelsRequest(), call));
  return std::vector<v1::Model>(std::make_move_iterator(response.mutable_models()->begin()),
                                std::make_move_iterator(response.mutable_models()->end()));
}

absl::StatusOr<v1::Model> Client::GetModel(const std::string& name, const CallOptions& call) {
  v1::GetModelRequest request;
  request.set_name(name);
  GDN_ASSIGN_OR_RETURN(v1::GetModelResponse response, Call(&Stub::GetModel, request, call));
  return std::move(*response.mutable_model());
}

absl::StatusOr<v1::Session> Client::CreateSession(const v1::CreateSessionRequest& request, const CallOptions& call) {
  GDN_ASSIGN_OR_RETURN(v1::CreateSessionResponse response, Call(&Stub::CreateSession, request, call));
  return std::move(*response.mutable_session());
}

absl::StatusOr<v1::Session> Client::GetSession(const std::string& name, const CallOptions& call) {
  v1::GetSessionRequest request;
  request.set_name(name);
  GDN_ASSIGN_OR_RETURN(v1::GetSessionResponse response, Call(&Stub::GetSession, request, call));
  return std::move(*response.mutable_session());
}

absl::StatusOr<std::vector<v1::Session>> Client::ListSessions(const CallOptions& call) {
  std::vector<v1::Session> sessions;
  v1::ListSessionsRequest request;
  request.set_page_size(kListPageSize);
  for (;;) {
    GDN_ASSIGN_OR_RETURN(v1::ListSessionsResponse page, Call(&Stub::ListSessions, request, call));
    for (v1::Session& session : *page.mutable_sessions()) sessions.push_back(std::move(session));
    if (page.next_page_token().empty()) return sessions;
    if (page.next_page_token() == request.page_token()) {
      return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                       "ListSessions gave the page token it was given, so its pages have no end");
    }
    request.set_page_token(page.next_page_token());
  }
}

absl::Status Client::DeleteSession(const std::string& name, const CallOptions& call) {
  v1::DeleteSessionRequest request;
  request.set_name(name);
  return Call(&Stub::DeleteSession, request, call).status();
}

absl::Status Client::ExportState(const v1::ExportStateRequest& request,
                                 absl::FunctionRef<absl::Status(std::string_view)> sink, const CallOptions& call) {
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(call, options_.default_timeout, &context));
  const auto reader = stub_->ExportState(&context, request);

  absl::Status status;
  int64_t received = 0;
  std::optional<int64_t> total;
  v1::ExportStateResponse piece;
  while (status.ok() && reader->Read(&piece)) {
    if (piece.offset() != received) {
      status = BadExport(StrCat("a piece begins at byte ", piece.offset(), ", expected ", received));
    } else if (total.has_value() && piece.total_bytes() != *total) {
      status = BadExport(StrCat("its size changed from ", *total, " to ", piece.total_bytes(), " bytes"));
    } else {
      total = piece.total_bytes();
      received += static_cast<int64_t>(piece.data().size());
      status = received <= *total ? sink(piece.data()) : BadExport(StrCat("more bytes than the announced ", *total));
    }
  }
  if (!status.ok()) {
    context.TryCancel();
    (void)reader->Finish();
    return status;
  }
  GDN_RETURN_IF_ERROR(StatusFromGrpc(reader->Finish()));
  if (!total.has_value()) return BadExport("no piece came");
  if (received != *total) return BadExport(StrCat(received, " of ", *total, " bytes came"));
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
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(call, options_.default_timeout, &context));
  v1::ImportStateResponse response;
  const auto writer = stub_->ImportState(&context, &response);

  v1::ImportStateRequest message;
  *message.mutable_target() = target;
  // A failed write means that the server has already answered; Finish() has the answer.
  bool open = writer->Write(message);
  for (size_t offset = 0; open && offset < file.size(); offset += kImportChunkBytes) {
    const std::string_view piece = file.substr(offset, kImportChunkBytes);
    message.set_data(piece.data(), piece.size());
    open = writer->Write(message);
  }
  if (open) writer->WritesDone();
  GDN_RETURN_IF_ERROR(StatusFromGrpc(writer->Finish()));
  return std::move(*response.mutable_session());
}

absl::StatusOr<v1::PrefillResponse> Client::Prefill(const v1::PrefillRequest& request, const CallOptions& call) {
  return Call(&Stub::Prefill, request, call);
}

absl::StatusOr<v1::DecodeResponse> Client::Decode(const v1::DecodeRequest& request, const CallOptions& call) {
  return Call(&Stub::Decode, request, call);
}

absl::StatusOr<PrefillStream> Client::StreamPrefill(const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  GDN_RETURN_IF_ERROR(PrepareContext(call, std::nullopt, context.get()));
  auto stream = stub_->StreamPrefill(context.get());
  return PrefillStream(std::move(context), std::move(stream));
}

absl::StatusOr<DecodeStream> Client::StreamDecode(const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  GDN_RETURN_IF_ERROR(PrepareContext(call, std::nullopt, context.get()));
  auto stream = stub_->StreamDecode(context.get());
  return DecodeStream(std::move(context), std::move(stream));
}

}  // namespace gdn
