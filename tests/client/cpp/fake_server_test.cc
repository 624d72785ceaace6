#include "client/cpp/testing/fake_server.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "client/cpp/durable_session.h"
#include "client/cpp/tensor_codec.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::fake_server_test {
namespace {

v1::CreateSessionRequest ToySession(const std::string& id) {
  v1::CreateSessionRequest create;
  create.set_model("models/toy");
  create.set_session_id(id);
  return create;
}

// Two tokens: (1, 2, 3, 4) and (10, 20, 30, 40).
v1::PrefillRequest Prompt(const std::string& session, int32_t layer) {
  v1::PrefillRequest prompt;
  prompt.set_session(session);
  prompt.set_layer(layer);
  *prompt.mutable_hidden_states()->mutable_hidden_states() =
      *MakeTensor(std::vector<float>{1, 2, 3, 4, 10, 20, 30, 40}, std::vector<int64_t>{2, 4});
  return prompt;
}

TEST(FakeServer, GivesTheSumsThatItsHeaderSays) {
  const FakeServer server;
  const auto client = server.Connect();
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Session session, client->CreateSession(ToySession("")));
  GDN_ASSERT_OK_AND_ASSIGN(const v1::PrefillResponse reply, client->Prefill(Prompt(session.name(), 2)));
  GDN_ASSERT_OK_AND_ASSIGN(const std::vector<float> output, TensorToFloats(reply.output()));
  EXPECT_EQ(output, (std::vector<float>{3, 6, 9, 12, 33, 66, 99, 132}));
  EXPECT_EQ(server.token_count(session.name(), 2), 2);
  EXPECT_EQ(server.token_count(session.name(), 0), 0);
  EXPECT_EQ(server.token_count(session.name(), 1), -1);
  EXPECT_EQ(server.token_count("sessions/other", 0), -1);
  EXPECT_EQ(server.steps(), 1);
}

TEST(FakeServer, IsReachedByItsAddressToo) {
  const FakeServer server;
  const auto client = Client::Connect(server.target());
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Session a, client->CreateSession(ToySession("")));
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Session b, client->CreateSession(ToySession("")));
  EXPECT_NE(a.name(), b.name());
}

TEST(FakeServer, RefusesOnceAsItWasTold) {
  FakeServer server;
  const auto client = server.Connect();
  const absl::Status full =
      MakeError(absl::StatusCode::kResourceExhausted, reason::kQueueFull, "try later", {{"queue", "3"}});
  for (const char* const method : {"CreateSession", "Prefill", "StreamPrefill", "DeleteSession"}) {
    server.RefuseNext(method, full);
  }
  const auto expect_full = [](const absl::Status& status) {
    ExpectError(status, absl::StatusCode::kResourceExhausted, reason::kQueueFull);
    EXPECT_EQ(ErrorMetadata(status)["queue"], "3");
    EXPECT_EQ(status.message(), "try later");
  };
  expect_full(client->CreateSession(ToySession("a")).status());
  ASSERT_TRUE(client->CreateSession(ToySession("a")).ok());
  expect_full(client->Prefill(Prompt("sessions/a", 0)).status());
  EXPECT_EQ(server.token_count("sessions/a", 0), 0);
  EXPECT_TRUE(client->Prefill(Prompt("sessions/a", 0)).ok());
  GDN_ASSERT_OK_AND_ASSIGN(PrefillStream stream, client->StreamPrefill());
  ASSERT_TRUE(stream.Write(Prompt("sessions/a", 0)).ok());
  ASSERT_TRUE(stream.Write(Prompt("sessions/a", 0)).ok());
  const absl::Status refused = stream.ReadOne().status();
  ExpectError(refused, absl::StatusCode::kResourceExhausted, reason::kQueueFull);
  EXPECT_TRUE(stream.ReadOne().ok());
  EXPECT_TRUE(stream.Finish().ok());
  expect_full(client->DeleteSession("sessions/a"));
  EXPECT_TRUE(client->DeleteSession("sessions/a").ok());
}

TEST(FakeServer, HasEachOfItsFaults) {
  struct Case {
    FakeServer::Fault fault;
    int64_t tokens;  // of the step, in the session that is left
  };
  for (const Case& c : {Case{FakeServer::Fault::kUnavailable, 0}, Case{FakeServer::Fault::kLoseReply, 2},
                        Case{FakeServer::Fault::kDropReply, 2}, Case{FakeServer::Fault::kCrashBefore, 0},
                        Case{FakeServer::Fault::kCrashAfter, 2}}) {
    SCOPED_TRACE(static_cast<int>(c.fault));
    FakeServer server({.checkpoint_every_tokens = 1});
    const auto client = server.Connect();
    ASSERT_TRUE(client->CreateSession(ToySession("a")).ok());
    ASSERT_TRUE(client->Prefill(Prompt("sessions/a", 0)).ok());
    server.FailStep(0, c.fault);
    v1::PrefillRequest prompt = Prompt("sessions/a", 0);
    prompt.set_request_id("once");
    EXPECT_EQ(client->Prefill(prompt).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(server.token_count("sessions/a", 0), 2 + c.tokens);
    const absl::Status again = client->Prefill(prompt).status();
    if (c.fault == FakeServer::Fault::kDropReply) {
      ExpectError(again, absl::StatusCode::kAborted, reason::kReplyDropped);
    } else {
      EXPECT_EQ(again, absl::OkStatus());
    }
    EXPECT_EQ(server.token_count("sessions/a", 0), 4);
  }
}

TEST(FakeServer, LosesWhatIsNotDurableInACrash) {
  FakeServer server({.durable_tier = false});
  const auto client = server.Connect();
  DurableSessionOptions quick;
  quick.first_backoff = absl::Microseconds(1);
  GDN_ASSERT_OK_AND_ASSIGN(const auto session, DurableSession::Create(*client, ToySession("a"), quick));
  ASSERT_TRUE(session->Prefill(Prompt("", 0)).ok());
  EXPECT_EQ(session->Checkpoint().status().code(), absl::StatusCode::kFailedPrecondition);
  server.Crash();
  EXPECT_EQ(server.token_count("sessions/a", 0), -1);
  // A durable session makes it anew, and takes its steps again.
  GDN_ASSERT_OK_AND_ASSIGN(const v1::PrefillResponse reply, session->Prefill(Prompt("", 0)));
  EXPECT_EQ(reply.token_count(), 4);
  EXPECT_EQ(session->stats().recreations, 1);
}

}  // namespace
}  // namespace gdn::fake_server_test
