#include "tests/integration/support/test_server.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <utility>

namespace gdn {

namespace {

std::vector<std::unique_ptr<Backend>> Only(std::unique_ptr<Backend> backend) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::move(backend));
  return backends;
}

// A test's session needs less than a megabyte, 512 small ones 72. The executor poisons each pool and then zeroes it
// lane by lane, so large pools make slow starts.
int64_t StateBytes(const Backend& backend) { return int64_t{backend.info().name == "host" ? 96 : 256} << 20; }

}  // namespace

TestServer::TestServer(GdnServerOptions options, std::unique_ptr<Backend> backend)
    : TestServer(std::move(options), Only(std::move(backend))) {}

TestServer::TestServer(GdnServerOptions options, std::vector<std::unique_ptr<Backend>> backends) {
  options.states.housekeeping = absl::Milliseconds(20);
  if (options.memory.device_state_bytes == 0) options.memory.device_state_bytes = StateBytes(*backends.front());
  if (!options.memory.host_state_bytes.has_value()) options.memory.host_state_bytes = 0;
  server_ = GdnServer::Make(std::move(backends), std::move(options)).value();
  const absl::Status started = server_->Start();
  EXPECT_TRUE(started.ok()) << started;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // servers come and go on ports that are used again
  channel_ = grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::GdnService::NewStub(channel_);
}

std::string TestServer::address() const { return "127.0.0.1:" + std::to_string(server_->port()); }

std::string GoldenPath(const std::string& name) { return std::string(GDN_SOURCE_DIR "/tests/golden/") + name; }

google::rpc::ErrorInfo ErrorInfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) {
    if (detail.UnpackTo(&info)) return info;
  }
  return info;
}

google::rpc::ErrorInfo ErrorInfoOf(const grpc::Status& status) {
  google::rpc::Status rpc;
  return rpc.ParseFromString(status.error_details()) ? ErrorInfoOf(rpc) : google::rpc::ErrorInfo();
}

}  // namespace gdn
