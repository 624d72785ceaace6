// Sessions that end, and copies of no use, in tiers that cannot always be reached.
#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/tiers/tier_stack_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::tier_stack_erasures_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using TierStackErasures = TierStackTest;

TEST_F(TierStackErasures, EraseTakesTheSessionAndItsCheckpointsOutOfAllTiers) {
  for (int i = 0; i < 5; ++i) Park(std::to_string(i), i);
  ASSERT_TRUE(stack_.Checkpoint(Key("0", "named"), MakeVersion(9)).ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(stack_.Erase(Key(std::to_string(i))).ok());
  EXPECT_THAT(host_.versions(), IsEmpty());
  EXPECT_THAT(disk_.versions(), IsEmpty());
  EXPECT_THAT(redis_.versions(), IsEmpty());
  EXPECT_EQ(Fetch(Key("0", "named")), -1);
}

TEST_F(TierStackErasures, AnErasedSessionDoesNotComeBackFromATierThatWasUnreachable) {
  for (int i = 0; i < 6; ++i) Park(std::to_string(i), i);
  ASSERT_EQ(stack_.PlaceOf(Key("0")), "redis");
  redis_.FailErasures(Unavailable("redis"));
  disk_.KeepsNotes(true);
  EXPECT_TRUE(stack_.Erase(Key("0")).ok());
  EXPECT_THAT(redis_.versions(), ElementsAre(Pair(Key("0"), 0)));
  EXPECT_THAT(*disk_.ErasureNotes(), ElementsAre(Pair(Key("0"), ElementsAre("redis"))));
  // It could be read there, but has ended.
  EXPECT_TRUE(absl::IsUnavailable(stack_.Fetch(Key("0")).status()));
  redis_.FailErasures(absl::OkStatus());
  Park("another", 10);
  EXPECT_EQ(redis_.versions().count(Key("0")), 0u);
  EXPECT_TRUE(absl::IsNotFound(stack_.Fetch(Key("0")).status()));
  EXPECT_THAT(*disk_.ErasureNotes(), IsEmpty());
}

TEST_F(TierStackErasures, AnEndThatNoTierCanNoteIsRefusedAndTheSessionStays) {
  for (int i = 0; i < 6; ++i) Park(std::to_string(i), i);
  ASSERT_EQ(stack_.PlaceOf(Key("0")), "redis");
  redis_.FailErasures(Unavailable("redis"));
  const absl::Status refused = stack_.Erase(Key("0"));
  ExpectError(refused, absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(ErrorMetadata(refused)["tier"], "redis");
  EXPECT_EQ(Fetch(Key("0")), 0);
  EXPECT_TRUE(stack_.Erase(Key("5")).ok()) << "one that redis has no copy of";
  EXPECT_TRUE(stack_.Erase(Key("0"), /*even_unnoted=*/true).ok());
  EXPECT_TRUE(absl::IsUnavailable(stack_.Fetch(Key("0")).status()));
}

TEST_F(TierStackErasures, ALaterStackErasesWhatWasNotedAndSparesNewSessionsOfTheName) {
  disk_.KeepsNotes(true);
  ASSERT_TRUE(redis_.Store(Key("a"), MakeVersion(1)).ok());
  {
    TierStack stack({&disk_, &redis_}, {.retry_after = absl::ZeroDuration()});
    stack.Adopt(Key("a"), redis_, 100);
    redis_.FailErasures(Unavailable("redis"));
    ASSERT_TRUE(stack.Erase(Key("a")).ok());
  }
  TierStack stack({&disk_, &redis_}, {.retry_after = absl::ZeroDuration()});
  ASSERT_TRUE(stack.LoadErasureNotes().ok());
  EXPECT_TRUE(stack.IsErased(redis_, Key("a")));
  EXPECT_FALSE(stack.IsErased(disk_, Key("a")));
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(2)).ok());
  EXPECT_THAT(redis_.versions(), ElementsAre(Pair(Key("a"), 1)));
  redis_.FailErasures(absl::OkStatus());
  stack.Trim();
  EXPECT_THAT(redis_.versions(), IsEmpty());
  EXPECT_THAT(*disk_.ErasureNotes(), IsEmpty());
  EXPECT_THAT(disk_.versions(), ElementsAre(Pair(Key("a"), 2)));
}

TEST_F(TierStackErasures, AnErasureThatIsOwedSparesANewSessionOfTheName) {
  TierStack stack({&disk_, &redis_}, {.retry_after = absl::ZeroDuration()});
  ASSERT_TRUE(redis_.Store(Key("a", "old"), MakeVersion(1)).ok());
  redis_.FailErasures(Unavailable("redis"));
  EXPECT_TRUE(stack.Erase(Key("a")).ok()) << "nobody has told of a copy there";
  disk_.FailStores(Unavailable("disk"));
  EXPECT_TRUE(absl::IsUnavailable(stack.Park(Key("a"), MakeVersion(2))));  // not beside what is to be erased
  EXPECT_THAT(redis_.versions(), ElementsAre(Pair(Key("a", "old"), 1)));
  redis_.FailErasures(absl::OkStatus());
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(2)).ok());
  for (int i = 0; i < 3; ++i) stack.Trim();
  EXPECT_THAT(redis_.versions(), ElementsAre(Pair(Key("a"), 2)));
}

TEST_F(TierStackErasures, AnOlderCopyThatCouldNotBeErasedIsNeverFetched) {
  ASSERT_TRUE(redis_.Store(Key("a"), MakeVersion(1)).ok());
  stack_.Adopt(Key("a"), redis_, 100);
  redis_.FailErasures(Unavailable("redis"));
  ASSERT_TRUE(stack_.Checkpoint(Key("a"), MakeVersion(2)).ok());
  stack_.Release(Key("a"));
  EXPECT_EQ(Fetch(Key("a")), 2);
  redis_.FailErasures(absl::OkStatus());
  stack_.Trim();
  EXPECT_THAT(redis_.versions(), IsEmpty());
}

TEST_F(TierStackErasures, WhatATierHasIsNotKnownBeforeItIsListedSoEndsAreNotedForItToo) {
  disk_.KeepsNotes(true);
  redis_.FailAll(Unavailable("redis"));
  stack_.SetUnlisted(redis_, true);
  Park("a", 1);
  EXPECT_TRUE(stack_.Erase(Key("a")).ok());
  EXPECT_THAT(*disk_.ErasureNotes(), ElementsAre(Pair(Key("a"), ElementsAre("redis"))));
  stack_.SetUnlisted(redis_, false);
  Park("b", 2);
  EXPECT_TRUE(stack_.Erase(Key("b")).ok());
  EXPECT_THAT(*disk_.ErasureNotes(), ElementsAre(Pair(Key("a"), ElementsAre("redis"))));
}

}  // namespace
}  // namespace gdn::tier_stack_erasures_test
