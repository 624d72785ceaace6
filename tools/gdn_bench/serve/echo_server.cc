#include "tools/gdn_bench/serve/echo_server.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/server_process.h"
#include "base/status_macros.h"
#include "client/cpp/client.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "tools/common/child_process.h"
#include "tools/gdn_bench/serve/credentials.h"

namespace gdn::bench {
namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;  // as gdn_server's

// As many bytes as the request's name says, in pieces, the ordinary way.
class ByteSource final : public grpc::ServerWriteReactor<v1::ExportStateResponse> {
 public:
  explicit ByteSource(const v1::ExportStateRequest& request) : bytes_(kPieceBytes, 'x') {
    if (absl::SimpleAtoi(request.name(), &left_)) {
      SendNext();
    } else {
      Finish({grpc::StatusCode::INVALID_ARGUMENT, "the name is no number of bytes"});
    }
  }
  void OnWriteDone(bool ok) override { ok ? SendNext() : Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  void SendNext() {
    if (left_ == 0) return Finish(grpc::Status::OK);
    const size_t size = std::min(left_, bytes_.size());
    left_ -= size;
    piece_.set_data(bytes_.data(), size);
    StartWrite(&piece_);
  }

  const std::string bytes_;
  size_t left_ = 0;
  v1::ExportStateResponse piece_;
};

class Sink final : public grpc::ServerReadReactor<v1::ImportStateRequest> {
 public:
  Sink() { StartRead(&piece_); }
  void OnReadDone(bool ok) override { ok ? StartRead(&piece_) : Finish(grpc::Status::OK); }
  void OnDone() override { delete this; }

 private:
  v1::ImportStateRequest piece_;
};

// The request's tensor in place of an output.
void Echo(const v1::DecodeRequest& request, v1::DecodeResponse* response) {
  *response->mutable_output() = request.hidden_states().hidden_states();
  response->mutable_token_counts()->Resize(request.sessions_size(), 0);
}
void Echo(const v1::PrefillRequest& request, v1::PrefillResponse* response) {
  *response->mutable_output() = request.hidden_states().hidden_states();
}
void Echo(const v1::StreamDecodeRequest& request, v1::StreamDecodeResponse* response) {
  Echo(request.step(), response->mutable_result());
}
void Echo(const v1::StreamPrefillRequest& request, v1::StreamPrefillResponse* response) {
  Echo(request.segment(), response->mutable_result());
}
void Echo(const grpc::ByteBuffer& request, grpc::ByteBuffer* response) { *response = request; }

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Request* request, Response* response) {
  Echo(*request, response);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

// Reads a message, answers it, and so on until the client is done.
template <typename Request, typename Response>
class Answers final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  Answers() { this->StartRead(&request_); }
  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    response_.Clear();
    Echo(request_, &response_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override { ok ? this->StartRead(&request_) : this->Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  Request request_;
  Response response_;
};

using Call = grpc::CallbackServerContext;
using Bytes = grpc::ByteBuffer;

class EchoService final : public v1::GdnService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Decode(Call* call, const v1::DecodeRequest* request,
                                   v1::DecodeResponse* response) override {
    return Answer(call, request, response);
  }
  grpc::ServerUnaryReactor* Prefill(Call* call, const v1::PrefillRequest* request,
                                    v1::PrefillResponse* response) override {
    return Answer(call, request, response);
  }
  grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>* StreamDecode(Call* /*call*/) override {
    return new Answers<v1::StreamDecodeRequest, v1::StreamDecodeResponse>;
  }
  grpc::ServerBidiReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse>* StreamPrefill(Call* /*call*/) override {
    return new Answers<v1::StreamPrefillRequest, v1::StreamPrefillResponse>;
  }
  grpc::ServerWriteReactor<v1::ExportStateResponse>* ExportState(Call* /*call*/,
                                                                 const v1::ExportStateRequest* request) override {
    return new ByteSource(*request);
  }
  grpc::ServerReadReactor<v1::ImportStateRequest>* ImportState(Call* /*call*/,
                                                               v1::ImportStateResponse* /*response*/) override {
    return new Sink;
  }
};

// As generated code would be, had these four methods bytes for messages and the service no others: one that is not on
// the callback API would bring a synchronous server's threads along.
class RawEchoService final : public grpc::Service {
 public:
  RawEchoService() {
    using grpc::internal::RpcMethod;
    Add("/gdn.v1.GdnService/Decode", RpcMethod::NORMAL_RPC, UnaryHandler());
    Add("/gdn.v1.GdnService/Prefill", RpcMethod::NORMAL_RPC, UnaryHandler());
    Add("/gdn.v1.GdnService/StreamDecode", RpcMethod::BIDI_STREAMING, StreamHandler());
    Add("/gdn.v1.GdnService/StreamPrefill", RpcMethod::BIDI_STREAMING, StreamHandler());
  }

 private:
  static grpc::internal::MethodHandler* UnaryHandler() {
    return new grpc::internal::CallbackUnaryHandler<Bytes, Bytes>(&Answer<Bytes, Bytes>);
  }
  static grpc::internal::MethodHandler* StreamHandler() {
    return new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(
        [](Call* /*call*/) { return new Answers<Bytes, Bytes>; });
  }
  void Add(const char* name, grpc::internal::RpcMethod::RpcType type, grpc::internal::MethodHandler* handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(name, type, nullptr));
    MarkMethodRawCallback(methods_++, handler);
  }

  int methods_ = 0;
};

absl::StatusOr<std::unique_ptr<grpc::Server>> Listen(const std::string& address, grpc::Service& service,
                                                     const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                                     const std::string& port_file) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(address, credentials, &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return absl::UnavailableError(absl::StrCat("cannot listen on '", address, "'"));
  GDN_RETURN_IF_ERROR(WritePortFile(port_file, port));
  return server;
}

}  // namespace

std::string RawEchoOf(const std::string& path) { return path + ".raw"; }

absl::Status RunEchoServer(const std::string& address, const std::string& port_file, const std::string& secure) {
  SetUpServerProcess();
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (!secure.empty()) {
    GDN_ASSIGN_OR_RETURN(credentials, SecureServerCredentials(secure));
  }
  EchoService service;
  RawEchoService raw_service;
  const std::string raw_address = absl::StartsWith(address, "unix:") ? RawEchoOf(address) : address;
  GDN_ASSIGN_OR_RETURN(const auto raw_server, Listen(raw_address, raw_service, credentials, RawEchoOf(port_file)));
  GDN_ASSIGN_OR_RETURN(const auto server, Listen(address, service, credentials, port_file));
  server->Wait();  // SIGTERM's and SIGINT's default action ends the process: there is nothing to save
  return absl::OkStatus();
}

}  // namespace gdn::bench
