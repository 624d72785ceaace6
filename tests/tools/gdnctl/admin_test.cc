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
  // Sessions whose names have an x are not there.
  grpc::Status DeleteSessions(grpc::ServerContext*, const v1::DeleteSessionsRequest* request,
                              v1::DeleteSessionsResponse* response) override {
    if (!has_many) return {grpc::StatusCode::UNIMPLEMENTED, ""};
    asked += StrCat("[", request->ShortDebugString(), "]");
    for (const std::string& name : request->names()) *response->add_statuses() = StatusOf(name);
    return grpc::Status::OK;
  }
  grpc::Status ResetSessions(grpc::ServerContext*, const v1::ResetSessionsRequest* request,
                             v1::ResetSessionsResponse* response) override {
    asked += StrCat("[", request->ShortDebugString(), "]");
    for (const v1::SessionReset& reset : request->resets()) {
      v1::SessionResult& result = *response->add_results();
      const google::rpc::Status status = StatusOf(reset.name());
      if (status.code() == 0) result.mutable_session()->set_name(reset.name());
      if (status.code() != 0) *result.mutable_error() = status;
    }
    return grpc::Status::OK;
  }
  grpc::Status CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest* request,
                             v1::CreateSessionResponse* response) override {
    asked += request->ShortDebugString();
    response->mutable_session()->set_name("sessions/new");
    return grpc::Status::OK;
  }
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override {
    *response->mutable_model() = ModelOf(request->name());
    return grpc::Status::OK;
  }
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    *response->add_models() = ModelOf("models/qwen");
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
    response->mutable_limits()->set_max_batch(2);
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

  static google::rpc::Status StatusOf(const std::string& name) {
    google::rpc::Status status;
    if (name.find('x') == std::string::npos) return status;
    status.set_code(static_cast<int32_t>(grpc::StatusCode::NOT_FOUND));
    status.set_message("there is none");
    return status;
  }
  static v1::Model ModelOf(const std::string& name) {
    v1::Model model;
    model.set_name(name);
    for (const int32_t layer : {0, 1, 2, 4, 5, 6}) {
      model.add_gdn_layers(layer);
      v1::LayerDigest& digest = *model.add_layer_digests();
      digest.set_layer(layer);
      digest.set_format("BF16");
      digest.set_vector_format("F32");
      digest.set_xxh3_128(StrCat("d16e57", layer));
      digest.set_has_adapter(layer == 5);
    }
    model.add_digest_tensors("A_log");
    model.add_digest_tensors("out_proj.weight");
    return model;
  }

  std::string asked;
  bool has_many = true;
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
    for (const auto& group : {SessionCommands(), LeaseCommands(), StateCommands(), TopCommands(), InfoCommands()}) {
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

TEST_F(AdminCommandLine, DeletesManySessionsInFewCalls) {
  ASSERT_EQ(Run({"sessions", "delete", "a", "b", "sessions/c"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, R"([names: "sessions/a" names: "sessions/b"][names: "sessions/c"])");
  EXPECT_EQ(out_, "deleted sessions/a\ndeleted sessions/b\ndeleted sessions/c\n");
  EXPECT_EQ(Run({"sessions", "delete", "a", "x", "c"}), kExitFailed);
  EXPECT_EQ(out_, "deleted sessions/a\ndeleted sessions/c\n") << "one that fails does not stop the others";
  EXPECT_EQ(err_, "gdnctl: sessions/x: NOT_FOUND: there is none\n");
}

TEST_F(AdminCommandLine, DeletesOneByOneOnAnOlderServerAndForOthers) {
  service_.has_many = false;
  ASSERT_EQ(Run({"sessions", "delete", "a", "b"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, R"(name: "sessions/a"name: "sessions/b")");
  EXPECT_EQ(out_, "deleted sessions/a\ndeleted sessions/b\n");
  service_.has_many = true;
  service_.asked.clear();
  ASSERT_EQ(Run({"sessions", "delete", "a"}), kExitOk) << err_;
  ASSERT_EQ(Run({"sessions", "delete", "--subject=bob", "a", "b"}), kExitOk) << err_;
  EXPECT_THAT(service_.asked, AllOf(HasSubstr(R"("sessions/b" subject: "bob")"), Not(HasSubstr("["))));
}

TEST_F(AdminCommandLine, ResetsSessions) {
  ASSERT_EQ(Run({"sessions", "reset", "--epoch=7", "a"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, R"([resets { name: "sessions/a" session_epoch: 7 }])");
  EXPECT_EQ(out_, "reset sessions/a\n");
  service_.asked.clear();
  EXPECT_EQ(Run({"sessions", "reset", "--epoch=0", "a", "x", "c"}), kExitFailed);
  EXPECT_EQ(service_.asked, R"([resets { name: "sessions/a" } resets { name: "sessions/x" }])"
                            R"([resets { name: "sessions/c" }])");
  EXPECT_EQ(out_, "reset sessions/a\nreset sessions/c\n");
  EXPECT_EQ(err_, "gdnctl: sessions/x: NOT_FOUND: there is none\n");
  EXPECT_EQ(Run({"sessions", "reset", "--epoch=7", "a", "b"}), kExitUsage);
  EXPECT_EQ(Run({"sessions", "reset", "--epoch=-1", "a"}), kExitUsage);
  EXPECT_EQ(Run({"sessions", "reset", "--epoch=0"}), kExitUsage) << "no session is named";
}

TEST_F(AdminCommandLine, CreatesSessionsOfSomeLayers) {
  ASSERT_EQ(Run({"sessions", "create", "--model=qwen", "--layers=0-3,6"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, R"(model: "models/qwen" layers: 0 layers: 1 layers: 2 layers: 6)");
  service_.asked.clear();
  ASSERT_EQ(Run({"sessions", "create", "--model=qwen", "--layers=3"}), kExitOk) << err_;
  EXPECT_EQ(service_.asked, R"(model: "models/qwen" layers: 3)") << "the server says what is wrong";
  service_.asked.clear();
  for (const char* layers : {"3-3", "2-0", "0-1-2", "a", "1-", "-1", "0,,1"}) {
    EXPECT_EQ(Run({"sessions", "create", "--model=qwen", StrCat("--layers=", layers)}), kExitUsage) << layers;
    EXPECT_THAT(err_, HasSubstr("--layers")) << layers;
  }
  EXPECT_EQ(Run({"sessions", "create", "--model=", "--operator=1,1,4,4", "--layers=0"}), kExitUsage);
  EXPECT_EQ(service_.asked, "");
}

TEST_F(AdminCommandLine, ShowsTheDigestsOfNamedModels) {
  ASSERT_EQ(Run({"models", "qwen"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("digests      XXH3-128 of A_log, out_proj.weight\n"),
                          HasSubstr("  layer 4      d16e574  BF16, vectors F32\n"),
                          HasSubstr("  layer 5      d16e575  BF16, vectors F32; without its adapter\n")));
  ASSERT_EQ(Run({"models"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("models/qwen\n"), Not(HasSubstr("d16e57"))));
  ASSERT_EQ(Run({"models", "--json"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr(R"("xxh3_128": "d16e575")"));
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
