// A store that was set back has an older state of the session than its server knew, or none: the session goes on from
// what is there, and takes its steps since then again.
#include <string>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/durable_session_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_rollback_test {
namespace {

using ::testing::HasSubstr;

class DurableRollback : public Durable {
 protected:
  // A prefill and steps of two layers, and the store set back before the last one: to the copy made before the second
  // step, or to nothing.
  void RunPlainWithRollback(bool copy) {
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_EQ(Prefill(layer, 5, 100 + layer), absl::OkStatus());
    for (int step = 0; step < 5; ++step) {
      if (copy && step == 2) {
        ASSERT_TRUE(session_->Checkpoint().ok());
      }
      if (step == 4) service_->SetStoreBack(kName, "");
      for (int32_t layer = 0; layer < 2; ++layer) {
        ASSERT_EQ(Decode(layer, 1000 + step * 2 + layer), absl::OkStatus()) << "step " << step;
      }
    }
  }
};

TEST_F(DurableRollback, GoesOnFromWhatTheStoreHas) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 5); });
  Start({.layers = 2});
  RunPlainWithRollback(/*copy=*/true);
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().recoveries, 1);
  EXPECT_EQ(session_->stats().recreations, 0);
  EXPECT_EQ(session_->stats().rewinds, 0);
  EXPECT_EQ(session_->stats().replayed_steps, 2 * 2);
  EXPECT_EQ(session_->stats().last_lost_tokens, 2);
}

TEST_F(DurableRollback, BeginsAnewWhereTheStoreHasNothing) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 5); });
  Start({.layers = 2});
  RunPlainWithRollback(/*copy=*/false);
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().recoveries, 1);
  EXPECT_EQ(session_->stats().recreations, 1);
  EXPECT_EQ(session_->stats().replayed_steps, 2 + 2 * 4);
}

TEST_F(DurableRollback, IsNotHinderedByFaultsOnTheWayBack) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 5); });
  for (const Fault fault : kHiddenFaults) {
    for (const bool copy : {false, true}) {
      SCOPED_TRACE(StrCat("fault ", static_cast<int>(fault), ", copy ", copy));
      Start({.layers = 2});
      for (const char* call : {"GetSession", "RestoreCheckpoint", "DeleteSession", "CreateSession"}) {
        service_->PlanNext(call, {fault, Fault::kUnavailable, fault});
      }
      service_->Plan(2 + 2 * 4 + 2, fault);  // a step of the replay
      RunPlainWithRollback(copy);
      ExpectLike(truth);
    }
  }
}

TEST_F(DurableRollback, IsMetByCheckpointsAndAcceptancesToo) {
  const auto run = [this](bool faults) {
    ASSERT_EQ(Prefill(0, 5, 1), absl::OkStatus());
    if (faults) service_->SetStoreBack(kName, "");
    ASSERT_TRUE(session_->Checkpoint().ok());
    ASSERT_EQ(Decode(0, 2, /*tokens=*/4, /*draft=*/true), absl::OkStatus());
    if (faults) service_->SetStoreBack(kName, "");
    ASSERT_TRUE(session_->AcceptTokens(3).ok());
    ASSERT_EQ(Decode(0, 3), absl::OkStatus());
  };
  const Truth truth = Undisturbed(1, [&] { run(false); });
  Start({});
  run(true);
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().recoveries, 2);
}

TEST_F(DurableRollback, SaysSoWhereWhatTheStoreHasIsOlderThanTheKeptInputs) {
  Start({});
  RunPlain(1, 1);
  ASSERT_TRUE(session_->Checkpoint("old").ok());
  ASSERT_EQ(Decode(0, 2), absl::OkStatus());
  ASSERT_TRUE(session_->Checkpoint().ok());
  ASSERT_EQ(session_->kept_bytes(), 0);
  service_->SetStoreBack(kName, "old");
  const absl::Status status = Decode(0, 3);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), reason::kEpochMismatch);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has seen 6 tokens of layer 0, and the inputs are kept from"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("DurableSession::Attach"));
  GDN_ASSERT_OK_AND_ASSIGN(session_, DurableSession::Attach(*client_, kName, Quick()));
  EXPECT_EQ(session_->token_count(0), 6);
  EXPECT_EQ(Decode(0, 2), absl::OkStatus());
}

TEST_F(DurableRollback, SaysSoWhereTheStoreHasNothingAndTheFirstInputsAreNotKept) {
  Start({});
  RunPlain(1, 1);
  ASSERT_TRUE(session_->Checkpoint().ok());
  service_->SetStoreBack(kName, "none");
  const absl::Status status = Decode(0, 3);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), reason::kCheckpointNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has lost the state of sessions/chat, no durable copy"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("only the inputs from token 6 on are kept"));
  EXPECT_EQ(service_->log().sessions_created, 1);
}

}  // namespace
}  // namespace gdn::durable_rollback_test
