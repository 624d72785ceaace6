#include "client/cpp/testing/fake_server.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "client/cpp/durable_session.h"
#include "client/cpp/kept_lease.h"
#include "client/cpp/rpc_status.h"
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

TEST(FakeServer, EndsSessionsWithTheirLease) {
  const FakeServer server;
  const auto client = server.Connect();
  v1::OpenLeaseRequest open;
  open.set_lease_id("engine");
  open.mutable_grace()->set_seconds(30);
  GDN_ASSERT_OK_AND_ASSIGN(const auto lease, KeptLease::Open(*client, open));
  EXPECT_EQ(lease->name(), "leases/engine");
  open.mutable_grace()->set_seconds(31);
  ExpectError(client->OpenLease(open).status(), absl::StatusCode::kAlreadyExists, reason::kLeaseExists);
  open.mutable_grace()->set_nanos(-1);
  open.mutable_grace()->set_seconds(1);
  ExpectError(client->OpenLease(open).status(), absl::StatusCode::kInvalidArgument, reason::kInvalidSpec);
  v1::CreateSessionRequest create = ToySession("a");
  create.set_lease("leases/other");
  ExpectError(client->CreateSession(create).status(), absl::StatusCode::kNotFound, reason::kLeaseNotFound);
  create.set_lease(lease->name());
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Session session, client->CreateSession(create));
  EXPECT_EQ(session.lease(), "leases/engine");
  v1::ForkSessionRequest fork;
  fork.set_name("sessions/a");
  fork.add_session_ids("b");
  ASSERT_TRUE(client->ForkSession(fork).ok());
  ASSERT_TRUE(client->CreateSession(ToySession("c")).ok());
  GDN_ASSERT_OK_AND_ASSIGN(const std::vector<v1::Lease> listed, client->ListLeases());
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].sessions(), 2);
  EXPECT_EQ(listed[0].grace().seconds(), 30);
  GDN_ASSERT_OK_AND_ASSIGN(const int64_t ended, lease->End());
  EXPECT_EQ(ended, 2);
  ExpectError(client->GetSession("sessions/b").status(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  EXPECT_TRUE(client->GetSession("sessions/c").ok());
  ExpectError(client->RenewLease(lease->name()).status(), absl::StatusCode::kNotFound, reason::kLeaseNotFound);
}

TEST(FakeServer, KeepsSnapshotsAndTellsOfLostOnes) {
  FakeServer server;
  const auto client = server.Connect();
  ASSERT_TRUE(client->CreateSession(ToySession("a")).ok());
  ASSERT_TRUE(client->Prefill(Prompt("sessions/a", 0)).ok());
  const int64_t seen = server.token_count("sessions/a", 0);
  v1::SnapshotSessionsRequest take;
  for (const char* key : {"k", "l"}) {
    take.add_requests()->set_session("sessions/a");
    take.mutable_requests(take.requests_size() - 1)->set_key(key);
  }
  take.add_requests()->set_session("sessions/none");
  take.mutable_requests(2)->set_key("m");
  GDN_ASSERT_OK_AND_ASSIGN(const v1::SnapshotSessionsResponse taken, client->SnapshotSessions(take));
  EXPECT_EQ(taken.results(0).snapshot().layers(0).token_count(), seen);
  EXPECT_EQ(StatusFromRpc(taken.results(2).error()).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(client->SnapshotSession(take.requests(0)).ok()) << "the same request again";
  v1::SnapshotSessionRequest other = take.requests(0);
  other.set_expected_token_count(seen);
  ExpectError(client->SnapshotSession(other).status(), absl::StatusCode::kAlreadyExists, reason::kSnapshotExists);

  GDN_ASSERT_OK_AND_ASSIGN(const v1::PrefillResponse before, client->Prefill(Prompt("sessions/a", 0)));
  EXPECT_EQ(before.snapshot_loss_mark(), taken.snapshot_loss_mark());
  v1::CreateSessionRequest begin;
  begin.set_session_id("b");
  begin.set_snapshot("k");
  ASSERT_TRUE(client->CreateSession(begin).ok());
  EXPECT_EQ(server.token_count("sessions/b", 0), seen);
  v1::ForkSessionRequest fork;
  fork.set_snapshot("l");
  fork.add_session_ids("c");
  ASSERT_TRUE(client->ForkSession(fork).ok());
  EXPECT_EQ(server.token_count("sessions/c", 0), seen);

  server.EvictSnapshot("k");
  GDN_ASSERT_OK_AND_ASSIGN(const v1::PrefillResponse after, client->Prefill(Prompt("sessions/a", 0)));
  EXPECT_EQ(after.snapshot_loss_mark(), before.snapshot_loss_mark() + 1);
  GDN_ASSERT_OK_AND_ASSIGN(const v1::ListSnapshotsResponse list, client->ListSnapshots(before.snapshot_loss_mark()));
  ASSERT_EQ(list.snapshots_size(), 1);
  EXPECT_EQ(list.snapshots(0).key(), "l");
  ASSERT_EQ(list.lost_size(), 1);
  EXPECT_EQ(list.lost(0).key(), "k");
  EXPECT_FALSE(list.lost_incomplete());
  begin.set_session_id("d");
  ExpectError(client->CreateSession(begin).status(), absl::StatusCode::kNotFound, reason::kSnapshotNotFound);
  GDN_ASSERT_OK_AND_ASSIGN(const v1::DeleteSnapshotsResponse deleted, client->DeleteSnapshots({"l", "k"}));
  EXPECT_EQ(deleted.statuses(0).code(), 0);
  EXPECT_EQ(StatusFromRpc(deleted.statuses(1)).code(), absl::StatusCode::kNotFound);
}

TEST(FakeServer, RefusesOnceAsItWasTold) {
  FakeServer server;
  const auto client = server.Connect();
  const absl::Status full =
      MakeError(absl::StatusCode::kResourceExhausted, reason::kQueueFull, "try later", {{"queue", "3"}});
  for (const char* const method :
       {"CreateSession", "Prefill", "StreamPrefill", "ForkSession", "ExportState", "DeleteSession"}) {
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
  v1::ForkSessionRequest fork;
  fork.set_name("sessions/a");
  fork.add_session_ids("b");
  expect_full(client->ForkSession(fork).status());
  EXPECT_EQ(server.token_count("sessions/b", 0), -1);
  EXPECT_TRUE(client->ForkSession(fork).ok());
  EXPECT_EQ(server.token_count("sessions/b", 0), server.token_count("sessions/a", 0));
  v1::ExportStateRequest state;
  state.set_name("sessions/a");
  expect_full(client->ExportState(state).status());
  EXPECT_TRUE(client->ExportState(state).ok());
  expect_full(client->DeleteSession("sessions/a"));
  EXPECT_TRUE(client->DeleteSession("sessions/a").ok());
}

// A draft of four tokens.
v1::DecodeRequest Draft(const std::string& session, const std::vector<int32_t>& parents) {
  v1::DecodeRequest draft;
  draft.add_sessions(session);
  draft.set_draft(true);
  draft.mutable_draft_parents()->Add(parents.begin(), parents.end());
  *draft.mutable_hidden_states()->mutable_hidden_states() =
      *MakeTensor(std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4}, std::vector<int64_t>{1, 4, 4});
  return draft;
}

TEST(FakeServer, AnswersLikeAServer) {
  const FakeServer server;
  const auto client = server.Connect();
  ASSERT_TRUE(client->CreateSession(ToySession("a")).ok());
  v1::PrefillRequest prompt = Prompt("sessions/a", 0);
  prompt.set_request_id("once");
  ASSERT_TRUE(client->Prefill(prompt).ok());
  ASSERT_TRUE(client->Prefill(Prompt("sessions/a", 0)).ok());
  // A step without an id leaves the stored reply of the one that had one, and its count.
  GDN_ASSERT_OK_AND_ASSIGN(const v1::PrefillResponse again, client->Prefill(prompt));
  EXPECT_EQ(again.token_count(), 2);
  EXPECT_EQ(server.token_count("sessions/a", 0), 4);
  prompt.set_request_id("twice");
  prompt.set_expected_token_count(2);
  const absl::Status count = client->Prefill(prompt).status();
  ExpectError(count, absl::StatusCode::kAborted, reason::kTokenCountMismatch);
  EXPECT_EQ(count.message(), "sessions/a layer 0 has seen 4 tokens, the call expected 2");
  EXPECT_EQ(ErrorMetadata(count)["token_count"], "4");
  ExpectError(client->Prefill(Prompt("sessions/a", 1)).status(), absl::StatusCode::kInvalidArgument,
              reason::kLayerNotGdn);
  ExpectError(client->Prefill(Prompt("a", 0)).status(), absl::StatusCode::kInvalidArgument, reason::kInvalidName);
  ExpectError(client->Decode(Draft("sessions/a", {-1, 0, 0, 4})).status(), absl::StatusCode::kInvalidArgument,
              reason::kValueOutOfRange);
}

TEST(FakeServer, AcceptsDraftsLikeAServer) {
  const FakeServer server;
  const auto client = server.Connect();
  for (const char* const id : {"a", "b"}) ASSERT_TRUE(client->CreateSession(ToySession(id)).ok());
  ASSERT_TRUE(client->Decode(Draft("sessions/a", {-1, 0, 0, 2})).ok());
  v1::AcceptTokensRequest accept;
  const auto refused = [&](std::string_view reason, const std::string& row) {
    const absl::Status status = client->AcceptTokens(accept).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason);
    EXPECT_EQ(ErrorMetadata(status)["session"], row);
    EXPECT_EQ(server.token_count("sessions/a", 0), 0) << "all rows, or none";
  };
  v1::DraftAcceptance* const a = accept.add_acceptances();
  a->set_session("sessions/a");
  a->set_accepted_tokens(3);
  refused(reason::kValueOutOfRange, "sessions/a");  // the first three are no path
  a->set_accepted_tokens(-1);
  refused(reason::kTooManyTokens, "sessions/a");
  a->set_accepted_tokens(0);
  for (const int32_t token : {0, 2, 3}) a->add_path(token);
  v1::DraftAcceptance* const b = accept.add_acceptances();
  b->set_session("sessions/b");
  b->set_accepted_tokens(1);
  refused(reason::kTooManyTokens, "sessions/b");  // it has no draft
  b->set_accepted_tokens(0);
  accept.set_request_id("once");
  for (int i = 0; i < 2; ++i) {
    const absl::Status accepted = client->AcceptTokens(accept).status();
    EXPECT_EQ(accepted, absl::OkStatus());
    EXPECT_EQ(server.token_count("sessions/a", 0), 3);
  }
  a->mutable_path()->RemoveLast();
  ExpectError(client->AcceptTokens(accept).status(), absl::StatusCode::kInvalidArgument, reason::kRequestIdReused);
}

// Adds a row of this kind to a step. Its tokens are (value, value, value, value).
v1::StepRow* AddRow(v1::StepRequest& step, const std::string& session, v1::StepKind kind, int32_t tokens, float value) {
  v1::Tensor* const packed = step.mutable_hidden_states()->mutable_hidden_states();
  const v1::Tensor added =
      *MakeTensor(std::vector<float>(4 * static_cast<size_t>(tokens), value), std::vector<int64_t>{tokens, 4});
  const int64_t before = packed->shape_size() == 0 ? 0 : packed->shape(0);
  const std::string data = packed->data() + added.data();
  *packed = added;
  packed->set_shape(0, before + tokens);
  packed->set_data(data);
  v1::StepRow* const row = step.add_rows();
  row->set_session(session);
  row->set_kind(kind);
  row->set_token_count(tokens);
  return row;
}

TEST(FakeServer, TakesStepsOfEveryKind) {
  const FakeServer server;
  const auto client = server.Connect();
  for (const char* const id : {"a", "b", "c"}) ASSERT_TRUE(client->CreateSession(ToySession(id)).ok());
  v1::StepRequest step;
  AddRow(step, "sessions/a", v1::STEP_KIND_PREFILL, 2, 1);
  AddRow(step, "sessions/b", v1::STEP_KIND_DRAFT, 3, 10);
  AddRow(step, "sessions/c", v1::STEP_KIND_DECODE, 1, 100);
  step.set_request_id("once");
  for (int i = 0; i < 2; ++i) {
    GDN_ASSERT_OK_AND_ASSIGN(const v1::StepResponse reply, client->Step(step));
    EXPECT_EQ(std::vector<int64_t>(reply.token_counts().begin(), reply.token_counts().end()),
              (std::vector<int64_t>{2, 0, 1}));
    GDN_ASSERT_OK_AND_ASSIGN(const std::vector<float> output, TensorToFloats(reply.output(), {{6, 4}}));
    const float expected[] = {1, 2, 10, 20, 30, 100};
    for (size_t token = 0; token < 6; ++token) EXPECT_EQ(output[4 * token], expected[token]) << token;
  }
  step.set_request_id("");
  ExpectError(client->Step(step).status(), absl::StatusCode::kFailedPrecondition, reason::kDraftPending);
  EXPECT_EQ(server.token_count("sessions/a", 0), 2) << "all rows, or none";

  v1::StepRequest next;
  v1::StepRow* const row = AddRow(next, "sessions/b", v1::STEP_KIND_DECODE, 1, 1000);
  row->mutable_accept_before()->set_accepted_tokens(4);
  ExpectError(client->Step(next).status(), absl::StatusCode::kInvalidArgument, reason::kTooManyTokens);
  row->mutable_accept_before()->set_accepted_tokens(2);
  row->set_expected_token_count(2);
  GDN_ASSERT_OK_AND_ASSIGN(const v1::StepResponse accepted, client->Step(next));
  EXPECT_EQ(accepted.token_counts(0), 3);
  GDN_ASSERT_OK_AND_ASSIGN(const std::vector<float> output, TensorToFloats(accepted.output()));
  EXPECT_EQ(output[0], 1020);
  row->set_kind(v1::STEP_KIND_UNSPECIFIED);
  ExpectError(client->Step(next).status(), absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange);
}

TEST(FakeServer, AcceptsTheDraftOfTheStepsLayerOnly) {
  const FakeServer server;
  const auto client = server.Connect();
  ASSERT_TRUE(client->CreateSession(ToySession("a")).ok());
  v1::StepRequest draft;
  v1::StepRow* const tree = AddRow(draft, "sessions/a", v1::STEP_KIND_DRAFT, 3, 1);
  for (const int32_t parent : {-1, 0, 0}) tree->add_draft_parents(parent);
  for (const int32_t layer : {0, 2}) {
    draft.set_layer(layer);
    ASSERT_TRUE(client->Step(draft).ok());
  }
  v1::StepRequest next;
  v1::StepRow* const row = AddRow(next, "sessions/a", v1::STEP_KIND_DECODE, 0, 1);
  for (const int32_t token : {0, 1, 2}) row->mutable_accept_before()->add_path(token);
  ExpectError(client->Step(next).status(), absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange);
  row->mutable_accept_before()->clear_path();
  for (const int32_t token : {0, 2}) row->mutable_accept_before()->add_path(token);
  const absl::Status accepted = client->Step(next).status();
  EXPECT_EQ(accepted, absl::OkStatus());
  EXPECT_EQ(server.token_count("sessions/a", 0), 2);
  EXPECT_EQ(server.token_count("sessions/a", 2), 0);
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Session session, client->GetSession("sessions/a"));
  EXPECT_EQ(session.layers(0).draft_length(), 0);
  EXPECT_EQ(session.layers(1).draft_length(), 3);
}

TEST(FakeServer, AppliesALargeStepOnceAndDoesNotKeepItsReply) {
  FakeServer server;
  const auto client = server.Connect();
  for (const char* const id : {"a", "b"}) ASSERT_TRUE(client->CreateSession(ToySession(id)).ok());
  v1::StepRequest step;
  AddRow(step, "sessions/a", v1::STEP_KIND_PREFILL, 65, 1);
  AddRow(step, "sessions/b", v1::STEP_KIND_PREFILL, 64, 1);
  step.set_request_id("once");
  step.set_partial_ok(true);
  ASSERT_TRUE(client->Step(step).ok());
  GDN_ASSERT_OK_AND_ASSIGN(const v1::StepResponse again, client->Step(step));
  ExpectError(StatusFromRpc(again.row_statuses(0)), absl::StatusCode::kAborted, reason::kReplyDropped);
  EXPECT_EQ(again.row_statuses(1).code(), 0);
  EXPECT_EQ(server.token_count("sessions/a", 0), 65);
  EXPECT_EQ(server.token_count("sessions/b", 0), 64);
}

TEST(FakeServer, TakesStepsInAStream) {
  FakeServer server;
  const auto client = server.Connect();
  ASSERT_TRUE(client->CreateSession(ToySession("a")).ok());
  server.RefuseNext("StreamStep", MakeError(absl::StatusCode::kResourceExhausted, reason::kQueueFull, "try later"));
  v1::StepRequest step;
  AddRow(step, "sessions/a", v1::STEP_KIND_DECODE, 1, 1);
  GDN_ASSERT_OK_AND_ASSIGN(MixedStream stream, client->StreamStep());
  ASSERT_TRUE(stream.Write(step).ok());
  ASSERT_TRUE(stream.Write(step).ok());
  ExpectError(stream.ReadOne().status(), absl::StatusCode::kResourceExhausted, reason::kQueueFull);
  GDN_ASSERT_OK_AND_ASSIGN(const v1::StepResponse reply, stream.ReadOne());
  EXPECT_EQ(reply.token_counts(0), 1);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(server.steps(), 1);
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
