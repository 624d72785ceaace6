#include "session_rules/refusals.h"

#include <string>

#include "base/error.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::refusals_test {
namespace {

// A client goes by code, reason and metadata, a user by the message: all of one error.
TEST(Refusals, SayWhatAClientNeedsToGoOn) {
  const absl::Status status = EpochMismatch("a", /*epoch=*/3, /*expected=*/2, /*token_count=*/40);
  ExpectError(status, absl::StatusCode::kAborted, reason::kEpochMismatch);
  EXPECT_EQ(
      status.message(),
      "sessions/a is in epoch 3, the call is of epoch 2: steps that had been answered were lost; send those after "
      "token 40 again");
  EXPECT_EQ(ErrorMetadata(status),
            (ErrorMetadataMap{{"session", "sessions/a"}, {"epoch", "3"}, {"expected", "2"}, {"token_count", "40"}}));
}

TEST(Refusals, AStateThatIsLostIsRestoredOnlyFromADurableCopy) {
  const absl::Status why = absl::InternalError("out of memory");
  const absl::Status rolled_back = StateLost("a", 2, /*durable=*/true, why);
  ExpectError(rolled_back, absl::StatusCode::kDataLoss, reason::kStateRolledBack);
  EXPECT_NE(rolled_back.message().find("(out of memory)"), std::string::npos);
  ExpectError(StateLost("a", 2, /*durable=*/false, why), absl::StatusCode::kDataLoss, reason::kStateLost);
}

TEST(Refusals, ACheckpointThatIsNotThereIsNamedUnlessItIsTheNewest) {
  const absl::Status named = CheckpointNotFound("a", "five");
  ExpectError(named, absl::StatusCode::kNotFound, reason::kCheckpointNotFound);
  EXPECT_EQ(named.message(), "sessions/a has no checkpoint 'five'");
  EXPECT_EQ(CheckpointNotFound("a", "").message(), "sessions/a has no checkpoint yet; call CheckpointSession first");
}

TEST(Refusals, ARowsErrorNamesTheRow) {
  EXPECT_EQ(OfRow(absl::OkStatus(), 1, "sessions/b"), absl::OkStatus());
  const absl::Status status = OfRow(LayerBusy("b", 3), 1, "sessions/b");
  ExpectError(status, absl::StatusCode::kAborted, reason::kSessionBusy);
  EXPECT_EQ(status.message().find("row 1 (sessions/b): sessions/b layer 3 has another step"), 0u);
  EXPECT_EQ(ErrorMetadata(status)["layer"], "3");
}

}  // namespace
}  // namespace gdn::refusals_test
