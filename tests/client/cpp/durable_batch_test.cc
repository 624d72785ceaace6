#include "client/cpp/durable_batch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "client/cpp/testing/server_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/durable_rows_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_batch_test {
namespace {

using ::testing::HasSubstr;

constexpr int kRows = kDurableRows;
constexpr int kLayers = kDurableLayers;

// The rows of one-row requests of one length, as one.
v1::DecodeRequest Together(const std::vector<v1::DecodeRequest>& rows) {
  v1::DecodeRequest batch = rows.front();
  v1::Tensor* const tensor = batch.mutable_hidden_states()->mutable_hidden_states();
  tensor->set_shape(0, static_cast<int64_t>(rows.size()));
  for (size_t row = 1; row < rows.size(); ++row) {
    tensor->mutable_data()->append(rows[row].hidden_states().hidden_states().data());
  }
  return batch;
}

class DurableBatches : public DurableRows {
 protected:
  static v1::DecodeRequest RowOf(int32_t layer, int seed, int row, int tokens, bool draft) {
    return DecodeOf(layer, 100 * seed + row, tokens, draft);
  }
  // One step of every session: in one call, or one by one.
  void Decode(bool together, int32_t layer, int seed, int tokens = 1, bool draft = false) {
    std::vector<v1::DecodeRequest> rows;
    for (int row = 0; row < kRows; ++row) rows.push_back(RowOf(layer, seed, row, tokens, draft));
    if (!together) {
      for (int row = 0; row < kRows; ++row) {
        GDN_ASSERT_OK_AND_ASSIGN(const auto reply, sessions_[row]->Decode(rows[row]));
        row_outputs_[row] += reply.output().data();
      }
      return;
    }
    GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply, batch_->Decode(Sessions(), Together(rows)));
    ASSERT_EQ(reply.output.shape(0), kRows);
    const size_t bytes = reply.output.data().size() / kRows;
    for (int row = 0; row < kRows; ++row) {
      ASSERT_EQ(reply.rows[row], absl::OkStatus()) << "row " << row << ", layer " << layer << ", seed " << seed;
      row_outputs_[row] += reply.output.data().substr(row * bytes, bytes);
    }
  }
  void Accept(bool together, const std::vector<int32_t>& accepted) {
    if (!together) {
      for (int row = 0; row < kRows; ++row) ASSERT_TRUE(sessions_[row]->AcceptTokens(accepted[row]).ok());
      return;
    }
    GDN_ASSERT_OK_AND_ASSIGN(const auto counts, batch_->AcceptTokens(Sessions(), accepted));
    for (int row = 0; row < kRows; ++row) {
      ASSERT_EQ(counts[row].status(), absl::OkStatus()) << "row " << row;
      EXPECT_EQ(counts[row]->layers(1).token_count(), sessions_[row]->token_count(1));
    }
  }
  // Prompts, decodes, drafts of which another part is accepted in each row, and decodes again.
  void Run(bool together) {
    for (int row = 0; row < kRows; ++row) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        ASSERT_TRUE(sessions_[row]->Prefill(PrefillOf(layer, 4 + row, 10 * layer + row)).ok());
      }
    }
    int seed = 0;
    for (int step = 0; step < 3; ++step) {
      for (int32_t layer = 0; layer < kLayers; ++layer) Decode(together, layer, ++seed);
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) Decode(together, layer, ++seed, /*tokens=*/3, /*draft=*/true);
    Accept(together, {0, 3, 1});
    for (int32_t layer = 0; layer < kLayers; ++layer) Decode(together, layer, ++seed, /*tokens=*/2);
  }
};

TEST_F(DurableBatches, GiveTheBitsOfTheSameSessionsAlone) {
  Start({});
  Run(false);
  const auto outputs = row_outputs_;
  const std::string states = AllStates();
  const int alone = service_->log().steps;
  Start({});
  Run(true);
  EXPECT_TRUE(row_outputs_ == outputs);
  EXPECT_EQ(AllStates(), states);
  EXPECT_EQ(alone - service_->log().steps, (kRows - 1) * (5 * kLayers + 1)) << "one call for all rows";
}

TEST_F(DurableBatches, ApplyEachRowOnceWhateverFailsAtWhicheverCall) {
  Start({});
  Run(false);
  const auto outputs = row_outputs_;
  const std::string states = AllStates();
  for (const Fault fault : kHiddenFaults) {
    for (const int64_t every : {0, 1, 3, 100}) {
      for (int call = 0; call < kRows * kLayers + 5 * kLayers + 1; ++call) {
        SCOPED_TRACE(StrCat("fault ", static_cast<int>(fault), ", call ", call, ", checkpoint every ", every));
        Start({.checkpoint_every_tokens = every});
        service_->Plan(call, fault);
        Run(true);
        EXPECT_TRUE(row_outputs_ == outputs);
        EXPECT_EQ(AllStates(), states);
      }
    }
  }
}

TEST_F(DurableBatches, SurviveRandomFaultsInARow) {
  Start({});
  Run(false);
  const auto outputs = row_outputs_;
  const std::string states = AllStates();
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    Random random(seed);
    Start({.checkpoint_every_tokens = random.NextInt(0, 5)});
    for (int i = 0; i < 8; ++i) {
      service_->Plan(random.NextInt(0, 60), kHiddenFaults[random.NextInt(0, std::size(kHiddenFaults) - 1)]);
    }
    Run(true);
    EXPECT_TRUE(row_outputs_ == outputs);
    EXPECT_EQ(AllStates(), states);
  }
}

TEST_F(DurableBatches, LetARowFailByItselfAndTheOthersGoOn) {
  Start({});
  Run(false);
  ASSERT_TRUE(sessions_[1]->Checkpoint().ok());
  ASSERT_TRUE(client_->DeleteSession("sessions/row-1").ok());  // and its inputs are not kept any more
  std::vector<v1::DecodeRequest> rows;
  for (int row = 0; row < kRows; ++row) rows.push_back(RowOf(0, 50, row, 1, false));
  const int64_t before = sessions_[0]->token_count(0);
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply, batch_->Decode(Sessions(), Together(rows)));
  EXPECT_EQ(reply.rows[0], absl::OkStatus());
  EXPECT_EQ(reply.rows[1].code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(reply.rows[1].message()), HasSubstr("is gone from the server"));
  EXPECT_EQ(reply.rows[2], absl::OkStatus());
  EXPECT_EQ(sessions_[0]->token_count(0), before + 1);
  const size_t bytes = reply.output.data().size() / kRows;
  EXPECT_EQ(reply.output.data().substr(bytes, bytes), std::string(bytes, '\0'));
  EXPECT_NE(reply.output.data().substr(0, bytes), std::string(bytes, '\0'));

  // Another row than the first meets what only its own session knows.
  GDN_ASSERT_OK_AND_ASSIGN(const auto draft, sessions_[2]->Decode(DecodeOf(0, 1, 2, true)));
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply next,
                           batch_->Decode({sessions_[0].get(), sessions_[2].get()}, Together({rows[0], rows[2]})));
  EXPECT_EQ(next.rows[0], absl::OkStatus());
  EXPECT_EQ(ErrorReason(next.rows[1]), reason::kDraftPending);
}

TEST_F(DurableBatches, BringBackOnlyTheRowWhoseStoredStateIsOlderThanKnown) {
  Start({});
  Run(false);
  const std::vector<std::string> outputs = row_outputs_;
  const std::string states = AllStates();
  Start({});
  ASSERT_TRUE(sessions_[1]->Checkpoint().ok());
  Run(true);
  service_->SetStoreBack(sessions_[1]->name(), "");
  Decode(/*together=*/true, 0, 70);
  const int64_t count = sessions_[1]->token_count(0);
  EXPECT_EQ(service_->token_count(sessions_[1]->name(), 0), count);
  EXPECT_EQ(sessions_[1]->stats().recoveries, 1);
  EXPECT_EQ(sessions_[1]->stats().last_lost_tokens, count - 1);
  for (const int row : {0, 2}) EXPECT_EQ(sessions_[row]->stats().recoveries, 0) << row;
  const std::vector<std::string> with_fault = row_outputs_;
  Start({});
  Run(false);
  EXPECT_TRUE(row_outputs_ == outputs && AllStates() == states);
  Decode(/*together=*/false, 0, 70);
  EXPECT_TRUE(row_outputs_ == with_fault);
}

TEST_F(DurableBatches, LetARowFailWhoseSessionCannotKeepMore) {
  Start({.durable_tier = false});
  DurableSessionOptions little = Quick();
  little.max_kept_bytes = 1;
  v1::CreateSessionRequest create;
  create.set_session_id("little");
  create.set_model("models/toy");
  GDN_ASSERT_OK_AND_ASSIGN(sessions_[1], DurableSession::Create(*client_, create, little));
  for (int seed = 0; seed < 3; ++seed) {
    std::vector<v1::DecodeRequest> rows;
    for (int row = 0; row < kRows; ++row) rows.push_back(RowOf(0, seed, row, 1, false));
    GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply, batch_->Decode(Sessions(), Together(rows)));
    EXPECT_EQ(reply.rows[0], absl::OkStatus());
    EXPECT_EQ(reply.rows[2], absl::OkStatus());
    EXPECT_EQ(ErrorReason(reply.rows[1]), seed == 0 ? std::string_view() : reason::kNoDurableTier);
  }
  EXPECT_EQ(sessions_[0]->token_count(0), 3);
  EXPECT_EQ(sessions_[1]->token_count(0), 1);
}

TEST_F(DurableBatches, MakeDueCheckpointsBeforeTheStep) {
  Start({});
  DurableSessionOptions often = Quick();
  often.checkpoint_every_tokens = 2;
  for (int row = 0; row < kRows; ++row) {
    GDN_ASSERT_OK_AND_ASSIGN(sessions_[row], DurableSession::Attach(*client_, sessions_[row]->name(), often));
  }
  for (int seed = 0; seed < 6; ++seed) {
    service_->PlanNext("CheckpointSession", {Fault::kUnavailable});
    Decode(/*together=*/true, 0, seed);
  }
  for (const auto& session : sessions_) {
    EXPECT_EQ(session->token_count(0), 6);
    GDN_ASSERT_OK_AND_ASSIGN(const v1::Session found, client_->GetSession(session->name()));
    EXPECT_EQ(found.layers(0).durable_token_count(), 4);
  }
}

TEST_F(DurableBatches, FinishARowLaterWhoseTimeWasOver) {
  Start({});
  Run(false);
  DurableSessionOptions hasty = Quick();  // one wait is longer than all the time there is
  hasty.overall_timeout = absl::Seconds(30);
  hasty.first_backoff = hasty.longest_backoff = absl::Hours(1);
  DurableBatch batch(*client_, hasty);
  service_->Plan(0, Fault::kLoseReply);
  std::vector<v1::DecodeRequest> rows;
  for (int row = 0; row < kRows; ++row) rows.push_back(RowOf(1, 60, row, 1, false));
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply late, batch.Decode(Sessions(), Together(rows)));
  EXPECT_EQ(late.output.shape_size(), 0);
  for (const absl::Status& status : late.rows) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the last try"));
  }
  EXPECT_EQ(sessions_[0]->Decode(DecodeOf(0, 5)).status().code(), absl::StatusCode::kFailedPrecondition);
  const int64_t counted = service_->token_count("sessions/row-0", 1);
  ASSERT_TRUE(sessions_[0]->Decode(rows[0]).ok());  // alone
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply rest,
                           batch_->Decode({sessions_[2].get(), sessions_[1].get()}, Together({rows[2], rows[1]})));
  EXPECT_TRUE(rest.rows[0].ok() && rest.rows[1].ok());
  EXPECT_EQ(service_->token_count("sessions/row-0", 1), counted) << "it had been applied";
}

TEST_F(DurableBatches, SayThatTheTimeIsOverWhateverTheLastTryFound) {
  Start({});
  Run(false);
  DurableSessionOptions hasty = Quick();  // one wait is longer than all the time there is
  hasty.overall_timeout = absl::Seconds(30);
  hasty.first_backoff = hasty.longest_backoff = absl::Hours(1);
  DurableBatch batch(*client_, hasty);
  service_->Crash();
  for (int row = 0; row < 2; ++row) {  // in its replay
    service_->RefuseNext("Prefill",
                         ServerError(MakeError(absl::StatusCode::kAborted, reason::kEpochMismatch, "another epoch")));
  }
  std::vector<v1::DecodeRequest> rows;
  for (int row = 0; row < kRows; ++row) rows.push_back(RowOf(1, 60, row, 1, false));
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply late, batch.Decode(Sessions(), Together(rows)));
  for (const size_t row : {0, 1}) {
    ExpectError(late.rows[row], absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
    EXPECT_THAT(std::string(late.rows[row].message()), HasSubstr("the last try"));
  }
  EXPECT_EQ(late.rows[2], absl::OkStatus());
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply rest,
                           batch_->Decode({sessions_[0].get(), sessions_[1].get()}, Together({rows[0], rows[1]})));
  for (const absl::Status& status : rest.rows) EXPECT_EQ(status, absl::OkStatus());
}

TEST_F(DurableBatches, AreRefusedAsAWholeWhereTheyMakeNoSense) {
  Start({});
  const v1::DecodeRequest two = Together({DecodeOf(0, 1), DecodeOf(0, 2)});
  DurableSession* const a = sessions_[0].get();
  DurableSession* const b = sessions_[1].get();
  const auto refused = [&](std::vector<DurableSession*> sessions, const v1::DecodeRequest& request) {
    const absl::Status status = batch_->Decode(sessions, request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return ErrorReason(status);
  };
  EXPECT_EQ(refused({}, two), reason::kBatchTooLarge);
  EXPECT_EQ(refused({a, a}, two), reason::kDuplicateSession);
  EXPECT_EQ(refused({a, b, sessions_[2].get()}, two), reason::kInvalidTensorShape);
  v1::DecodeRequest odd = two;
  odd.mutable_hidden_states()->mutable_hidden_states()->mutable_data()->pop_back();
  EXPECT_EQ(refused({a, b}, odd), reason::kInvalidTensorData);
  odd = two;
  odd.add_lengths(1);
  EXPECT_EQ(refused({a, b}, odd), reason::kInvalidLengths);
  odd = two;
  odd.mutable_output_shared()->set_region("region");
  EXPECT_EQ(refused({a, b}, odd), reason::kInvalidSharedRange);
  EXPECT_EQ(ErrorReason(batch_->AcceptTokens({a, b}, {1}).status()), reason::kInvalidLengths);
  const auto other_client = server_->Connect();
  EXPECT_EQ(DurableBatch(*other_client, Quick()).Decode({a, b}, two).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(service_->log().steps, 0);
  GDN_ASSERT_OK_AND_ASSIGN(const auto accepted, batch_->AcceptTokens({a, b}, {0, -1}));
  EXPECT_TRUE(accepted[0].ok());
  EXPECT_EQ(ErrorReason(accepted[1].status()), reason::kTooManyTokens);
}

}  // namespace
}  // namespace gdn::durable_batch_test
