// DurableSession and DurableBatch on the real server: one that is killed and started again, loses replies after their
// steps, and has hardly any room for stored replies; beside one that is never disturbed.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "client/cpp/durable_batch.h"
#include "gmock/gmock.h"
#include "tests/client/cpp/mock_stub.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_server_test {
namespace {

constexpr int kLayers = 2;
constexpr TokenRange kPrompt = {0, 7};
constexpr int64_t kReplyBytes = 4 * 24 * 4;  // of one token: HV x V floats

class DurableServer : public ::testing::Test {
 protected:
  // Calls the server that there is now. The reply of the next call of `lost_` is lost, and `meanwhile_` happens.
  template <typename Request, typename Response>
  auto Forward(const char* name, UnaryMethod<Request, Response> method) {
    return [this, name, method](grpc::ClientContext* context, const Request& request, Response* response) {
      const grpc::Status status = (server_->stub().*method)(context, request, response);
      if (!status.ok() || lost_ != name) return status;
      lost_.clear();
      meanwhile_();
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the connection broke");
    };
  }

  DurableServer() {
    auto stub = std::make_unique<testing::NiceMock<v1::MockGdnServiceStub>>();
    using Stub = v1::GdnService::Stub;
    ON_CALL(*stub, GetServerInfo).WillByDefault(Forward("GetServerInfo", &Stub::GetServerInfo));
    ON_CALL(*stub, CreateSession).WillByDefault(Forward("CreateSession", &Stub::CreateSession));
    ON_CALL(*stub, GetSession).WillByDefault(Forward("GetSession", &Stub::GetSession));
    ON_CALL(*stub, DeleteSession).WillByDefault(Forward("DeleteSession", &Stub::DeleteSession));
    ON_CALL(*stub, CheckpointSession).WillByDefault(Forward("CheckpointSession", &Stub::CheckpointSession));
    ON_CALL(*stub, ListCheckpoints).WillByDefault(Forward("ListCheckpoints", &Stub::ListCheckpoints));
    ON_CALL(*stub, RestoreCheckpoint).WillByDefault(Forward("RestoreCheckpoint", &Stub::RestoreCheckpoint));
    ON_CALL(*stub, AcceptTokens).WillByDefault(Forward("AcceptTokens", &Stub::AcceptTokens));
    ON_CALL(*stub, Prefill).WillByDefault(Forward("Prefill", &Stub::Prefill));
    ON_CALL(*stub, Decode).WillByDefault(Forward("Decode", &Stub::Decode));
    ON_CALL(*stub, Step).WillByDefault([this](auto* context, const auto& request, auto* response) {
      return older_ ? grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")
                    : Forward("Step", &Stub::Step)(context, request, response);
    });
    client_ = std::make_unique<Client>(std::move(stub));
  }

  void LoseReplyOf(const char* call, std::function<void()> meanwhile) {
    lost_ = call;
    meanwhile_ = std::move(meanwhile);
  }

  // Without a disk nothing is durable. A server that was there is killed: what it had not made durable is lost.
  void Start(bool disk, int64_t stored_reply_bytes = 1 << 20, int64_t checkpoint_every_tokens = 0) {
    options_ = {};
    if (disk) options_.states.disk.directory = folder_.path();
    options_.memory.stored_reply_bytes = stored_reply_bytes;
    options_.states.policy.every_tokens = checkpoint_every_tokens;
    KillAndStart();
    caller_ = std::make_unique<Caller>(*server_);
  }
  void KillAndStart() {
    server_ = nullptr;  // frees the folder
    server_ = std::make_unique<TestServer>(options_);
    caller_ = std::make_unique<Caller>(*server_);
  }
  // The only stored reply that there is room for becomes another session's.
  void DropStoredReplies() {
    const std::string id = StrCat("other-", others_++);
    ASSERT_TRUE(feed_.Create(*caller_, id).ok());
    ASSERT_TRUE(caller_->Decode(WithId(feed_.Decode({id}, TokenRange{0, 1}), "x")).ok());
  }

  std::unique_ptr<DurableSession> Make(const std::string& id) {
    auto session = DurableSession::Create(*client_, feed_.Creation(id), quick_);
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE(feed_.Create(steady_, id).ok());
    return session.ok() ? *std::move(session) : nullptr;
  }
  // The prompt of all layers, on both servers.
  void Prompt(DurableSession& session, const std::string& id) {
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(session.Prefill(feed_.Prefill(id, kPrompt, layer)).ok());
      ASSERT_TRUE(steady_.Prefill(feed_.Prefill(id, kPrompt, layer)).ok());
    }
  }
  // One token of a layer, compared with the steady server's.
  void Step(DurableSession& session, const std::string& id, int64_t token, int layer = 0) {
    GDN_ASSERT_OK_AND_ASSIGN(const v1::DecodeResponse reply,
                             session.Decode(feed_.Decode({id}, TokenRange{token, 1}, layer)));
    EXPECT_TRUE(reply.output().data() == feed_.DecodeAll(steady_, id, {token, 1}, layer))
        << id << " token " << token << " layer " << layer;
  }
  void ExpectSameStates(const std::vector<std::string>& ids) {
    for (const std::string& id : ids) EXPECT_EQ(caller_->State(id), steady_.State(id)) << id;
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(kLayers);
  const DurableSessionOptions quick_ = {.first_backoff = absl::Microseconds(1),
                                        .longest_backoff = absl::Milliseconds(1)};
  TestServer steady_server_;
  const Caller steady_{steady_server_};
  GdnServerOptions options_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Caller> caller_;
  std::unique_ptr<Client> client_;
  bool older_ = false;  // the server does not know Step
  std::string lost_;
  std::function<void()> meanwhile_;
  int others_ = 0;
};

TEST_F(DurableServer, AReplyThatWasLostAndDroppedComesFromTheDurableCopy) {
  Start(/*disk=*/true, kReplyBytes);
  const auto session = Make("a");
  ASSERT_NO_FATAL_FAILURE(Prompt(*session, "a"));
  for (int64_t token = kPrompt.count; token < 20; ++token) {  // over a fold
    if (token == 12) {
      ASSERT_TRUE(session->Checkpoint().ok());
    }
    if (token == 18) LoseReplyOf("Decode", [this] { DropStoredReplies(); });
    for (int layer = 0; layer < kLayers; ++layer) ASSERT_NO_FATAL_FAILURE(Step(*session, "a", token, layer));
  }
  EXPECT_EQ(session->stats().rewinds, 1);
  EXPECT_EQ(session->stats().recreations, 0);
  EXPECT_EQ(session->stats().replayed_steps, 2 * (18 - 12));
  ExpectSameStates({"a"});
}

TEST_F(DurableServer, AReplyThatWasLostAndDroppedComesFromTheStartWhereNothingIsDurable) {
  for (const bool disk : {false, true}) {
    Start(disk, kReplyBytes);
    const std::string id = StrCat("a-", disk);
    const auto session = Make(id);
    ASSERT_NO_FATAL_FAILURE(Prompt(*session, id));
    for (int64_t token = kPrompt.count; token < 12; ++token) ASSERT_NO_FATAL_FAILURE(Step(*session, id, token));
    LoseReplyOf("Decode", [this] { DropStoredReplies(); });
    ASSERT_NO_FATAL_FAILURE(Step(*session, id, 12));
    EXPECT_EQ(session->stats().rewinds, 1);
    EXPECT_EQ(session->stats().recreations, 1);
    ASSERT_NO_FATAL_FAILURE(Step(*session, id, 13));
    ExpectSameStates({id});
  }
}

TEST_F(DurableServer, APrefillsReplyThatWasDroppedComesAgain) {
  Start(/*disk=*/true, kReplyBytes);
  const auto session = Make("a");
  LoseReplyOf("Prefill", [this] { DropStoredReplies(); });
  ASSERT_NO_FATAL_FAILURE(Prompt(*session, "a"));
  EXPECT_EQ(session->stats().rewinds, 1);
  ASSERT_NO_FATAL_FAILURE(Step(*session, "a", kPrompt.count));
  ExpectSameStates({"a"});
}

TEST_F(DurableServer, NamedCheckpointsAreNotDeletedForAReply) {
  Start(/*disk=*/true, kReplyBytes);
  const auto session = Make("a");
  ASSERT_NO_FATAL_FAILURE(Prompt(*session, "a"));
  ASSERT_TRUE(session->Checkpoint("mine").ok());
  LoseReplyOf("Decode", [this] { DropStoredReplies(); });
  const absl::Status status = session->Decode(feed_.Decode({"a"}, TokenRange{kPrompt.count, 1})).status();
  ExpectError(status, absl::StatusCode::kDataLoss, reason::kReplyDropped);
  ASSERT_REPLY(const auto named, caller_->Checkpoints("a"));
  EXPECT_EQ(named.checkpoints_size(), 1);
}

// Rows of several sessions on both servers.
class DurableServerBatch : public DurableServer {
 protected:
  void MakeRows(int rows) {
    ids_ = SessionIds(rows);
    for (int row = 0; row < rows; ++row) {
      sessions_.push_back(Make(ids_[row]));
      ASSERT_NO_FATAL_FAILURE(Prompt(*sessions_.back(), ids_[row]));
    }
  }
  std::vector<DurableSession*> Sessions() const {
    std::vector<DurableSession*> sessions;
    for (const auto& session : sessions_) sessions.push_back(session.get());
    return sessions;
  }
  // The row's token of a step: other ones than its neighbours'.
  static TokenRange TokenOf(int64_t step, size_t row, int64_t count = 1) {
    return {kPrompt.count + step * 8 + static_cast<int64_t>(row), count};
  }
  // A step of all rows, each of which has to be the steady server's bytes. Row i has lengths[i] tokens.
  void StepAll(int64_t step, int layer, const std::vector<int64_t>& lengths) {
    std::vector<TokenRange> ranges;
    for (size_t row = 0; row < ids_.size(); ++row) ranges.push_back(TokenOf(step, row, lengths[row]));
    GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply,
                             batch_.Decode(Sessions(), feed_.Decode(ids_, ranges, layer)));
    for (size_t row = 0; row < ids_.size(); ++row) {
      ASSERT_EQ(reply.rows[row], absl::OkStatus()) << "row " << row << " step " << step;
      EXPECT_TRUE(RowTokens(reply.output, static_cast<int64_t>(row), lengths[row]) ==
                  feed_.DecodeAll(steady_, ids_[row], ranges[row], layer))
          << "row " << row << " step " << step << " layer " << layer;
    }
  }

  std::vector<std::string> ids_;
  std::vector<std::unique_ptr<DurableSession>> sessions_;
  DurableBatch batch_{*client_, quick_};
};

TEST_F(DurableServerBatch, EveryRowIsOneOfAnUndisturbedServerWhateverIsKilled) {
  Start(/*disk=*/true, 1 << 20, /*checkpoint_every_tokens=*/5);
  ASSERT_NO_FATAL_FAILURE(MakeRows(4));
  for (int64_t step = 0; step < 30; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) {
      // Between two layers, between two steps, and after a step whose reply is lost with the server.
      if (step % 7 == 3 && layer == 1) KillAndStart();
      if (step % 7 == 5 && layer == 0) KillAndStart();
      if (step % 7 == 6 && layer == 1) LoseReplyOf("Decode", [this] { KillAndStart(); });
      if (step % 7 == 1 && layer == 1) LoseReplyOf("Decode", [] {});
      ASSERT_NO_FATAL_FAILURE(StepAll(step, layer, {1, 2, 1, 3}));
    }
  }
  ExpectSameStates(ids_);
  int64_t replayed = 0;
  for (const auto& session : sessions_) replayed += session->stats().replayed_steps;
  EXPECT_GT(replayed, 0);
}

TEST_F(DurableServerBatch, SessionsWithoutADurableCopyAreMadeAnewTogether) {
  Start(/*disk=*/false);
  ASSERT_NO_FATAL_FAILURE(MakeRows(3));
  for (int64_t step = 0; step < 6; ++step) {
    if (step == 4) KillAndStart();
    ASSERT_NO_FATAL_FAILURE(StepAll(step, 0, {1, 1, 1}));
  }
  for (const auto& session : sessions_) EXPECT_EQ(session->stats().recreations, 1);
  ExpectSameStates(ids_);
}

TEST_F(DurableServerBatch, RowsWhoseRepliesWereDroppedGoBackAndTheOthersAreAnswered) {
  for (const bool disk : {false, true}) {
    Start(disk, 2 * kReplyBytes);  // of four rows, two keep their replies
    sessions_.clear();
    ids_.clear();
    ASSERT_NO_FATAL_FAILURE(MakeRows(4));
    for (int64_t step = 0; step < 4; ++step) {
      if (step == 2 && disk) {
        for (const auto& session : sessions_) ASSERT_TRUE(session->Checkpoint().ok());
      }
      if (step == 3) LoseReplyOf("Decode", [] {});
      ASSERT_NO_FATAL_FAILURE(StepAll(step, 0, {1, 1, 1, 1}));
    }
    int64_t rewinds = 0;
    for (const auto& session : sessions_) {
      rewinds += session->stats().rewinds;
      EXPECT_EQ(session->stats().recreations, disk ? 0 : session->stats().rewinds);
    }
    EXPECT_EQ(rewinds, 2);
    ExpectSameStates(ids_);
    for (const std::string& id : ids_) ASSERT_TRUE(steady_.Delete(id).ok());
    for (const auto& session : sessions_) ASSERT_EQ(session->Delete(), absl::OkStatus());
  }
}

TEST_F(DurableServerBatch, ARowThatCannotBeMendedFailsAloneAndTheOthersGoOn) {
  Start(/*disk=*/true);
  ASSERT_NO_FATAL_FAILURE(MakeRows(3));
  ASSERT_TRUE(sessions_[1]->Checkpoint().ok());  // the inputs before it are forgotten
  ASSERT_TRUE(caller_->Delete(ids_[1]).ok());
  std::vector<TokenRange> ranges;
  for (size_t row = 0; row < ids_.size(); ++row) ranges.push_back(TokenOf(0, row));
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply, batch_.Decode(Sessions(), feed_.Decode(ids_, ranges)));
  ExpectError(reply.rows[1], absl::StatusCode::kDataLoss, reason::kSessionNotFound);
  for (const size_t row : {0, 2}) {
    EXPECT_EQ(reply.rows[row], absl::OkStatus());
    EXPECT_TRUE(RowTokens(reply.output, static_cast<int64_t>(row), 1) ==
                feed_.DecodeAll(steady_, ids_[row], ranges[row]));
  }
  ExpectSameStates({ids_[0], ids_[2]});
}

TEST_F(DurableServerBatch, DraftsAreTakenAndAcceptedOnceForAllRows) {
  Start(/*disk=*/true, 1 << 20, /*checkpoint_every_tokens=*/6);
  ASSERT_NO_FATAL_FAILURE(MakeRows(3));
  const std::vector<int32_t> accepted = {3, 0, 2};
  for (int64_t step = 0; step < 8; ++step) {
    std::vector<TokenRange> ranges;
    for (size_t row = 0; row < ids_.size(); ++row) ranges.push_back(TokenOf(step, row, 3));
    for (int layer = 0; layer < kLayers; ++layer) {
      if (step % 4 == 1 && layer == 1) KillAndStart();
      GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply,
                               batch_.Decode(Sessions(), feed_.Draft(ids_, ranges, layer)));
      for (const absl::Status& status : reply.rows) ASSERT_EQ(status, absl::OkStatus());
    }
    if (step % 4 == 2) KillAndStart();
    if (step % 4 == 3) LoseReplyOf("AcceptTokens", [this] { KillAndStart(); });
    if (step % 4 == 0) LoseReplyOf("AcceptTokens", [] {});
    GDN_ASSERT_OK_AND_ASSIGN(const auto counts, batch_.AcceptTokens(Sessions(), accepted));
    for (size_t row = 0; row < ids_.size(); ++row) {
      ASSERT_EQ(counts[row].status(), absl::OkStatus()) << "row " << row << " step " << step;
      for (int layer = 0; layer < kLayers; ++layer) {
        feed_.DecodeAll(steady_, ids_[row], {ranges[row].first, accepted[row]}, layer);
      }
    }
  }
  ExpectSameStates(ids_);
}

// One row decodes, one drafts and accepts in the same step, one prefills.
TEST_F(DurableServerBatch, RowsOfEveryKindAreThoseOfAnUndisturbedServerWhateverIsKilled) {
  for (const bool older : {false, true}) {
    older_ = older;
    Start(/*disk=*/true, 1 << 20, /*checkpoint_every_tokens=*/6);
    sessions_.clear();
    ids_.clear();
    ASSERT_NO_FATAL_FAILURE(MakeRows(3));
    const char* const lost = older ? "Decode" : "Step";
    for (int64_t step = 0; step < 9; ++step) {
      std::vector<FeedPart> parts = {{.id = ids_[0], .range = TokenOf(step, 0)},
                                     {.id = ids_[1], .range = TokenOf(step, 1, 3), .kind = v1::STEP_KIND_DRAFT},
                                     {.id = ids_[2], .range = TokenOf(step, 2, 4), .kind = v1::STEP_KIND_PREFILL}};
      if (step > 0) parts[1].accept = 2;
      for (int layer = 0; layer < kLayers; ++layer) {
        if (step % 4 == 1 && layer == 1) KillAndStart();
        if (step % 4 == 2 && layer == 0) LoseReplyOf(lost, [this] { KillAndStart(); });
        if (step % 4 == 3) LoseReplyOf(lost, [] {});
        GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply, batch_.Step(Sessions(), feed_.Step(parts, layer)));
        for (const absl::Status& status : reply.rows) ASSERT_EQ(status, absl::OkStatus()) << "step " << step;
        // The steady server decodes what was accepted.
        const std::string alone = feed_.DecodeAll(steady_, ids_[0], parts[0].range, layer);
        if (step > 0) feed_.DecodeAll(steady_, ids_[1], TokenOf(step - 1, 1, 2), layer);
        ASSERT_REPLY(const auto prefilled, steady_.Prefill(feed_.Prefill(ids_[2], parts[2].range, layer)));
        EXPECT_TRUE(reply.output.data().substr(0, alone.size()) == alone) << "step " << step << " layer " << layer;
        EXPECT_TRUE(reply.output.data().substr(4 * alone.size()) == prefilled.output().data()) << "step " << step;
      }
    }
    ASSERT_TRUE(sessions_[1]->AcceptTokens(0).ok());
    ExpectSameStates(ids_);
    for (const std::string& id : ids_) ASSERT_TRUE(steady_.Delete(id).ok());
    for (const auto& session : sessions_) ASSERT_EQ(session->Delete(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace gdn::durable_server_test
