// The product's server (server/gdn_server.h) in this process, on the backend that the run is about
// (tests/support/test_backend.h) and a free loopback port, and a stub to call it. Destroyed without Drain, it leaves
// what a killed process does.
//
// Thread safety: construct and destroy on one thread; the stub and the parts are safe from any. Ownership: owns
// everything.
//
//   TestServer server({.models = {{"next", GoldenPath("qwen3_next_1")}}});
//   grpc::ClientContext context;
//   server.stub().GetServerInfo(&context, request, &response);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/channel.h>

#include "gdn/v1/service.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "server/gdn_server.h"
#include "tests/server/batcher/engine_gate.h"

namespace gdn {

struct TestServerOptions {
  std::vector<std::pair<std::string, std::string>> models = {};  // name, folder
  int64_t state_bytes = int64_t{256} << 20;
  int64_t host_bytes = 0;
  std::string disk_dir = {};
  std::string redis = {};
  CheckpointPolicy policy = {};
  int64_t stored_reply_bytes = int64_t{1} << 30;
  absl::Duration housekeeping = absl::Milliseconds(20);
  StepLimits limits = {};
  int32_t max_queued_steps = 4096;
  int threads = 2;
  std::function<std::unique_ptr<Backend>()> make_backend = {};  // nothing: MakeTestBackend
};

class TestServer {
 public:
  explicit TestServer(const TestServerOptions& options = {});

  v1::GdnService::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  std::string address() const;
  GdnServer& server() { return *server_; }
  Batcher& batcher() { return server_->batcher(); }
  // As main does on SIGTERM.
  bool Drain() { return server_->Drain(absl::Seconds(10)); }

 private:
  std::unique_ptr<GdnServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GdnService::Stub> stub_;
};

// tests/golden/NAME in the source tree.
std::string GoldenPath(const std::string& name);

// The reason and metadata of an error, from grpc-status-details-bin; empty where it has none.
google::rpc::ErrorInfo ErrorInfoOf(const grpc::Status& status);
google::rpc::ErrorInfo ErrorInfoOf(const google::rpc::Status& status);

}  // namespace gdn
