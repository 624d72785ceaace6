// Runs the product's server (server/gdn_server.h) in this process, on the tested backend (tests/support/test_backend.h)
// and a free loopback port, with a stub to call it. If it is destroyed without Drain, it leaves its stores as a killed
// process would.
//
// Thread safety: construct and destroy on one thread; the stub and the parts are safe from any. Ownership: owns
// everything.
//
//   TestServer server({.models = {{"next", GoldenPath("qwen3_next_1")}}});
//   grpc::ClientContext context;
//   server.stub().GetServerInfo(&context, request, &response);
#pragma once

#include <memory>
#include <string>

#include <grpcpp/channel.h>

#include "gdn/v1/service.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "server/gdn_server.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/support/test_backend.h"

namespace gdn {

class TestServer {
 public:
  // Housekeeping always runs promptly. Unless the options say otherwise, states get 256 MiB (96 MiB on the host
  // executor) and no host memory.
  explicit TestServer(GdnServerOptions options = {}, std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/2));
  TestServer(GdnServerOptions options, std::vector<std::unique_ptr<Backend>> backends);

  v1::GdnService::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  std::string address() const;
  GdnServer& server() { return *server_; }
  Batcher& batcher() { return server_->batcher(); }
  // Drains the server as main does on SIGTERM. True if that ended within 10 seconds.
  bool Drain() { return server_->Drain(absl::Seconds(10)); }

 private:
  std::unique_ptr<GdnServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GdnService::Stub> stub_;
};

// Returns the path of tests/golden/NAME in the source tree.
std::string GoldenPath(const std::string& name);

// Return the reason and metadata of an error, from grpc-status-details-bin; empty if there is none.
google::rpc::ErrorInfo ErrorInfoOf(const grpc::Status& status);
google::rpc::ErrorInfo ErrorInfoOf(const google::rpc::Status& status);

}  // namespace gdn
