#include "client/cpp/retry.h"

#include <string>

#include "absl/time/clock.h"
#include "base/error.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::retry_test {
namespace {

absl::Status WithRetryInfo(absl::Status status, int64_t seconds = 0) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(seconds);
  retry.mutable_retry_delay()->set_nanos(1000);
  status.SetPayload("type.googleapis.com/google.rpc.RetryInfo", absl::Cord(retry.SerializeAsString()));
  return status;
}

absl::Status Error(absl::StatusCode code, std::string_view reason) { return MakeError(code, reason, "said"); }

TEST(WorthAnotherTry, IsWhatWaitingHelps) {
  EXPECT_TRUE(WorthAnotherTry(absl::UnavailableError("connection refused")));
  EXPECT_TRUE(WorthAnotherTry(Error(absl::StatusCode::kUnavailable, reason::kServerDraining)));
  EXPECT_TRUE(WorthAnotherTry(absl::DeadlineExceededError("")));
  EXPECT_TRUE(WorthAnotherTry(absl::UnknownError("Stream removed")));
  EXPECT_TRUE(WorthAnotherTry(absl::InternalError("Received RST_STREAM")));
  EXPECT_TRUE(WorthAnotherTry(Error(absl::StatusCode::kAborted, reason::kSessionBusy)));
  EXPECT_TRUE(WorthAnotherTry(WithRetryInfo(Error(absl::StatusCode::kResourceExhausted, reason::kQueueFull))));
}

TEST(WorthAnotherTry, IsNotWhatTheSameRequestMeetsAgain) {
  EXPECT_FALSE(WorthAnotherTry(absl::OkStatus()));
  EXPECT_FALSE(WorthAnotherTry(Error(absl::StatusCode::kInvalidArgument, reason::kNonFiniteInput)));
  EXPECT_FALSE(WorthAnotherTry(Error(absl::StatusCode::kInternal, reason::kInternal)));
  EXPECT_FALSE(WorthAnotherTry(Error(absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge)));
  EXPECT_FALSE(WorthAnotherTry(Error(absl::StatusCode::kAborted, reason::kEpochMismatch)));
  EXPECT_FALSE(WorthAnotherTry(absl::DataLossError("")));
}

TEST(SessionHasMoved, IsByReasonAndCode) {
  EXPECT_TRUE(SessionHasMoved(Error(absl::StatusCode::kAborted, reason::kEpochMismatch)));
  EXPECT_TRUE(SessionHasMoved(Error(absl::StatusCode::kAborted, reason::kTokenCountMismatch)));
  EXPECT_TRUE(SessionHasMoved(Error(absl::StatusCode::kAborted, reason::kReplyDropped)));
  EXPECT_TRUE(SessionHasMoved(Error(absl::StatusCode::kNotFound, reason::kSessionNotFound)));
  EXPECT_TRUE(SessionHasMoved(Error(absl::StatusCode::kFailedPrecondition, reason::kDraftPending)));
  EXPECT_TRUE(SessionHasMoved(Error(absl::StatusCode::kDataLoss, reason::kStateRolledBack)));
  EXPECT_FALSE(SessionHasMoved(Error(absl::StatusCode::kNotFound, reason::kModelNotFound)));
  EXPECT_FALSE(SessionHasMoved(Error(absl::StatusCode::kDataLoss, reason::kTokenCountMismatch)));
  EXPECT_FALSE(SessionHasMoved(absl::OkStatus()));
}

TEST(Backoff, ReturnsTheCauseWhenTheTimeIsOver) {
  Backoff backoff({.first = absl::Microseconds(1), .longest = absl::Microseconds(1), .deadline = absl::InfinitePast()});
  const absl::Status cause = Error(absl::StatusCode::kUnavailable, reason::kServerDraining);
  const absl::Status last = backoff.Wait(cause);
  ExpectError(last, absl::StatusCode::kUnavailable, reason::kServerDraining);
  EXPECT_THAT(std::string(last.message()), ::testing::HasSubstr("said (the last try"));
}

TEST(Backoff, SaysThatTheTimeIsOverWhereTheSessionHasMoved) {
  Backoff backoff({.deadline = absl::InfinitePast()});
  const absl::Status last = backoff.Wait(Error(absl::StatusCode::kAborted, reason::kEpochMismatch));
  ExpectError(last, absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
  EXPECT_TRUE(WorthAnotherTry(last)) << "the same call brings the session back";
}

TEST(Backoff, WaitsAtLeastAsLongAsTheServerAsksButNotLongerThanItsOwnLimit) {
  const absl::Status cause = WithRetryInfo(absl::UnavailableError("later"), 3600);
  Backoff backoff({.first = absl::Microseconds(1), .longest = absl::Milliseconds(20)});
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(backoff.Wait(cause).ok());
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(20));
  EXPECT_TRUE(backoff.Wait(absl::UnavailableError("")).ok());
}

}  // namespace
}  // namespace gdn::retry_test
