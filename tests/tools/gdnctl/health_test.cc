// gdnctl health: its exit code and words for each state of a server.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/string_cat.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::health_test {
namespace {

using ::testing::HasSubstr;

class HealthCommand : public ::testing::Test {
 protected:
  HealthCommand() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    grpc::EnableDefaultHealthCheckService(false);
    target_ = StrCat("127.0.0.1:", port);
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"health", StrCat("--target=", target_)});
    Outcome outcome = RunCommand(HealthCommands(), arguments);
    out_ = std::move(outcome.out);
    err_ = std::move(outcome.err);
    return outcome.exit_code;
  }

  FakeGdnService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string target_, out_, err_;
};

TEST_F(HealthCommand, ExitsWithZeroOnlyWhileTheServerServes) {
  EXPECT_EQ(Run({}), kExitOk);
  EXPECT_EQ(out_, "SERVING\n");
  server_->GetHealthCheckService()->SetServingStatus(false);
  EXPECT_EQ(Run({}), kExitFailed);
  EXPECT_EQ(out_, "NOT_SERVING\n");
}

TEST_F(HealthCommand, AsksForOneService) {
  server_->GetHealthCheckService()->SetServingStatus("gdn.v1.GdnService", false);
  EXPECT_EQ(Run({"gdn.v1.GdnService"}), kExitFailed);
  EXPECT_EQ(out_, "NOT_SERVING\n");
  EXPECT_EQ(Run({"no.such.Service"}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("NOT_FOUND"));
  EXPECT_EQ(Run({"a", "b"}), kExitUsage);
}

TEST_F(HealthCommand, SaysThatNoServerAnswers) {
  server_->Shutdown();
  server_ = nullptr;
  EXPECT_EQ(Run({"--timeout=2s"}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("gdnctl: UNAVAILABLE"));
  Run({"--timeout=60s"});
}

}  // namespace
}  // namespace gdn::health_test
