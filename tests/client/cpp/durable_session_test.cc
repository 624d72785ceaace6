#include "client/cpp/durable_session.h"

#include <algorithm>

#include "base/error.h"
#include "base/string_cat.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/durable_session_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_session_test {
namespace {

TEST_F(Durable, AnswersEachStepOnceWhereNothingFails) {
  Start({.layers = 2});
  RunPlain(2, 3);
  EXPECT_EQ(service_->log().steps, 8);
  EXPECT_EQ(session_->token_count(0), 8);
  EXPECT_EQ(session_->token_count(7), -1);
  EXPECT_EQ(session_->stats().retries, 0);
}

TEST_F(Durable, GivesTheUninterruptedOutputsWhateverFailsAtWhicheverCall) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 6); });
  ForEachFault(/*calls=*/14, /*checkpoint_every=*/{0, 1, 4, 100}, [&](int64_t every) {
    RunPlain(2, 6);
    ExpectLike(truth);
    EXPECT_GT(session_->stats().retries, 0);
    if (every > 0) {
      EXPECT_LE(session_->stats().max_lost_tokens, std::max<int64_t>(every, 5));
    }
  });
}

TEST_F(Durable, TakesAStoredReplyWhenTheReplyWasLost) {
  Start({});
  ASSERT_EQ(Prefill(0, 5, 1), absl::OkStatus());
  service_->Plan(0, Fault::kLoseReply);
  ASSERT_EQ(Decode(0, 2), absl::OkStatus());
  EXPECT_EQ(session_->token_count(0), 6);
  EXPECT_EQ(session_->stats().recoveries, 0);
  EXPECT_EQ(session_->stats().replayed_steps, 0);
}

TEST_F(Durable, TakesAStoredReplyThatCameBackWithTheCheckpoint) {
  Start({.checkpoint_every_tokens = 1});
  ASSERT_EQ(Prefill(0, 5, 1), absl::OkStatus());
  service_->Plan(0, Fault::kCrashAfter);  // applied, durable, and the reply is lost with the server
  ASSERT_EQ(Decode(0, 2), absl::OkStatus());
  EXPECT_EQ(session_->token_count(0), 6);
  ASSERT_EQ(Decode(0, 3), absl::OkStatus());  // hears of the new epoch
  EXPECT_EQ(session_->token_count(0), 7);
  EXPECT_EQ(session_->stats().recoveries, 1);
  EXPECT_EQ(session_->stats().replayed_steps, 0);
  EXPECT_EQ(session_->stats().max_lost_tokens, 0);
}

TEST_F(Durable, ReplaysOnlyWhatTheCheckpointLacksAndLayerByLayer) {
  const auto run = [this] { RunPlain(3, 7); };
  const Truth truth = Undisturbed(3, run);
  Start({.layers = 3});
  RunPlain(3, 4);
  ASSERT_TRUE(session_->Checkpoint().ok());
  EXPECT_EQ(session_->kept_bytes(), 0);
  for (int step = 4; step < 7; ++step) {
    // Layers are apart when the server dies: the first has lost a step more than the others.
    for (int32_t layer = 0; layer < 3; ++layer) {
      if (step == 6 && layer == 1) service_->Crash();
      ASSERT_EQ(Decode(layer, 1000 + step * 3 + layer), absl::OkStatus());
    }
  }
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().recoveries, 1);
  EXPECT_EQ(session_->stats().replayed_steps, 3 + 2 + 2);
  EXPECT_EQ(session_->stats().replayed_tokens, 7);
  EXPECT_EQ(session_->stats().max_lost_tokens, 3);
}

TEST_F(Durable, MakesTheSessionAgainWhenItIsGoneAndReplaysFromTheStart) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 5); });
  Start({.layers = 2});
  service_->Plan(9, Fault::kCrashAfter);
  RunPlain(2, 5);
  ExpectLike(truth);
  EXPECT_EQ(session_->stats().recreations, 1);
  EXPECT_EQ(session_->stats().max_lost_tokens, 9);  // all of the longer layer
}

TEST_F(Durable, FindsTheSessionItMadeAgainWhenThatReplyIsLost) {
  const Truth truth = Undisturbed(1, [this] { RunPlain(1, 3); });
  Start({});
  service_->Plan(2, Fault::kCrashBefore);
  service_->PlanNext("CreateSession", {Fault::kLoseReply});
  RunPlain(1, 3);
  ExpectLike(truth);
}

TEST_F(Durable, SurvivesCrashesInARow) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 5); });
  Start({.layers = 2, .checkpoint_every_tokens = 3});
  service_->Plan(6, Fault::kCrashAfter);
  service_->PlanNext("GetSession", {Fault::kCrashBefore, Fault::kCrashBefore, Fault::kUnavailable});
  RunPlain(2, 5);
  ExpectLike(truth);
}

TEST_F(Durable, GoesOnFromWhereAReplayBroke) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 6); });
  for (const Fault fault : kHiddenFaults) {
    for (const int64_t every : {0, 2, 100}) {
      SCOPED_TRACE(StrCat("fault ", static_cast<int>(fault), ", checkpoint every ", every));
      Start({.layers = 2, .checkpoint_every_tokens = every});
      service_->Plan(9, Fault::kCrashBefore);
      for (const int call : {10, 12, 13, 17}) service_->Plan(call, fault);
      RunPlain(2, 6);
      ExpectLike(truth);
    }
  }
}

TEST_F(Durable, ReplaysPrefillsWithTheirOwnBoundaries) {
  const auto run = [this] {
    ASSERT_EQ(Prefill(0, 5, 1), absl::OkStatus());
    ASSERT_EQ(Prefill(0, 0, 2), absl::OkStatus());
    ASSERT_EQ(Prefill(0, 3, 3), absl::OkStatus());
    ASSERT_EQ(Decode(0, 4), absl::OkStatus());
    ASSERT_EQ(Prefill(0, 2, 5), absl::OkStatus());
  };
  const Truth truth = Undisturbed(1, run);
  Start({});
  service_->Plan(4, Fault::kCrashAfter);
  run();
  ExpectLike(truth);
}

TEST_F(Durable, ForgetsInputsThatAreDurable) {
  Start({.checkpoint_every_tokens = 1});
  ASSERT_EQ(Prefill(0, 5, 1), absl::OkStatus());
  const int64_t one_prefill = session_->kept_bytes();
  EXPECT_GT(one_prefill, 0);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Decode(0, 10 + i), absl::OkStatus());
  EXPECT_GT(session_->kept_bytes(), 0);  // the newest, whose reply came before its checkpoint
  EXPECT_LT(session_->kept_bytes(), 2 * one_prefill);
}

// Drafts of both layers, all, some and none of which are accepted.
class DurableDrafts : public Durable {
 protected:
  void RunDrafts() {
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_EQ(Prefill(layer, 5, 100 + layer), absl::OkStatus());
    int seed = 200;
    for (const int accepted : {4, 2, 0, 3}) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        ASSERT_EQ(Decode(layer, ++seed, /*tokens=*/4, /*draft=*/true), absl::OkStatus());
      }
      GDN_ASSERT_OK_AND_ASSIGN(const auto counts, session_->AcceptTokens(accepted));
      ASSERT_EQ(counts.layers_size(), 2);
      EXPECT_EQ(counts.layers(1).token_count(), session_->token_count(1));
      ASSERT_EQ(Decode(0, ++seed), absl::OkStatus());
    }
    EXPECT_EQ(session_->token_count(0), 5 + 9 + 4);
    EXPECT_EQ(session_->token_count(1), 5 + 9);
  }
};

TEST_F(DurableDrafts, AreTakenAndAcceptedOnceWhateverFailsAtWhicheverCall) {
  const Truth truth = Undisturbed(2, [this] { RunDrafts(); });
  ForEachFault(/*calls=*/18, /*checkpoint_every=*/{0, 1, 3, 100}, [&](int64_t) {
    RunDrafts();
    ExpectLike(truth);
  });
}

// The reply to the acceptance is lost; the copy that the session goes back to has the acceptance, and not its reply.
TEST_F(DurableDrafts, AreAcceptedOnceIfTheCopyHasTheAcceptance) {
  const Truth truth = Undisturbed(2, [this] { RunDrafts(); });
  for (const Fault second : {Fault::kRollBack, Fault::kCrashBefore}) {
    for (int call = 0; call < 18; ++call) {
      SCOPED_TRACE(StrCat("fault ", static_cast<int>(second), ", call ", call));
      Start({.layers = 2, .checkpoint_every_tokens = 1});
      service_->Plan(call, Fault::kLoseReply);
      service_->Plan(call + 1, second);
      RunDrafts();
      ExpectLike(truth);
    }
  }
}

TEST_F(DurableDrafts, AreAcceptedOnceOnAServerThatForgetsAcceptances) {
  const Truth truth = Undisturbed(2, [this] { RunDrafts(); });
  for (int call = 0; call < 18; ++call) {
    SCOPED_TRACE(StrCat("call ", call));
    Start({.layers = 2, .forget_stored_replies = true});
    service_->Plan(call, Fault::kLoseReply);
    RunDrafts();
    ExpectLike(truth);
  }
}

TEST_F(DurableDrafts, ThatAreTreesAreTakenAndAcceptedOnceWhateverFails) {
  const auto run = [this] {
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_EQ(Prefill(layer, 5, 100 + layer), absl::OkStatus());
    int seed = 200;
    for (const std::vector<int32_t>& path : {std::vector<int32_t>{0, 2, 4}, {5}, {}, {0, 1}}) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        ASSERT_EQ(DraftTree(layer, ++seed, {-1, 0, 0, 1, 2, -1}), absl::OkStatus());
      }
      GDN_ASSERT_OK_AND_ASSIGN(const auto counts, session_->AcceptPath(path));
      EXPECT_EQ(counts.layers(1).token_count(), session_->token_count(1));
      ASSERT_EQ(Decode(0, ++seed), absl::OkStatus());
    }
    EXPECT_EQ(session_->token_count(0), 5 + 6 + 4);
  };
  const Truth truth = Undisturbed(2, run);
  ForEachFault(/*calls=*/18, /*checkpoint_every=*/{0, 3}, [&](int64_t) {
    run();
    ExpectLike(truth);
  });
  Start({.layers = 2});
  ASSERT_EQ(DraftTree(0, 7, {-1, 0, 0}), absl::OkStatus());
  EXPECT_EQ(ErrorReason(session_->AcceptPath({0, 1, 2}).status()), reason::kValueOutOfRange);
  EXPECT_TRUE(session_->AcceptPath({0, 2}).ok());
}

TEST_F(DurableDrafts, ComeBackPendingFromACheckpointThatHasThem) {
  const auto run = [this](bool checkpoint) {
    ASSERT_EQ(Prefill(0, 5, 1), absl::OkStatus());
    ASSERT_EQ(Decode(0, 2, 4, true), absl::OkStatus());
    ASSERT_EQ(Decode(1, 3, 3, true), absl::OkStatus());
    if (checkpoint) {
      ASSERT_TRUE(session_->Checkpoint().ok());
      service_->Crash();
    }
    ASSERT_TRUE(session_->AcceptTokens(2).ok());
    ASSERT_EQ(Decode(0, 4), absl::OkStatus());
  };
  const Truth truth = Undisturbed(2, [&] { run(false); });
  Start({.layers = 2});
  run(true);
  ExpectLike(truth);
}

TEST_F(DurableDrafts, KeepOtherStepsAwayAndAreNotAcceptedBeyondTheirLength) {
  Start({});
  ASSERT_EQ(Decode(0, 2, 4, true), absl::OkStatus());
  const absl::Status step = Decode(0, 3);
  EXPECT_EQ(ErrorReason(step), reason::kDraftPending);
  const absl::Status accept = session_->AcceptTokens(5).status();
  EXPECT_EQ(ErrorReason(accept), reason::kTooManyTokens);
  EXPECT_EQ(session_->AcceptTokens(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(session_->AcceptTokens(4).ok());
  EXPECT_EQ(session_->token_count(0), 4);
}

// Random calls and random faults, replays and recoveries included.
TEST_F(Durable, GivesTheUninterruptedOutputsUnderRandomFaults) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    const auto run = [this, seed] {
      Random random(seed);
      int pending = 0;
      for (int call = 0; call < 40; ++call) {
        const int32_t layer = random.NextInt(0, 1);
        if (pending > 0) {
          ASSERT_TRUE(session_->AcceptTokens(random.NextInt(0, pending)).ok());
          pending = 0;
        } else if (const int kind = random.NextInt(0, 5); kind == 0) {
          ASSERT_EQ(Prefill(layer, random.NextInt(0, 6), random.Next()), absl::OkStatus());
        } else if (kind == 1) {
          pending = random.NextInt(1, 4);
          ASSERT_EQ(Decode(layer, random.Next(), pending, true), absl::OkStatus());
          if (random.NextInt(0, 1) == 1) {
            ASSERT_EQ(Decode(1 - layer, random.Next(), pending, true), absl::OkStatus());
          }
        } else {
          ASSERT_EQ(Decode(layer, random.Next(), random.NextInt(1, 2)), absl::OkStatus());
        }
      }
    };
    const Truth truth = Undisturbed(2, run);
    Random random(seed + 1000);
    Start({.layers = 2, .checkpoint_every_tokens = random.NextInt(0, 7)});
    for (int i = 0; i < 12; ++i) {
      service_->Plan(random.NextInt(0, 90),
                     static_cast<Fault>(random.NextInt(0, static_cast<int>(Fault::kCrashAfter))));
    }
    run();
    ExpectLike(truth);
  }
}

}  // namespace
}  // namespace gdn::durable_session_test
