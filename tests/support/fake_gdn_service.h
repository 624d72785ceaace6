// A GdnService for tests of clients and tools: FakeSessions, and around them the model "models/toy" with GDN layers 0
// and 2 of 3, streams and state files.
//
// Thread safety: as a gRPC service. Ownership: the server it runs in does not own it.
//
//   FakeGdnService service;
//   const LoopbackServer server(&service);
//   auto client = Client::Connect(server.target());
#pragma once

#include <memory>
#include <string>

#include "client/cpp/client.h"
#include "grpcpp/server.h"
#include "tests/support/fake_sessions.h"

namespace gdn {

class FakeGdnService final : public FakeSessions {
 public:
  explicit FakeGdnService(Options options) : FakeSessions(std::move(options)) {}
  FakeGdnService() : FakeGdnService(Options{}) {}

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse*) override;
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*, v1::ListModelsResponse*) override;
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*, v1::GetModelResponse*) override;
  grpc::Status ExportState(grpc::ServerContext*, const v1::ExportStateRequest*,
                           grpc::ServerWriter<v1::ExportStateResponse>*) override;
  grpc::Status ImportState(grpc::ServerContext*, grpc::ServerReader<v1::ImportStateRequest>*,
                           v1::ImportStateResponse*) override;
  // A full snapshot, a delta, another delta and a full one; then the session has ended.
  grpc::Status WatchState(grpc::ServerContext*, const v1::WatchStateRequest*,
                          grpc::ServerWriter<v1::WatchStateResponse>*) override;
  grpc::Status Prefill(grpc::ServerContext*, const v1::PrefillRequest*, v1::PrefillResponse*) override;
  grpc::Status StreamPrefill(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::StreamPrefillResponse, v1::StreamPrefillRequest>*) override;
  grpc::Status Decode(grpc::ServerContext*, const v1::DecodeRequest*, v1::DecodeResponse*) override;
  grpc::Status StreamDecode(grpc::ServerContext*,
                            grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>*) override;

 private:
  grpc::Status RunPrefill(const std::string& call, const v1::PrefillRequest& request, v1::PrefillResponse* response);
  grpc::Status RunDecode(const std::string& call, const v1::DecodeRequest& request, v1::DecodeResponse* response);
  // Calls write(piece) for one piece of the file after the other.
  template <typename Piece, typename Write>
  void CutInPieces(const std::string& file, const Write& write) const;
};

// Serves `service` on a free loopback port until destruction.
class LoopbackServer {
 public:
  explicit LoopbackServer(grpc::Service* service);
  ~LoopbackServer();
  const std::string& target() const { return target_; }
  // A client without a socket between; it must not outlive the server.
  std::unique_ptr<Client> Connect() const;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

}  // namespace gdn
