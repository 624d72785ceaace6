// More connections than the server has descriptors for: it stays reachable, says that it is full, and recovers.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/string_cat.h"
#include "gdn/v1/service.grpc.pb.h"
#include "tests/support/assert_ok.h"
#include "tests/support/http_client.h"
#include "tests/support/temp_folder.h"
#include "tools/common/child_process.h"

namespace gdn::connections_test {
namespace {

constexpr int kDescriptors = 200;

class Connections : public ::testing::Test {
 protected:
  // A server that may have few descriptors, of its hard limit too.
  void Start(const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {"/bin/sh",
                                     "-c",
                                     StrCat("ulimit -n ", kDescriptors, " && exec \"$0\" \"$@\""),
                                     GDN_SERVER,
                                     "--backend=null",
                                     StrCat("--listen=127.0.0.1:0,unix:", socket_),
                                     "--http-listen=127.0.0.1:0",
                                     "--shared-memory-dir=",
                                     StrCat("--port-file=", folder_.path(), "/port")};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto started = ChildProcess::Start(argv, log_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_.emplace(*std::move(started));
    GDN_ASSERT_OK_AND_ASSIGN(port_, server_->WaitForPort(folder_.path() + "/port", absl::Minutes(1)));
    std::ifstream file(log_);
    const std::string log{std::istreambuf_iterator<char>(file), {}};
    std::smatch found;
    ASSERT_TRUE(std::regex_search(log, found, std::regex("HTTP on port ([0-9]+)"))) << log;
    http_port_ = std::stoi(found[1]);
  }
  // A client with a connection of its own, which it makes again until the server takes it.
  static grpc::Status Ask(const std::string& target) {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    own.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    const auto stub =
        v1::GdnService::NewStub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), own));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    v1::GetServerInfoResponse response;
    return stub->GetServerInfo(&context, v1::GetServerInfoRequest(), &response);
  }
  void ExpectServes() {
    for (const std::string& target : {StrCat("127.0.0.1:", port_), StrCat("unix:", socket_)}) {
      const grpc::Status status = Ask(target);
      EXPECT_TRUE(status.ok()) << target << ": " << status.error_message();
    }
  }
  std::string Ready() const { return HttpGet(http_port_, "/readyz").body; }
  // Opens twice as many connections as there are descriptors.
  std::vector<HttpConnection> Storm() const {
    std::vector<HttpConnection> storm;
    for (int i = 0; i < 2 * kDescriptors; ++i) storm.emplace_back(port_);
    return storm;
  }

  const TempFolder folder_;
  const std::string log_ = folder_.path() + "/log";
  const std::string socket_ = folder_.path() + "/socket";
  std::optional<ChildProcess> server_;
  int port_ = 0;
  int http_port_ = 0;
};

TEST_F(Connections, OneAddressLeavesRoomForOthers) {
  Start({});
  const std::vector<HttpConnection> storm = Storm();
  EXPECT_EQ(Ready(), "ready\n");
  const grpc::Status status = Ask(StrCat("unix:", socket_));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(Connections, AStormEndsAndTheServerIsThere) {
  Start({"--max-connections=50", "--max-connections-per-peer=50"});
  for (int round = 0; round < 3; ++round) {
    const std::vector<HttpConnection> storm = Storm();
    while (Ready() != "not ready: all 50 connections are taken\n") absl::SleepFor(absl::Milliseconds(1));
  }
  ExpectServes();
  EXPECT_EQ(Ready(), "ready\n");
}

TEST_F(Connections, WithoutDescriptorsItRecovers) {
  Start({"--max-connections=100000", "--max-connections-per-peer=100000"});
  for (int round = 0; round < 3; ++round) Storm();
  ExpectServes();
  while (Ready() != "ready\n") absl::SleepFor(absl::Milliseconds(10));
}

}  // namespace
}  // namespace gdn::connections_test
