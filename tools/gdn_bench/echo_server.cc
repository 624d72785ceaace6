#include "tools/gdn_bench/echo_server.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "base/child_process.h"
#include "base/status_macros.h"
#include "client/cpp/client.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace gdn::bench {
namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;  // as gdn_server's

// As many bytes as the request's name says, in pieces, the ordinary way.
class Source final : public grpc::ServerWriteReactor<v1::ExportStateResponse> {
 public:
  explicit Source(const v1::ExportStateRequest& request) : bytes_(kPieceBytes, 'x') {
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

class EchoService final : public v1::GdnService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Decode(grpc::CallbackServerContext* context, const v1::DecodeRequest* request,
                                   v1::DecodeResponse* response) override {
    *response->mutable_output() = request->hidden_states().hidden_states();
    response->mutable_token_counts()->Resize(request->sessions_size(), 0);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerWriteReactor<v1::ExportStateResponse>* ExportState(grpc::CallbackServerContext* /*context*/,
                                                                 const v1::ExportStateRequest* request) override {
    return new Source(*request);
  }
  grpc::ServerReadReactor<v1::ImportStateRequest>* ImportState(grpc::CallbackServerContext* /*context*/,
                                                               v1::ImportStateResponse* /*response*/) override {
    return new Sink;
  }
};

}  // namespace

absl::Status RunEchoServer(const std::string& port_file) {
  EchoService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return absl::UnavailableError("cannot listen on 127.0.0.1");
  GDN_RETURN_IF_ERROR(WritePortFile(port_file, port));
  server->Wait();  // SIGTERM's and SIGINT's default action ends the process: there is nothing to save
  return absl::OkStatus();
}

}  // namespace gdn::bench
