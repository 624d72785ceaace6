#include "state_store/tiers/tier_ledger.h"

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/tiers/fake_holders.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/support/assert_ok.h"

namespace gdn::tier_ledger_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
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

  TierLedger ledger_{
      {"host", "disk", "redis"}, kDurable, {.retry_after = absl::InfiniteDuration(), .max_owed_erasures = 3}};
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
  EXPECT_EQ(ledger_.NextBytes(kDisk), std::nullopt);
  EXPECT_TRUE(ledger_.CanFree(kDisk, 100)) << "the session is leaving it";
  ledger_.Left(kDisk, /*wake=*/true);
  EXPECT_FALSE(ledger_.CanFree(kDisk, 100));
}

TEST_F(TierLedgerTest, AStateWithoutAnyCopyIsNotParkedAnyMore) {
  Park(kDisk, "a");
  Park(kDisk, "b");
  {
    const StateKey key = Key("a");
    const Owner owner(ledger_, key);
    ledger_.DropCopy(kDisk, key);
  }
  EXPECT_EQ(ledger_.NextBytes(kDisk), 100);
  EXPECT_FALSE(ledger_.CanFree(kDisk, 101));
  EXPECT_EQ(ledger_.AcquireNext(kDisk, /*tried=*/{}, /*may_wait=*/false).key, Key("b"));
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
  const TierLedger::Next next = ledger_.AcquireNext(kHost, /*tried=*/{}, /*may_wait=*/false);
  ASSERT_EQ(next.key, Key("c"));
  const Owner owner(ledger_, *next.key, Owner::kAcquired);
  ledger_.Moved(kHost, *next.key, /*moved=*/false);
  EXPECT_EQ(ledger_.AcquireNext(kHost, /*tried=*/{Key("a")}, /*may_wait=*/false).key, std::nullopt);
}

class TierHoldersTest : public ::testing::Test {
 protected:
  void Park(size_t tier, const StateKey& key, int64_t bytes = 100) {
    const Owner owner(ledger_, key);
    ledger_.AddNewest(tier, key, {.bytes = bytes});
    ledger_.Park(tier, key, bytes);
  }
  // Moves the next victim of the tier to Redis, and returns its name.
  std::string Next(size_t tier) {
    const TierLedger::Next next = ledger_.AcquireNext(tier, /*tried=*/{}, /*may_wait=*/false);
    if (!next.key.has_value()) return "";
    const Owner owner(ledger_, *next.key, Owner::kAcquired);
    ledger_.Park(kRedis, *next.key, next.bytes);
    ledger_.DropCopy(tier, *next.key);
    ledger_.Moved(tier, *next.key, /*moved=*/true);
    return next.key->principal + "/" + next.key->id;
  }

  FakeHolders holders_{/*share=*/200};
  TierLedger ledger_{{"host", "disk", "redis"}, kDurable, {.holders = &holders_}};
};

TEST_F(TierHoldersTest, WhoHoldsMostForItsShareGivesFirstAndOfItsOwnWhatWasUsedLongestAgo) {
  Park(kHost, KeyOf("modest", "a"));
  for (const char* id : {"b", "c", "d", "e"}) Park(kHost, KeyOf("greedy", id));
  for (const char* id : {"f", "g", "h"}) Park(kHost, KeyOf("eager", id));
  ledger_.Find(KeyOf("greedy", "b"), /*parked=*/true);
  EXPECT_EQ(Next(kHost), "greedy/c");
  EXPECT_EQ(Next(kHost), "greedy/d") << "both hold as much, and it was used before the other's";
  EXPECT_EQ(Next(kHost), "eager/f");
  // All are within their shares.
  EXPECT_EQ(ledger_.NextBytes(kHost), 100);
  EXPECT_EQ(Next(kHost), "modest/a");
  EXPECT_EQ(Next(kHost), "greedy/e");
  EXPECT_EQ(Next(kHost), "eager/g");
}

TEST_F(TierHoldersTest, WhereTheFirstHolderHasNothingThatMayGoTheNextGives) {
  for (const char* id : {"a", "b", "c"}) Park(kHost, KeyOf("greedy", id));
  Park(kHost, KeyOf("modest", "d"));
  const std::set<StateKey> tried = {KeyOf("greedy", "a"), KeyOf("greedy", "c")};
  const StateKey owned = KeyOf("greedy", "b");
  const Owner other(ledger_, owned);
  const TierLedger::Next next = ledger_.AcquireNext(kHost, tried, /*may_wait=*/false);
  ASSERT_EQ(next.key, KeyOf("modest", "d"));
  const Owner owner(ledger_, *next.key, Owner::kAcquired);
  ledger_.Moved(kHost, *next.key, /*moved=*/false);
}

TEST_F(TierHoldersTest, EachCopyIsChargedForAsLongAsATierHasIt) {
  const StateKey key = KeyOf("p", "a"), named = KeyOf("p", "a", "named");
  Park(kHost, key, 70);
  ledger_.AddNewest(kDisk, key, {.bytes = 60});
  ledger_.AddCopy(kRedis, key, {.bytes = 50});
  ledger_.AddNewest(kDisk, named, {.bytes = 40});
  EXPECT_THAT(holders_.held(), UnorderedElementsAre(Pair("host p", 70), Pair("disk p", 100), Pair("redis p", 50)));
  ledger_.AddNewest(kDisk, key, {.bytes = 65});
  ledger_.DropCopy(kHost, key);
  EXPECT_THAT(holders_.held(), UnorderedElementsAre(Pair("disk p", 105), Pair("redis p", 50)));
  ledger_.DropCopy(kDisk, named);
  EXPECT_THAT(holders_.held(), UnorderedElementsAre(Pair("disk p", 65), Pair("redis p", 50)));
  ledger_.End(key);
  EXPECT_THAT(holders_.held(), IsEmpty());
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
}  // namespace gdn::tier_ledger_test
