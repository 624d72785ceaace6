// A DurableSession has limits, cannot hide some errors, and begins and ends as its header says.
#include <string>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/durable_session_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_session_limits_test {
namespace {

using ::testing::HasSubstr;

void ExpectDataLoss(const absl::Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST_F(Durable, ReportsOtherBytesInAReplay) {
  Start({});
  RunPlain(1, 3);
  service_->Crash();
  service_->Plan(2, Fault::kOtherBytes);  // the call that fails, a replayed prefill, a replayed decode
  const absl::Status status = Decode(0, 7);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("replay differed"));
}

TEST_F(Durable, AllowsOtherBytesInAReplayOnOtherNumerics) {
  Start({});
  RunPlain(1, 3);
  service_->Crash();
  service_->SetNumerics("numerics-2");
  service_->Plan(2, Fault::kOtherBytes);
  EXPECT_EQ(Decode(0, 7), absl::OkStatus());
}

TEST_F(Durable, ReportsWhatAReplayMeetsAndCanBeAskedAgain) {
  const Truth truth = Undisturbed(1, [this] { RunPlain(1, 3); });
  Start({});
  RunPlain(1, 2);
  service_->Crash();
  service_->Plan(2, Fault::kRefuse);
  const absl::Status status = Decode(0, 1002);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("while replaying the step of layer 0 after token 5"));
  EXPECT_EQ(Decode(0, 9).code(), absl::StatusCode::kFailedPrecondition);  // another call than the one that failed
  ASSERT_EQ(Decode(0, 1002), absl::OkStatus());
  ExpectLike(truth);
}

TEST_F(Durable, GivesARefusedStepBackAndGoesOn) {
  Start({});
  service_->Plan(0, Fault::kRefuse);
  EXPECT_EQ(ErrorReason(Decode(0, 1)), reason::kNonFiniteInput);
  EXPECT_EQ(Decode(0, 2), absl::OkStatus());
  EXPECT_EQ(session_->token_count(0), 1);
  EXPECT_EQ(ErrorReason(Decode(5, 2)), reason::kLayerNotGdn);
}

TEST_F(Durable, SaysSoWhenTheSessionIsGoneAndItsInputs) {
  Start({});
  RunPlain(1, 3);
  ASSERT_TRUE(session_->Checkpoint().ok());
  ASSERT_TRUE(client_->DeleteSession(kName).ok());
  ExpectDataLoss(Decode(0, 7), "only the inputs from token 8 on are kept");
}

TEST_F(Durable, SaysSoWhenSomebodyElseMovedTheSession) {
  Start({});
  RunPlain(1, 3);
  service_->MoveLayer(kName, 0, 2);
  ExpectDataLoss(Decode(0, 7), "somebody else");
}

TEST_F(Durable, SaysSoWhenTheCountIsNoCallBoundary) {
  Start({.checkpoint_every_tokens = 100});
  RunPlain(1, 3);
  service_->MoveLayer(kName, 0, -6);  // inside the prefill of 5
  ExpectDataLoss(Decode(0, 7), "no step of here ended there");
}

TEST_F(Durable, SaysSoWhenTheServerCameBackFromAnOlderCopyThanItSaid) {
  Start({});
  RunPlain(1, 3);
  ASSERT_TRUE(session_->Checkpoint().ok());
  ASSERT_EQ(Decode(0, 7), absl::OkStatus());
  service_->MoveLayer(kName, 0, -3);
  ExpectDataLoss(Decode(0, 8), "kept from token 8 on");
}

TEST_F(Durable, GivesUpWhenTheTimeIsOverAndFinishesTheSameCallLater) {
  const Truth truth = Undisturbed(1, [this] { RunPlain(1, 1); });
  Start({});
  ASSERT_EQ(Prefill(0, 5, 100), absl::OkStatus());
  DurableSessionOptions options = Quick();  // one wait is longer than all the time there is
  options.overall_timeout = absl::Seconds(30);
  options.first_backoff = options.longest_backoff = absl::Hours(1);
  GDN_ASSERT_OK_AND_ASSIGN(auto hasty, DurableSession::Attach(*client_, kName, options));
  service_->Plan(0, Fault::kLoseReply);
  const absl::Status status = hasty->Decode(DecodeOf(0, 1000)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the last try"));
  EXPECT_EQ(hasty->Decode(DecodeOf(0, 5)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(hasty->Checkpoint().status().code(), absl::StatusCode::kFailedPrecondition);
  GDN_ASSERT_OK_AND_ASSIGN(const auto again, hasty->Decode(DecodeOf(0, 1000)));
  EXPECT_EQ(again.output().data(), truth.outputs.back());
  EXPECT_EQ(service_->States(kName), truth.states);
}

TEST_F(Durable, SaysThatTheTimeIsOverWhateverTheLastTryFound) {
  const Truth truth = Undisturbed(1, [this] { RunPlain(1, 1); });
  Start({.checkpoint_every_tokens = 4});
  DurableSessionOptions options = Quick();  // one wait is longer than all the time there is
  options.overall_timeout = absl::Seconds(30);
  options.first_backoff = options.longest_backoff = absl::Hours(1);
  GDN_ASSERT_OK_AND_ASSIGN(auto hasty, DurableSession::Attach(*client_, kName, options));
  ASSERT_TRUE(hasty->Prefill(PrefillOf(0, 5, 100)).ok());
  service_->Crash();
  const absl::Status checkpoint = hasty->Checkpoint().status();
  ExpectError(checkpoint, absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
  EXPECT_TRUE(WorthAnotherTry(checkpoint));
  ASSERT_TRUE(hasty->Checkpoint().ok());
  service_->Crash();
  const absl::Status step = hasty->Decode(DecodeOf(0, 1000)).status();
  ExpectError(step, absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
  EXPECT_THAT(std::string(step.message()), HasSubstr("is in epoch 3, the call is of epoch 2"));
  GDN_ASSERT_OK_AND_ASSIGN(const auto again, hasty->Decode(DecodeOf(0, 1000)));
  EXPECT_EQ(again.output().data(), truth.outputs.back());
  EXPECT_EQ(service_->States(kName), truth.states);
}

TEST_F(Durable, RefusesOtherCallsUntilARestoreIsAnswered) {
  Start({});
  ASSERT_EQ(Prefill(0, 5, 100), absl::OkStatus());
  ASSERT_TRUE(session_->Checkpoint("five").ok());
  ASSERT_EQ(Decode(0, 1), absl::OkStatus());
  ASSERT_TRUE(session_->Checkpoint("six").ok());
  ASSERT_TRUE(session_->Restore("five").ok());
  ASSERT_EQ(Decode(0, 2), absl::OkStatus());
  // The service goes back to six tokens, and this side, which does not know that, is at six others.
  service_->PlanNext("RestoreCheckpoint", {Fault::kLoseReply});
  service_->RefuseNext("GetSession", grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not now"));
  EXPECT_EQ(session_->Restore("six").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Decode(0, 3).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session_->AcceptTokens(0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session_->ExportState().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(session_->Restore("never").ok());
  EXPECT_EQ(Decode(0, 3).code(), absl::StatusCode::kFailedPrecondition) << "it says nothing of the restore before";
  ASSERT_TRUE(session_->Restore("five").ok());
  const absl::Status moved = Decode(0, 2);
  EXPECT_EQ(moved, absl::OkStatus());
  EXPECT_EQ(outputs_.back(), outputs_[2]) << "of the session at five tokens";
}

TEST_F(Durable, AnUnansweredRestoreIsOverOnceTheSessionHasGone) {
  Start({});
  ASSERT_EQ(Prefill(0, 5, 100), absl::OkStatus());
  ASSERT_TRUE(session_->Checkpoint("five").ok());
  ASSERT_EQ(Decode(0, 1), absl::OkStatus());
  service_->PlanNext("RestoreCheckpoint", {Fault::kLoseReply});
  service_->RefuseNext("GetSession", grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not now"));
  ASSERT_FALSE(session_->Restore("five").ok());
  ASSERT_EQ(Decode(0, 2).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client_->DeleteSession(kName).ok());
  EXPECT_EQ(ErrorReason(session_->Restore("five").status()), reason::kSessionNotFound);
  EXPECT_NE(Decode(0, 2).code(), absl::StatusCode::kFailedPrecondition) << "no restore can be answered any more";
}

TEST_F(Durable, RestoresAgainWhereACrashComesBeforeTheDraftOfTheCopyIsDropped) {
  Start({});
  ASSERT_EQ(Prefill(0, 5, 100), absl::OkStatus());
  ASSERT_EQ(Decode(0, 1, /*tokens=*/3, /*draft=*/true), absl::OkStatus());
  ASSERT_TRUE(session_->Checkpoint("drafting").ok());
  ASSERT_TRUE(session_->AcceptTokens(1).ok());
  service_->Plan(0, Fault::kCrashBefore);
  const absl::Status restored = session_->Restore("drafting").status();
  EXPECT_EQ(restored, absl::OkStatus());
  EXPECT_EQ(session_->token_count(0), 5);
  EXPECT_EQ(Decode(0, 1), absl::OkStatus());
}

TEST_F(Durable, MakesACheckpointWhenTheInputsAreTooMany) {
  DurableSessionOptions options = Quick();
  options.max_kept_bytes = 1000;
  Start({}, options);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Decode(0, i), absl::OkStatus());
  EXPECT_LT(session_->kept_bytes(), 1300);
  service_->Crash();
  ASSERT_EQ(Decode(0, 100), absl::OkStatus());
  EXPECT_EQ(session_->token_count(0), 101);
  EXPECT_EQ(session_->stats().recreations, 0);
}

TEST_F(Durable, RefusesStepsWhenTheInputsAreTooManyAndNothingCanBeMadeDurable) {
  DurableSessionOptions options = Quick();
  options.max_kept_bytes = 1000;
  Start({.durable_tier = false}, options);
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = Decode(0, i);
  ExpectError(status, absl::StatusCode::kResourceExhausted, reason::kNoDurableTier);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 1000"));
}

TEST_F(Durable, MakesACheckpointEverySoManyTokensWhenAsked) {
  DurableSessionOptions options = Quick();
  options.checkpoint_every_tokens = 4;
  Start({}, options);
  RunPlain(1, 20);
  service_->PlanNext("CheckpointSession", {Fault::kCrashBefore});
  for (int i = 0; i < 6; ++i) ASSERT_EQ(Decode(0, 5000 + i), absl::OkStatus());
  EXPECT_EQ(session_->stats().recoveries, 1);
  EXPECT_LE(session_->stats().max_lost_tokens, 4);
  const Truth mine{outputs_, service_->States(kName)};
  const Truth truth = Undisturbed(1, [this] {
    RunPlain(1, 20);
    for (int i = 0; i < 6; ++i) ASSERT_EQ(Decode(0, 5000 + i), absl::OkStatus());
  });
  EXPECT_EQ(mine.outputs, truth.outputs);
  EXPECT_EQ(mine.states, truth.states);
}

TEST_F(Durable, MakesACheckpointOfTheWholeSessionAfterACrash) {
  Start({});
  RunPlain(1, 2);
  ASSERT_TRUE(session_->Checkpoint().ok());
  ASSERT_EQ(Decode(0, 1), absl::OkStatus());
  service_->Crash();
  const auto checkpoint = session_->Checkpoint();  // of all eight tokens, not of the seven that the crash left
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->layers(0).token_count(), 8);
  EXPECT_EQ(checkpoint->epoch(), 2);
}

TEST_F(Durable, StartsFromTheGivenStates) {
  Start({});
  v1::CreateSessionRequest create;
  create.set_session_id("other");
  create.set_model("models/toy");
  create.add_initial_states()->set_token_count(30);
  GDN_ASSERT_OK_AND_ASSIGN(auto session, DurableSession::Create(*client_, create, Quick()));
  ASSERT_TRUE(session->Decode(DecodeOf(0, 1)).ok());
  service_->Crash();
  ASSERT_TRUE(session->Decode(DecodeOf(0, 2)).ok());
  EXPECT_EQ(session->token_count(0), 32);
  EXPECT_EQ(session->stats().replayed_steps, 1);
}

TEST_F(Durable, DoesNotAttachToASessionWithADraft) {
  Start({});
  ASSERT_EQ(Decode(0, 1, 3, true), absl::OkStatus());
  EXPECT_EQ(ErrorReason(DurableSession::Attach(*client_, kName, Quick()).status()), reason::kDraftPending);
  EXPECT_EQ(ErrorReason(DurableSession::Attach(*client_, "sessions/none", Quick()).status()), reason::kSessionNotFound);
}

TEST_F(Durable, IsDeletedOnce) {
  Start({});
  EXPECT_TRUE(session_->Delete().ok());
  EXPECT_TRUE(session_->Delete().ok());
  EXPECT_FALSE(client_->GetSession(kName).ok());
}

TEST_F(Durable, MakesItsOwnIdAndRepeatsALostCreation) {
  Start({});
  service_->PlanNext("CreateSession", {Fault::kLoseReply});
  v1::CreateSessionRequest create;
  create.set_model("models/toy");
  GDN_ASSERT_OK_AND_ASSIGN(auto session, DurableSession::Create(*client_, create, Quick()));
  EXPECT_EQ(session->name().size(), std::string("sessions/").size() + 32);
}

}  // namespace
}  // namespace gdn::durable_session_limits_test
