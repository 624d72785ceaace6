// gdnctl's commands for admins.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/synchronization/notification.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::admin_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Keeps what it is asked for.
class AdminService final : public v1::GdnService::Service {
 public:
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override {
    for (const char* owner : {"alice", "bob"}) {
      v1::Session& session = *response->add_sessions();
      session.set_name("sessions/chat");
      session.set_tier(v1::STATE_TIER_DISK);
      if (request->all()) session.set_owner(owner);
      if (!request->all()) break;
    }
    return grpc::Status::OK;
  }
  grpc::Status DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest* request,
                             v1::DeleteSessionResponse*) override {
    asked += request->ShortDebugString();
    return grpc::Status::OK;
  }
  grpc::Status EvictSession(grpc::ServerContext*, const v1::EvictSessionRequest* request,
                            v1::EvictSessionResponse* response) override {
    asked += request->ShortDebugString();
    response->mutable_session()->set_tier(v1::STATE_TIER_REDIS);
    return grpc::Status::OK;
  }
  grpc::Status ListLeases(grpc::ServerContext*, const v1::ListLeasesRequest*,
                          v1::ListLeasesResponse* response) override {
    v1::Lease& lease = *response->add_leases();
    lease.set_name("leases/engine");
    lease.mutable_grace()->set_seconds(90);
    lease.mutable_time_left()->set_nanos(1'500'000);
    lease.set_sessions(3);
    return grpc::Status::OK;
  }
  grpc::Status EndLease(grpc::ServerContext*, const v1::EndLeaseRequest* request,
                        v1::EndLeaseResponse* response) override {
    asked += request->ShortDebugString();
    response->set_ended_sessions(3);
    return grpc::Status::OK;
  }
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    response->add_checkpoints()->set_checkpoint_id(StrCat("of ", request->name()));
    return grpc::Status::OK;
  }
  grpc::Status GetMetrics(grpc::ServerContext*, const v1::GetMetricsRequest*,
                          v1::GetMetricsResponse* response) override {
    response->set_text("gdn_sessions 3\n");
    return grpc::Status::OK;
  }
  // The server is at each step of its drain until it has been asked twice for that.
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    if (!draining) return grpc::Status::OK;
    const int asked_before = looks++;
    response->mutable_drain()->set_sessions(2);
    response->mutable_drain()->set_durable_sessions(std::min(asked_before / 2, 2));
    if (asked_before == 5) all_durable.Notify();
    return asked_before > 5 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone") : grpc::Status::OK;
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request, v1::DrainResponse* response) override {
    if (!may_drain) return {grpc::StatusCode::PERMISSION_DENIED, "for admins"};
    draining = true;
    if (request->wait()) {
      all_durable.WaitForNotification();
      response->mutable_progress()->set_sessions(2);
      response->mutable_progress()->set_durable_sessions(2 - failed);
      response->mutable_progress()->set_failed_sessions(failed);
      response->mutable_progress()->set_ended(true);
    }
    return grpc::Status::OK;
  }

  std::string asked;
  std::atomic<bool> draining = false;
  std::atomic<int> looks = 0;
  bool may_drain = true;
  int failed = 0;
  absl::Notification all_durable;
};

class AdminCommandLine : public ::testing::Test {
 protected:
  AdminCommandLine() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    target_ = StrCat("--target=127.0.0.1:", port);
  }

  int Run(std::vector<std::string> arguments) {
    std::vector<Command> commands = AdminCommands();
    for (const auto& group : {SessionCommands(), LeaseCommands(), StateCommands(), TopCommands()}) {
      commands.insert(commands.end(), group.begin(), group.end());
    }
    arguments.push_back(target_);
    Outcome outcome = RunCommand(commands, arguments);
    out_ = std::move(outcome.out);
    err_ = std::move(outcome.err);
    return outcome.exit_code;
  }

  const absl::FlagSaver flags_;
  AdminService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string target_, out_, err_;
};

TEST_F(AdminCommandLine, ListsEverybodysSessionsOnlyWithAll) {
  ASSERT_EQ(Run({"sessions", "list", "--all"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(ContainsRegex("alice +sessions/chat .* disk "), HasSubstr("bob "), HasSubstr("owner")));
  ASSERT_EQ(Run({"sessions", "--noall"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("sessions/chat"), Not(HasSubstr("alice")), Not(HasSubstr("owner"))));
}

TEST_F(AdminCommandLine, ListsAndEndsLeases) {
  for (const std::vector<std::string>& list : {std::vector<std::string>{"leases"}, {"leases", "list"}}) {
    ASSERT_EQ(Run(list), kExitOk) << err_;
    EXPECT_THAT(out_, ContainsRegex("leases/engine +1m30s +1ms +3\n"));
  }
  ASSERT_EQ(Run({"leases", "end", "engine", "leases/other"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, "name: \"leases/engine\"name: \"leases/other\"");
  EXPECT_EQ(out_, "ended leases/engine and its 3 sessions\nended leases/other and its 3 sessions\n");
  EXPECT_EQ(Run({"leases", "end"}), kExitUsage) << "no lease is named";
}

TEST_F(AdminCommandLine, EndsAndEvictsAnothersSessions) {
  ASSERT_EQ(Run({"sessions", "delete", "--subject=alice", "chat"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, "name: \"sessions/chat\" subject: \"alice\"");
  service_.asked.clear();
  ASSERT_EQ(Run({"sessions", "evict", "--subject=bob", "--tier=disk", "chat"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, "name: \"sessions/chat\" subject: \"bob\" tier: STATE_TIER_DISK");
  EXPECT_EQ(out_, "evicted sessions/chat to redis\n");
  service_.asked.clear();
  ASSERT_EQ(Run({"sessions", "evict", "--subject", "", "--tier", "", "chat"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, "name: \"sessions/chat\"");
  EXPECT_EQ(Run({"sessions", "evict", "--tier=device", "chat"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("expected host, disk or redis"));
  EXPECT_EQ(Run({"sessions", "evict", "--tier", ""}), kExitUsage) << "no session is named";
}

TEST_F(AdminCommandLine, ListsTheCheckpointsOfAllSessions) {
  ASSERT_EQ(Run({"checkpoints", "list", "--all"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("sessions/chat\n"), HasSubstr("of sessions/chat ")));
}

TEST_F(AdminCommandLine, PrintsTheMetrics) {
  ASSERT_EQ(Run({"metrics"}), kExitOk) << err_;
  EXPECT_EQ(out_, "gdn_sessions 3\n");
}

TEST_F(AdminCommandLine, BeginsADrain) {
  ASSERT_EQ(Run({"drain"}), kExitOk) << err_;
  EXPECT_TRUE(service_.draining);
  EXPECT_EQ(service_.looks, 0);
}

TEST_F(AdminCommandLine, WatchesTheDrainThatItBegan) {
  ASSERT_EQ(Run({"drain", "--watch", "--interval=1ms"}), kExitOk) << err_;
  for (const char* line : {" 0 of 2 sessions", " 1 of 2 sessions", " 2 of 2 sessions"}) {
    const size_t first = out_.find(line);
    EXPECT_NE(first, std::string::npos) << line << " in " << out_;
    EXPECT_EQ(out_.find(line, first + 1), std::string::npos) << "each is printed once: " << out_;
  }
  EXPECT_THAT(out_, HasSubstr("drained;"));
}

TEST_F(AdminCommandLine, SaysThatADrainLostSessions) {
  service_.failed = 1;
  EXPECT_EQ(Run({"drain", "--watch", "--interval=1ms"}), kExitFailed);
  EXPECT_THAT(out_, HasSubstr("1 FAILED"));
}

TEST_F(AdminCommandLine, WatchesADrainThatOthersBegan) {
  service_.may_drain = false;
  EXPECT_EQ(Run({"drain", "--watch", "--interval=1ms"}), kExitFailed) << "nobody has begun one";
  EXPECT_THAT(err_, HasSubstr("PERMISSION_DENIED"));
  service_.draining = true;
  EXPECT_EQ(Run({"drain", "--watch", "--interval=1ms"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("0 of 2"), HasSubstr("the server has ended its connections")));
}

}  // namespace
}  // namespace gdn::admin_test
