// A step that has happened and whose reply is no longer stored: the session goes back to before it, and takes it again.
#include <string>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/durable_session_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_rewind_test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 5;  // after a prefill of each of two layers

class DurableRewind : public Durable {
 protected:
  // The fault meets the last step of the run. `checkpoint_at`: before this step, 0 for none. `replay_fault` meets a
  // step of the replay.
  void RunWithLastReplyDropped(int checkpoint_at = 0, std::optional<Fault> replay_fault = std::nullopt) {
    RunSteps(0, checkpoint_at);
    if (checkpoint_at > 0) {
      ASSERT_TRUE(session_->Checkpoint().ok());
    }
    RunSteps(checkpoint_at, kSteps - 1);
    ASSERT_EQ(Decode(0, 1000 + 2 * (kSteps - 1)), absl::OkStatus());
    service_->Plan(0, Fault::kDropReply);
    if (replay_fault.has_value()) service_->Plan(2, *replay_fault);
    ASSERT_EQ(Decode(1, 1001 + 2 * (kSteps - 1)), absl::OkStatus());
  }
  // Runs the steps [from, to) of both layers; before step 0, a prefill of each layer.
  void RunSteps(int from, int to) {
    for (int32_t layer = 0; layer < 2 && from == 0 && to > 0; ++layer)
      ASSERT_EQ(Prefill(layer, 5, 100 + layer), absl::OkStatus());
    for (int step = from; step < to; ++step) {
      for (int32_t layer = 0; layer < 2; ++layer) ASSERT_EQ(Decode(layer, 1000 + 2 * step + layer), absl::OkStatus());
    }
  }
  Truth Undisturbed() {
    return Durable::Undisturbed(2, [this] { RunSteps(0, kSteps); });
  }
};

TEST_F(DurableRewind, GoesBackToTheDurableCopyAndTakesTheStepAgain) {
  const Truth truth = Undisturbed();
  Start({.layers = 2});
  RunWithLastReplyDropped(/*checkpoint_at=*/3);
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().rewinds, 1);
  EXPECT_EQ(session_->stats().recreations, 0);
  EXPECT_EQ(session_->stats().replayed_steps, 2 + 1);
  EXPECT_EQ(session_->stats().max_lost_tokens, 0) << "the server has lost nothing";
}

TEST_F(DurableRewind, BeginsAnewWhereThereIsNoDurableCopy) {
  const Truth truth = Undisturbed();
  for (const bool durable_tier : {false, true}) {
    Start({.layers = 2, .durable_tier = durable_tier});
    RunWithLastReplyDropped();
    ExpectLike(truth);
    EXPECT_EQ(session_->stats().rewinds, 1);
    EXPECT_EQ(session_->stats().recreations, 1);
    EXPECT_EQ(session_->stats().replayed_steps, 2 + 2 * kSteps - 1);
  }
}

TEST_F(DurableRewind, DoesTheSameWhereTheServerHasForgottenTheStepsId) {
  const Truth truth = Undisturbed();
  Start({.layers = 2, .forget_stored_replies = true});
  RunSteps(0, kSteps - 1);
  ASSERT_EQ(Decode(0, 1000 + 2 * (kSteps - 1)), absl::OkStatus());
  service_->Plan(0, Fault::kLoseReply);
  ASSERT_EQ(Decode(1, 1001 + 2 * (kSteps - 1)), absl::OkStatus());
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().rewinds, 1);
}

TEST_F(DurableRewind, TakesTheReplyThatTheDurableCopyStillHas) {
  const Truth truth = Undisturbed();
  Start({.layers = 2, .checkpoint_every_tokens = 1});
  RunWithLastReplyDropped();
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().rewinds, 1);
  EXPECT_EQ(session_->stats().replayed_steps, 0);
}

TEST_F(DurableRewind, BeginsAnewWhereTheDurableCopyHasTheStepAndNotItsReply) {
  const Truth truth = Undisturbed();
  Start({.layers = 2, .checkpoint_every_tokens = 5 + kSteps, .save_no_outputs = true});
  RunSteps(0, kSteps - 1);
  service_->Plan(0, Fault::kDropReply);  // of the step that the checkpoint is made after
  ASSERT_EQ(Decode(0, 1000 + 2 * (kSteps - 1)), absl::OkStatus());
  ASSERT_EQ(Decode(1, 1001 + 2 * (kSteps - 1)), absl::OkStatus());
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().rewinds, 2) << "to the copy, and then to the start";
  EXPECT_EQ(session_->stats().recreations, 1);
}

TEST_F(DurableRewind, IsNotHinderedByFaultsOnTheWayBack) {
  const Truth truth = Undisturbed();
  for (const Fault fault : kHiddenFaults) {
    for (const int checkpoint_at : {0, 3}) {
      SCOPED_TRACE(StrCat("fault ", static_cast<int>(fault), ", checkpoint at ", checkpoint_at));
      Start({.layers = 2});
      for (const char* call : {"RestoreCheckpoint", "DeleteSession", "CreateSession"}) {
        service_->PlanNext(call, {fault, Fault::kUnavailable});
      }
      RunWithLastReplyDropped(checkpoint_at, fault);
      ExpectLike(truth);
    }
  }
}

TEST_F(DurableRewind, DropsADraftWhoseReplyIsGoneAndTakesItAgain) {
  const auto run = [this](bool fault) {
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_EQ(Prefill(layer, 5, 100 + layer), absl::OkStatus());
    ASSERT_EQ(Decode(0, 1, /*tokens=*/4, /*draft=*/true), absl::OkStatus());
    if (fault) service_->Plan(0, Fault::kDropReply);
    ASSERT_EQ(Decode(1, 2, /*tokens=*/4, /*draft=*/true), absl::OkStatus());
    ASSERT_TRUE(session_->AcceptTokens(2).ok());
    ASSERT_EQ(Decode(1, 3), absl::OkStatus());
  };
  const Truth truth = Durable::Undisturbed(2, [&] { run(false); });
  for (const bool forgets : {false, true}) {
    Start({.layers = 2, .forget_stored_replies = forgets});
    run(true);
    ExpectLike(truth);
    EXPECT_EQ(session_->stats().rewinds, 1);
    EXPECT_EQ(session_->stats().recreations, 0);
  }
}

TEST_F(DurableRewind, TakesAStepWithoutTokensAgainWhoseReplyIsGone) {
  const Truth truth = Undisturbed();
  DurableSessionOptions options = Quick();
  options.overall_timeout = absl::Seconds(30);  // or the test would hang
  Start({.layers = 2}, options);
  RunSteps(0, kSteps);
  service_->Plan(0, Fault::kDropReply);
  ASSERT_EQ(Prefill(0, /*tokens=*/0, 1), absl::OkStatus());
  service_->Plan(0, Fault::kDropReply);
  v1::DecodeRequest no_tokens = DecodeOf(1, 2);
  no_tokens.add_lengths(0);
  const absl::Status decoded = session_->Decode(no_tokens).status();
  ASSERT_EQ(decoded, absl::OkStatus());
  EXPECT_EQ(service_->States(kName), truth.states);
  EXPECT_EQ(session_->stats().replayed_steps, 0) << "nothing had moved";
}

TEST_F(DurableRewind, SaysSoWhereThereIsNoWayBack) {
  Start({.layers = 2, .checkpoint_every_tokens = 1, .save_no_outputs = true});
  RunSteps(0, 3);
  service_->Plan(0, Fault::kDropReply);
  const absl::Status status = Decode(0, 7);
  ExpectError(status, absl::StatusCode::kDataLoss, reason::kReplyDropped);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 0 has taken the step after token 8"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("only the inputs from token"));
  GDN_ASSERT_OK_AND_ASSIGN(auto attached, DurableSession::Attach(*client_, kName, Quick()));
  EXPECT_EQ(attached->token_count(0), 9) << "the step is done";
  EXPECT_TRUE(attached->Decode(DecodeOf(0, 8)).ok());
}

TEST_F(DurableRewind, DoesNotDeleteNamedCheckpointsForIt) {
  Start({});
  RunPlain(1, 2);
  ASSERT_TRUE(session_->Checkpoint("mine").ok());
  service_->Plan(0, Fault::kDropReply);
  const absl::Status status = Decode(0, 7);
  ExpectError(status, absl::StatusCode::kDataLoss, reason::kReplyDropped);
  EXPECT_THAT(std::string(status.message()), HasSubstr("named checkpoints"));
  EXPECT_EQ(client_->ListCheckpoints(kName)->size(), 1u);
}

TEST_F(Durable, KeepsTheInputsBeforeANamedCheckpoint) {
  const Truth truth = Undisturbed(1, [this] { RunPlain(1, 4); });
  Start({});
  RunPlain(1, 3);
  ASSERT_TRUE(session_->Checkpoint("mine").ok());
  EXPECT_GT(session_->kept_bytes(), 0);
  service_->Crash();  // comes back from the newest copy without a name, and there is none
  ASSERT_EQ(Decode(0, 1003), absl::OkStatus());
  ExpectLike(truth);
}

TEST_F(Durable, RefusesStepsWhoseBytesAreElsewhereWhenTheyAreReplayed) {
  Start({});
  v1::DecodeRequest input = DecodeOf(0, 1);
  v1::Tensor* const tensor = input.mutable_hidden_states()->mutable_hidden_states();
  tensor->clear_data();
  tensor->mutable_shared()->set_region("region");
  ExpectError(session_->Decode(input).status(), absl::StatusCode::kInvalidArgument, reason::kInvalidSharedRange);
  v1::PrefillRequest output = PrefillOf(0, 3, 1);
  output.mutable_output_shared()->set_region("region");
  ExpectError(session_->Prefill(output).status(), absl::StatusCode::kInvalidArgument, reason::kInvalidSharedRange);
  EXPECT_EQ(Decode(0, 1), absl::OkStatus());
  EXPECT_EQ(session_->token_count(0), 1);
}

}  // namespace
}  // namespace gdn::durable_rewind_test
