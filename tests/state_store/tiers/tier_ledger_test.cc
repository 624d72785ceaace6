#include "state_store/tiers/tier_ledger.h"

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/support/assert_ok.h"

namespace gdn {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Owner = TierLedger::Owner;

constexpr size_t kHost = 0, kDisk = 1, kRedis = 2;
constexpr TierLedger::TierSet kDurable = 0b110;

class TierLedgerTest : public ::testing::Test {
 protected:
  void Park(size_t tier, const std::string& id) {
    const StateKey key = Key(id);
    const Owner owner(ledger_, key);
    ledger_.AddNewest(tier, key);
    ledger_.Park(tier, key, 100);
  }

  TierLedger ledger_{/*tiers=*/3, kDurable, {.retry_after = absl::InfiniteDuration(), .max_owed_erasures = 3}};
};

TEST_F(TierLedgerTest, ATierHasTheBytesOfWhatIsParkedThere) {
  Park(kHost, "a");
  Park(kHost, "b");
  EXPECT_TRUE(ledger_.CanFree(kHost, 200));
  EXPECT_FALSE(ledger_.CanFree(kHost, 201));
  Park(kDisk, "a");
  EXPECT_FALSE(ledger_.CanFree(kHost, 101));
  EXPECT_TRUE(ledger_.CanFree(kDisk, 100));
  ledger_.End(Key("a"));
  EXPECT_EQ(ledger_.OldestBytes(kDisk), std::nullopt);
  EXPECT_TRUE(ledger_.CanFree(kDisk, 100)) << "the session is leaving it";
  ledger_.Left(kDisk, /*wake=*/true);
  EXPECT_FALSE(ledger_.CanFree(kDisk, 100));
}

TEST_F(TierLedgerTest, ADurableCopyStaysUntilANewerOneIsDurable) {
  const StateKey key = Key("a");
  const Owner owner(ledger_, key);
  ledger_.AddNewest(kDisk, key);
  ledger_.AddNewest(kHost, key);
  EXPECT_EQ(ledger_.Park(kHost, key, 100), 0u);
  EXPECT_EQ(ledger_.Find(key, /*parked=*/true), kHost);
  EXPECT_EQ(ledger_.Find(key, /*parked=*/false), kDisk);
  ledger_.AddNewest(kRedis, key);
  EXPECT_EQ(ledger_.Park(kRedis, key, 100), 0b011u);
  EXPECT_EQ(ledger_.Find(key, /*parked=*/false), kRedis);
}

TEST_F(TierLedgerTest, WhatWasUsedLongestAgoLeavesFirstUnlessItHasAnOwner) {
  for (const char* id : {"a", "b", "c"}) Park(kHost, id);
  ledger_.Find(Key("a"), /*parked=*/true);
  const StateKey b = Key("b");
  const Owner other(ledger_, b);
  const TierLedger::Oldest next = ledger_.AcquireOldest(kHost, /*tried=*/{}, /*may_wait=*/false);
  ASSERT_EQ(next.key, Key("c"));
  const Owner owner(ledger_, *next.key, Owner::kAcquired);
  ledger_.Moved(kHost, *next.key, /*moved=*/false);
  EXPECT_EQ(ledger_.AcquireOldest(kHost, /*tried=*/{Key("a")}, /*may_wait=*/false).key, std::nullopt);
}

TEST_F(TierLedgerTest, TheDebtOfASessionIsThatOfItsCheckpointsToo) {
  const StateKey key = Key("a"), named = Key("a", "named");
  ledger_.DropCopy(kDisk, named);
  ledger_.DropCopy(kDisk, key);
  EXPECT_THAT(ledger_.Owed(kDisk, key), ElementsAre(Pair(key, false), Pair(named, false)));
  ledger_.End(key);
  ledger_.DropCopy(kDisk, named);
  EXPECT_THAT(ledger_.Owed(kDisk, key), ElementsAre(Pair(key, true)));
  ledger_.Paid(kDisk, {key, true});
  EXPECT_TRUE(ledger_.Owed(kDisk, key).empty());
  // No more than max_owed_erasures are remembered.
  for (const char* id : {"p", "q", "r", "s"}) ledger_.DropCopy(kDisk, Key(id));
  EXPECT_THAT(ledger_.AcquireOwing(kDisk, /*most=*/2), ElementsAre(Key("q"), Key("r")));
  EXPECT_THAT(ledger_.AcquireOwing(kDisk, /*most=*/2), ElementsAre(Key("s"))) << "the others have owners";
}

TEST_F(TierLedgerTest, ABrokenTierTakesNoStatesUntilItAnswers) {
  ledger_.Note(kDisk, Key("a"), Unavailable("disk"));
  ledger_.Note(kDisk, Key("b"), Unavailable("disk"));
  ExpectError(ledger_.TakesStates(kDisk), absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(ErrorMetadata(ledger_.TakesStates(kDisk)), (ErrorMetadataMap{{"tier", "disk"}}));
  EXPECT_TRUE(ledger_.TakesStates(kRedis).ok());
  ledger_.Note(kDisk, Key("a"), absl::NotFoundError("a"));
  EXPECT_FALSE(ledger_.TakesStates(kDisk).ok());
  ledger_.Note(kDisk, Key("a"), absl::OkStatus());
  EXPECT_TRUE(ledger_.TakesStates(kDisk).ok());
  // One that is full takes states again once something was erased there.
  ledger_.BackOff(kRedis, absl::ResourceExhaustedError("full"));
  ledger_.Note(kRedis, Key("a"), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(ledger_.TakesStates(kRedis)));
  ledger_.DropCopy(kRedis, Key("a"));
  ledger_.Paid(kRedis, {Key("a"), false});
  EXPECT_TRUE(ledger_.TakesStates(kRedis).ok());
}

TEST_F(TierLedgerTest, OneSessionsTroubleIsNotTheTiers) {
  for (int i = 0; i < 3; ++i) ledger_.Note(kDisk, Key("a", i == 1 ? "checkpoint" : ""), Unavailable("disk"));
  EXPECT_TRUE(ledger_.TakesStates(kDisk).ok());
  ledger_.Note(kDisk, Key("b"), absl::OkStatus());
  ledger_.Note(kDisk, Key("b"), Unavailable("disk"));
  EXPECT_TRUE(ledger_.TakesStates(kDisk).ok()) << "it took a state since";
  ledger_.Note(kDisk, Key("a"), Unavailable("disk"));
  EXPECT_FALSE(ledger_.TakesStates(kDisk).ok());
}

}  // namespace
}  // namespace gdn
