#include "client/cpp/client.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "client/cpp/testing/server_error.h"
#include "gmock/gmock.h"
#include "grpcpp/test/mock_stream.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/mock_stub.h"
#include "tests/support/assert_ok.h"

namespace gdn::client_test {
namespace {

using ::testing::_;
using ::testing::DoAll;
using ::testing::HasSubstr;
using ::testing::InSequence;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::SetArgPointee;

class ClientTest : public ::testing::Test {
 protected:
  explicit ClientTest(ClientOptions options = {}) {
    auto stub = std::make_unique<NiceMock<v1::MockGdnServiceStub>>();
    stub_ = stub.get();
    client_ = std::make_unique<Client>(std::move(stub), std::move(options));
  }

  NiceMock<v1::MockGdnServiceStub>* stub_;  // owned by client_
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, GivesTheServersReply) {
  v1::PrefillResponse response;
  response.set_token_count(12);
  EXPECT_CALL(*stub_, Prefill(_, _, _)).WillOnce([&](auto*, const v1::PrefillRequest& request, auto* out) {
    EXPECT_EQ(request.session(), "sessions/a");
    *out = response;
    return grpc::Status::OK;
  });
  v1::PrefillRequest request;
  request.set_session("sessions/a");
  GDN_ASSERT_OK_AND_ASSIGN(const auto reply, client_->Prefill(request));
  EXPECT_EQ(reply.token_count(), 12);
}

TEST_F(ClientTest, GivesTheServersReasonAndMetadata) {
  EXPECT_CALL(*stub_, Decode(_, _, _))
      .WillOnce(Return(ServerError(MakeError(absl::StatusCode::kAborted, reason::kSessionBusy, "said the server",
                                             {{"session", "sessions/a"}}))));
  const absl::Status status = client_->Decode(v1::DecodeRequest()).status();
  ExpectError(status, absl::StatusCode::kAborted, reason::kSessionBusy);
  EXPECT_EQ(ErrorMetadata(status)["session"], "sessions/a");
  EXPECT_EQ(status.message(), "said the server");
}

TEST_F(ClientTest, SendsStepsAndRemembersAServerWithoutThem) {
  EXPECT_CALL(*stub_, Step(_, _, _))
      .WillOnce([](auto*, const v1::StepRequest& request, auto* out) {
        EXPECT_EQ(request.rows(0).kind(), v1::STEP_KIND_PREFILL);
        out->add_token_counts(request.rows(0).token_count());
        return grpc::Status::OK;
      })
      .WillOnce(Return(ServerError(
          MakeError(absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered, "of something else"))))
      .WillRepeatedly(Return(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")));
  v1::StepRequest step;
  step.add_rows()->set_kind(v1::STEP_KIND_PREFILL);
  step.mutable_rows(0)->set_token_count(7);
  GDN_ASSERT_OK_AND_ASSIGN(const auto reply, client_->Step(step));
  EXPECT_EQ(reply.token_counts(0), 7);
  EXPECT_EQ(client_->Step(step).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(client_->StepIsUnimplemented());
  EXPECT_EQ(client_->Step(step).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(client_->StepIsUnimplemented());
}

TEST_F(ClientTest, NamesTheResourceItAsksFor) {
  EXPECT_CALL(*stub_, GetSession(_, _, _)).WillOnce([](auto*, const v1::GetSessionRequest& request, auto* out) {
    out->mutable_session()->set_name(request.name());
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, GetModel(_, _, _)).WillOnce([](auto*, const v1::GetModelRequest& request, auto* out) {
    out->mutable_model()->set_name(request.name());
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, DeleteSession(_, _, _)).WillOnce([](auto*, const v1::DeleteSessionRequest& request, auto*) {
    EXPECT_EQ(request.name(), "sessions/a");
    return grpc::Status::OK;
  });
  EXPECT_EQ(client_->GetSession("sessions/a")->name(), "sessions/a");
  EXPECT_EQ(client_->GetModel("models/m")->name(), "models/m");
  EXPECT_TRUE(client_->DeleteSession("sessions/a").ok());
}

TEST_F(ClientTest, SetsTheDefaultDeadlineOrTheCallsOwn) {
  std::vector<double> seconds;
  EXPECT_CALL(*stub_, GetServerInfo(_, _, _)).Times(3).WillRepeatedly([&](grpc::ClientContext* context, auto&, auto*) {
    const auto left = context->deadline() - std::chrono::system_clock::now();
    seconds.push_back(std::chrono::duration<double>(left).count());
    return grpc::Status::OK;
  });
  ASSERT_TRUE(client_->GetServerInfo().ok());
  ASSERT_TRUE(client_->GetServerInfo({.timeout = absl::Seconds(5), .affinity = ""}).ok());
  ASSERT_TRUE(client_->GetServerInfo({.timeout = absl::InfiniteDuration(), .affinity = ""}).ok());
  EXPECT_NEAR(seconds[0], 60, 3);
  EXPECT_NEAR(seconds[1], 5, 3);
  EXPECT_GT(seconds[2], 1e6);
}

TEST_F(ClientTest, GivesStreamsNoDeadlineUnlessAsked) {
  EXPECT_CALL(*stub_, StreamDecodeRaw(_)).WillOnce([](grpc::ClientContext* context) {
    EXPECT_GT(context->deadline(), std::chrono::system_clock::now() + std::chrono::hours(24));
    return new NiceMock<grpc::testing::MockClientReaderWriter<v1::StreamDecodeRequest, v1::StreamDecodeResponse>>;
  });
  EXPECT_CALL(*stub_, StreamStepRaw(_)).WillOnce([](grpc::ClientContext* context) {
    EXPECT_GT(context->deadline(), std::chrono::system_clock::now() + std::chrono::hours(24));
    return new NiceMock<grpc::testing::MockClientReaderWriter<v1::StreamStepRequest, v1::StreamStepResponse>>;
  });
  EXPECT_TRUE(client_->StreamDecode().ok());
  EXPECT_TRUE(client_->StreamStep().ok());
}

TEST_F(ClientTest, RefusesMetadataThatCannotBeSent) {
  EXPECT_CALL(*stub_, GetServerInfo(_, _, _)).Times(0);
  const absl::Status status = client_->GetServerInfo({.timeout = {}, .affinity = "a\nb"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("x-gdn-affinity"));
}

TEST_F(ClientTest, ListsAllPages) {
  InSequence in_order;
  for (int page = 0; page < 3; ++page) {
    EXPECT_CALL(*stub_, ListSessions(_, _, _))
        .WillOnce([page](auto*, const v1::ListSessionsRequest& request, auto* out) {
          EXPECT_EQ(request.page_token(), page == 0 ? "" : "after-" + std::to_string(page - 1));
          out->add_sessions()->set_name("sessions/" + std::to_string(page));
          if (page < 2) out->set_next_page_token("after-" + std::to_string(page));
          return grpc::Status::OK;
        });
  }
  GDN_ASSERT_OK_AND_ASSIGN(const auto sessions, client_->ListSessions());
  ASSERT_EQ(sessions.size(), 3);
  EXPECT_EQ(sessions[2].name(), "sessions/2");
}

TEST_F(ClientTest, DoesNotListForeverWhenThePageTokenRepeats) {
  v1::ListSessionsResponse page;
  page.set_next_page_token("again");
  EXPECT_CALL(*stub_, ListSessions(_, _, _))
      .Times(2)
      .WillRepeatedly(DoAll(SetArgPointee<2>(page), Return(grpc::Status::OK)));
  EXPECT_EQ(client_->ListSessions().status().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientTest, SendsWhatIsAskedOfSessionsAndGivesTheReplies) {
  EXPECT_CALL(*stub_, ForkSession(_, _, _)).WillOnce([](auto*, const v1::ForkSessionRequest& request, auto* out) {
    EXPECT_EQ(request.name(), "sessions/a");
    for (const auto& id : request.session_ids()) out->add_sessions()->set_name("sessions/" + id);
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, CheckpointSession(_, _, _))
      .WillOnce([](auto*, const v1::CheckpointSessionRequest& request, auto* out) {
        out->mutable_checkpoint()->set_checkpoint_id(request.checkpoint_id());
        return grpc::Status::OK;
      });
  EXPECT_CALL(*stub_, ListCheckpoints(_, _, _))
      .WillOnce([](auto*, const v1::ListCheckpointsRequest& request, auto* out) {
        EXPECT_EQ(request.name(), "sessions/a");
        out->add_checkpoints()->set_checkpoint_id("before");
        return grpc::Status::OK;
      });
  EXPECT_CALL(*stub_, DeleteCheckpoint(_, _, _)).WillOnce([](auto*, const v1::DeleteCheckpointRequest& request, auto*) {
    EXPECT_EQ(request.name(), "sessions/a");
    EXPECT_EQ(request.checkpoint_id(), "before");
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, RestoreCheckpoint(_, _, _))
      .WillOnce([](auto*, const v1::RestoreCheckpointRequest& request, auto* out) {
        out->mutable_session()->set_name(request.name());
        out->mutable_session()->set_epoch(2);
        return grpc::Status::OK;
      });
  EXPECT_CALL(*stub_, AcceptTokens(_, _, _)).WillOnce([](auto*, const v1::AcceptTokensRequest& request, auto* out) {
    out->add_counts()->set_session(request.acceptances(0).session());
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, PrefetchSessions(_, _, _))
      .WillOnce([](auto*, const v1::PrefetchSessionsRequest& request, auto* out) {
        out->set_started(request.names_size());
        return grpc::Status::OK;
      });
  EXPECT_CALL(*stub_, TraceCalls(_, _, _)).WillOnce([](auto*, const v1::TraceCallsRequest& request, auto* out) {
    out->set_kept(request.keep());
    return grpc::Status::OK;
  });
  v1::ForkSessionRequest fork;
  fork.set_name("sessions/a");
  fork.add_session_ids("b");
  fork.add_session_ids("c");
  GDN_ASSERT_OK_AND_ASSIGN(const auto children, client_->ForkSession(fork));
  ASSERT_EQ(children.size(), 2u);
  EXPECT_EQ(children[1].name(), "sessions/c");
  v1::CheckpointSessionRequest checkpoint;
  checkpoint.set_checkpoint_id("before");
  EXPECT_EQ(client_->CheckpointSession(checkpoint)->checkpoint_id(), "before");
  EXPECT_EQ(client_->ListCheckpoints("sessions/a")->at(0).checkpoint_id(), "before");
  EXPECT_TRUE(client_->DeleteCheckpoint("sessions/a", "before").ok());
  v1::RestoreCheckpointRequest restore;
  restore.set_name("sessions/a");
  EXPECT_EQ(client_->RestoreCheckpoint(restore)->epoch(), 2);
  v1::AcceptTokensRequest accept;
  accept.add_acceptances()->set_session("sessions/a");
  EXPECT_EQ(client_->AcceptTokens(accept)->counts(0).session(), "sessions/a");
  EXPECT_EQ(client_->PrefetchSessions({"sessions/a", "sessions/b"})->started(), 2);
  v1::TraceCallsRequest trace;
  trace.set_keep(7);
  EXPECT_EQ(client_->TraceCalls(trace)->kept(), 7);
}

TEST_F(ClientTest, SendsManySessionsInOneCall) {
  EXPECT_CALL(*stub_, CreateSessions(_, _, _)).WillOnce([](auto*, const v1::CreateSessionsRequest& request, auto* out) {
    for (const auto& create : request.requests()) {
      out->add_results()->mutable_session()->set_name(StrCat("sessions/", create.session_id()));
    }
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, ForkSessions(_, _, _)).WillOnce([](auto*, const v1::ForkSessionsRequest& request, auto* out) {
    for (const auto& fork : request.requests()) out->add_results()->add_sessions()->set_name(fork.session_ids(0));
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, ResetSessions(_, _, _)).WillOnce([](auto*, const v1::ResetSessionsRequest& request, auto* out) {
    out->add_results()->mutable_session()->set_name(request.resets(0).name());
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, DeleteSessions(_, _, _)).WillOnce([](auto*, const v1::DeleteSessionsRequest& request, auto* out) {
    for (const auto& name : request.names()) out->add_statuses()->set_message(name);
    return grpc::Status::OK;
  });
  v1::CreateSessionsRequest create;
  for (const char* id : {"a", "b"}) create.add_requests()->set_session_id(id);
  GDN_ASSERT_OK_AND_ASSIGN(const auto created, client_->CreateSessions(create));
  EXPECT_EQ(created.results(1).session().name(), "sessions/b");
  v1::ForkSessionsRequest fork;
  fork.add_requests()->add_session_ids("child");
  GDN_ASSERT_OK_AND_ASSIGN(const auto forked, client_->ForkSessions(fork));
  EXPECT_EQ(forked.results(0).sessions(0).name(), "child");
  v1::ResetSessionsRequest reset;
  reset.add_resets()->set_name("sessions/a");
  GDN_ASSERT_OK_AND_ASSIGN(const auto done, client_->ResetSessions(reset));
  EXPECT_EQ(done.results(0).session().name(), "sessions/a");
  v1::DeleteSessionsRequest remove;
  for (const char* name : {"sessions/a", "sessions/b"}) remove.add_names(name);
  GDN_ASSERT_OK_AND_ASSIGN(const auto deleted, client_->DeleteSessions(remove));
  EXPECT_EQ(deleted.statuses(1).message(), "sessions/b");
}

}  // namespace
}  // namespace gdn::client_test
