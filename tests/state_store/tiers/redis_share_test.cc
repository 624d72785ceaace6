#include "state_store/tiers/redis/redis_share.h"

#include <chrono>
#include <future>
#include <string>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/redis_tier_fixture.h"

namespace gdn::redis_share_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const StateKey kKey{.principal = "ab12", .id = "chat-1", .checkpoint = ""};
const StateKey kNamed{.principal = "ab12", .id = "chat-1", .checkpoint = "lunch"};
constexpr absl::Duration kLease = absl::Seconds(60);

class RedisShareTest : public RedisTierFixture {
 protected:
  void SetUp() override {
    RedisTierFixture::SetUp();
    if (IsSkipped()) return;
    server_.emplace(RedisServerOptions());
    server_->Start();
    a_ = Join("a");
    b_ = Join("b");
  }
  std::unique_ptr<RedisTier> Join(const std::string& name) {
    auto tier = Connect(*server_, {.share_sessions = true, .node_name = name});
    EXPECT_TRUE(tier->NextIncarnation().ok());
    const absl::StatusOr<bool> unbroken = tier->share()->RenewLease(kLease);
    EXPECT_TRUE(unbroken.ok() && !*unbroken) << unbroken.status() << ": the first is no renewal";
    return tier;
  }
  absl::Status Store(RedisTier& tier, uint64_t seed, const StateKey& key = kKey) {
    return tier.Store(key, MakeImage(MakeModelSession(seed), memory_.host)).status();
  }
  static TakenSession Take(RedisTier& tier, bool make = false) {
    const absl::StatusOr<TakenSession> taken = tier.share()->Take(kKey, make);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *taken : TakenSession();
  }
  std::string Owner() { return server_->Command({"HGET", "gdn:{ab12/chat-1}", "server"}); }

  std::unique_ptr<RedisTier> a_;
  std::unique_ptr<RedisTier> b_;
};

TEST_F(RedisShareTest, ASessionThatIsGivenUpInOrderGoesOnElsewhereAndIsWrittenByNobodyElse) {
  EXPECT_EQ(Take(*b_).outcome, TakenSession::kNone);
  EXPECT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  ASSERT_TRUE(Store(*a_, 1).ok());
  const TakenSession held = Take(*b_);
  EXPECT_EQ(held.outcome, TakenSession::kHeld);
  EXPECT_EQ(held.holder, a_->share()->server());
  EXPECT_EQ(held.holder_name, "a");
  EXPECT_EQ(ErrorReason(Store(*b_, 2)), reason::kStatesTakenOver) << "it has no right to it";

  ASSERT_TRUE(a_->share()->GiveUp(kKey, /*orderly=*/true).ok());
  const TakenSession taken = Take(*b_);
  EXPECT_EQ(taken.outcome, TakenSession::kTaken);
  EXPECT_TRUE(taken.orderly);
  ExpectLoads(*b_, kKey, MakeModelSession(1));
  ASSERT_TRUE(Store(*b_, 2).ok());
  EXPECT_EQ(ErrorReason(Store(*a_, 3)), reason::kStatesTakenOver);
  EXPECT_EQ(ErrorReason(a_->Erase(kKey, /*all=*/true)), reason::kStatesTakenOver);
  ExpectLoads(*b_, kKey, MakeModelSession(2));
}

TEST_F(RedisShareTest, AWriteThatComesLateIsRefusedThoughItsServerHasTheSessionAgain) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  ASSERT_TRUE(Store(*a_, 1).ok());
  const std::string first = a_->share()->claims().token(kKey);
  ASSERT_TRUE(a_->share()->GiveUp(kKey, /*orderly=*/true).ok());
  ASSERT_EQ(Take(*b_).outcome, TakenSession::kTaken);
  ASSERT_TRUE(b_->share()->GiveUp(kKey, /*orderly=*/true).ok());
  ASSERT_EQ(Take(*a_).outcome, TakenSession::kTaken);
  EXPECT_NE(a_->share()->claims().token(kKey), first) << "what carries the old one is fenced off";
}

TEST_F(RedisShareTest, OfAServerWithoutALeaseASessionIsTakenAtItsLastCheckpoint) {
  const TakenSession made = Take(*a_, /*make=*/true);
  ASSERT_TRUE(Store(*a_, 1).ok());
  ASSERT_TRUE(Store(*a_, 2, kNamed).ok());
  ASSERT_TRUE(a_->share()->EndLease().ok());
  const TakenSession taken = Take(*b_);
  EXPECT_EQ(taken.outcome, TakenSession::kTaken);
  EXPECT_FALSE(taken.orderly) << "nobody knows what it has answered since";
  EXPECT_GT(taken.term, made.term);
  ExpectLoads(*b_, kKey, MakeModelSession(1));
  const auto named = b_->ListCheckpoints(kKey);
  ASSERT_TRUE(named.ok());
  EXPECT_THAT(*named, ElementsAre(kNamed));

  // It comes back, and looks before it relies on anything.
  const absl::StatusOr<bool> unbroken = a_->share()->RenewLease(kLease);
  ASSERT_TRUE(unbroken.ok());
  EXPECT_FALSE(*unbroken);
  std::vector<StateKey> lost;
  ASSERT_TRUE(a_->share()->FindLost(/*lapsed=*/true, lost).ok());
  EXPECT_THAT(lost, ElementsAre(kKey));
  EXPECT_EQ(ErrorReason(Store(*a_, 3)), reason::kStatesTakenOver);
}

TEST_F(RedisShareTest, WhatNobodyHasTakenMeanwhileIsStillItsOwn) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  ASSERT_TRUE(a_->share()->EndLease().ok());
  ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
  std::vector<StateKey> lost;
  ASSERT_TRUE(a_->share()->FindLost(/*lapsed=*/true, lost).ok());
  EXPECT_THAT(lost, IsEmpty());
  EXPECT_TRUE(Store(*a_, 1).ok());
}

TEST_F(RedisShareTest, ASessionThatWasEndedElsewhereDuringALapseStaysEnded) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  ASSERT_TRUE(Store(*a_, 1).ok());
  ASSERT_TRUE(a_->share()->EndLease().ok());
  ASSERT_EQ(Take(*b_).outcome, TakenSession::kTaken);
  ASSERT_TRUE(b_->Erase(kKey, /*all=*/true).ok());
  ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
  std::vector<StateKey> lost;
  ASSERT_TRUE(a_->share()->FindLost(/*lapsed=*/true, lost).ok());
  EXPECT_THAT(lost, ElementsAre(kKey));
  EXPECT_FALSE(Store(*a_, 2).ok());
  EXPECT_EQ(Owner(), "(nil)");
}

TEST_F(RedisShareTest, AStoreThatHasForgottenWhoseASessionIsIsToldAgain) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  ASSERT_TRUE(Store(*a_, 1).ok());
  server_->Command({"FLUSHALL"});
  EXPECT_TRUE(Store(*a_, 2).ok());
  EXPECT_EQ(a_->set_backs(), 1);
  ExpectLoads(*a_, kKey, MakeModelSession(2));
  // An older owner, as a replica that lagged has it.
  server_->Command({"HSET", "gdn:{ab12/chat-1}", "server", "- 0"});
  EXPECT_TRUE(Store(*a_, 3).ok());
  EXPECT_EQ(a_->set_backs(), 2);
  // Renewals that the store has forgotten are a sign of it, too, where the prefix's claim is not.
  server_->Command({"HSET", "gdn:node:" + a_->share()->server(), "renewals", "-5"});
  ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
  const int64_t before = a_->set_backs();
  ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
  ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
  server_->Command({"HSET", "gdn:node:" + a_->share()->server(), "renewals", "0"});
  ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
  EXPECT_EQ(a_->set_backs(), before + 1);
}

TEST_F(RedisShareTest, ANameIsOneServersAloneAndGoesBackWhereNoSessionWasMade) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  EXPECT_EQ(Take(*b_, /*make=*/true).outcome, TakenSession::kHeld);
  ASSERT_TRUE(a_->share()->GiveUp(kKey, /*orderly=*/false).ok());
  EXPECT_EQ(Owner(), "(nil)") << "nothing was stored of it";
  EXPECT_EQ(Take(*b_, /*make=*/true).outcome, TakenSession::kMade);
  EXPECT_TRUE(a_->share()->GiveUp(kKey, /*orderly=*/false).ok()) << "it has no right to give up";
  EXPECT_EQ(Take(*a_).outcome, TakenSession::kHeld);
}

TEST_F(RedisShareTest, ARightThatIsGivenBackIsKeptWhereTheSessionIsHere) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  ASSERT_TRUE(Store(*a_, 1).ok());
  ASSERT_TRUE(a_->share()->GiveBack(kKey, [] { return true; }).ok());
  EXPECT_TRUE(Store(*a_, 2).ok());
  ASSERT_TRUE(a_->share()->GiveBack(kKey, [] { return false; }).ok());
  EXPECT_EQ(ErrorReason(Store(*a_, 3)), reason::kStatesTakenOver);
  const TakenSession taken = Take(*b_);
  EXPECT_EQ(taken.outcome, TakenSession::kTaken);
  EXPECT_FALSE(taken.orderly);
  // Also a right that this server does not know of, as after an answer that was lost.
  server_->Command({"HSET", "gdn:{ab12/chat-1}", "server", a_->share()->server() + " 999999"});
  EXPECT_EQ(Take(*b_).outcome, TakenSession::kHeld);
  ASSERT_TRUE(a_->share()->GiveBack(kKey, [] { return false; }).ok());
  EXPECT_EQ(Take(*b_).outcome, TakenSession::kTaken);
}

TEST_F(RedisShareTest, AStoreThatWentBackIsNotBelievedThatASessionWasGivenUpInOrder) {
  for (const bool renewed : {true, false}) {
    ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
    ASSERT_TRUE(Store(*a_, 1).ok());
    ASSERT_TRUE(a_->share()->GiveUp(kKey, /*orderly=*/true).ok());
    const std::string owner = Owner();
    const std::string terms = server_->Command({"GET", "gdn:terms"});
    ASSERT_TRUE(Take(*b_).orderly);  // and answers steps, which are in no copy of before
    ASSERT_TRUE(b_->share()->GiveUp(kKey, /*orderly=*/true).ok());
    ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
    server_->Command({"HSET", "gdn:{ab12/chat-1}", "server", owner});
    server_->Command({"SET", "gdn:terms", terms});
    if (renewed) {
      ASSERT_TRUE(a_->share()->RenewLease(kLease).ok());
    }
    const TakenSession taken = Take(*a_);
    EXPECT_EQ(taken.outcome, TakenSession::kTaken);
    EXPECT_FALSE(taken.orderly);
    ASSERT_TRUE(a_->share()->GiveUp(kKey, /*orderly=*/true).ok());
    EXPECT_TRUE(Take(*a_).orderly) << "what was given up since is believed";
    ASSERT_TRUE(a_->Erase(kKey, /*all=*/true).ok());
    a_ = Join("a");
    b_ = Join("b");
  }
}

TEST_F(RedisShareTest, ARightThatIsKeptIsNeverSeenGone) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  const RedisSessionClaims& claims = a_->share()->claims();
  std::future<std::string> seen;
  const auto is_here = [&] {
    // The renewal of the lease looks at the token in the same way, and drops the sessions without a right.
    seen = std::async(std::launch::async, [&] { return claims.token(kKey); });
    seen.wait_for(std::chrono::milliseconds(200));
    return true;
  };
  ASSERT_TRUE(a_->share()->GiveBack(kKey, is_here).ok());
  EXPECT_NE(seen.get(), "");
  EXPECT_TRUE(Store(*a_, 1).ok());
}

TEST_F(RedisShareTest, AnErasureWhoseAnswerWasLostMayBeSentAgain) {
  ASSERT_EQ(Take(*a_, /*make=*/true).outcome, TakenSession::kMade);
  ASSERT_TRUE(Store(*a_, 1).ok());
  server_->Command({"DEL", "gdn:{ab12/chat-1}"});
  EXPECT_TRUE(a_->Erase(kKey, /*all=*/true).ok());
  EXPECT_EQ(Owner(), "(nil)");
  EXPECT_EQ(a_->set_backs(), 0);
}

TEST_F(RedisShareTest, AsksAServerForASessionInItsMailbox) {
  ASSERT_TRUE(b_->share()->Ask(a_->share()->server(), kKey).ok());
  const auto asked = a_->share()->NextAsked(absl::Seconds(5));
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(*asked, kKey);
  const auto none = b_->share()->NextAsked(absl::Seconds(1));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
}

TEST_F(RedisShareTest, KeepsServersThatDoNotShareAwayAndTakesOverWhatTheyLeft) {
  const auto alone = Connect(*server_);
  const absl::Status refused = alone->NextIncarnation().status();
  EXPECT_EQ(ErrorReason(refused), reason::kStatesTakenOver);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--share-sessions"));

  RedisServer other;
  other.Start();
  const auto before = Connect(other);
  ASSERT_TRUE(before->NextIncarnation().ok());
  ASSERT_TRUE(Store(*before, 7).ok());
  const auto after = Connect(other, {.share_sessions = true, .node_name = "c"});
  ASSERT_TRUE(after->NextIncarnation().ok());
  EXPECT_EQ(ErrorReason(Store(*before, 8)), reason::kStatesTakenOver);
  EXPECT_FALSE(after->share()->Take(kKey, /*make=*/false).ok()) << "without a lease nothing can be taken";
  ASSERT_TRUE(after->share()->RenewLease(kLease).ok());
  const TakenSession taken = Take(*after);
  EXPECT_EQ(taken.outcome, TakenSession::kTaken);
  EXPECT_FALSE(taken.orderly);
  ExpectLoads(*after, kKey, MakeModelSession(7));
}

}  // namespace
}  // namespace gdn::redis_share_test
