#include "state_store/tiers/tier_stack.h"

#include <string>
#include <thread>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "state_store/tiers/disk/disk_space.h"
#include "state_store/tiers/host_tier.h"
#include "tests/state_store/tiers/fake_holders.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/state_store/tiers/tier_stack_fixture.h"
#include "tests/support/advanced_clock.h"
#include "tests/support/assert_ok.h"

namespace gdn::tier_stack_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST_F(TierStackTest, MovesDownWhatWasNotUsedForLongest) {
  Park("a", 1);
  Park("b", 2);
  EXPECT_EQ(Fetch(Key("a")), 1);
  Park("c", 3);  // b is older than the fetched a
  EXPECT_THAT(host_.versions(), ElementsAre(Pair(Key("a"), 1), Pair(Key("c"), 3)));
  EXPECT_THAT(disk_.versions(), ElementsAre(Pair(Key("b"), 2)));
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "host");
  EXPECT_EQ(stack_.PlaceOf(Key("b")), "disk");
  EXPECT_EQ(stack_.PlaceOf(Key("d")), "");
  EXPECT_EQ(Fetch(Key("b")), 2);
}

TEST_F(TierStackTest, WhoIsWithinItsShareStaysWhereItIsWhileOthersMoveDown) {
  FakeHolders holders(/*share=*/200);
  FakeTier host("host", false, 400);
  TierStack stack({&host, &disk_, &redis_}, {.holders = &holders});
  const auto park = [&](const StateKey& key) { ASSERT_TRUE(stack.Park(key, MakeVersion(1)).ok()) << key.id; };
  park(KeyOf("modest", "mine"));
  for (int i = 0; i < 8; ++i) park(KeyOf("greedy", std::to_string(i)));
  EXPECT_EQ(stack.PlaceOf(KeyOf("modest", "mine")), "host");
  EXPECT_EQ(stack.PlaceOf(KeyOf("greedy", "4")), "disk");
  EXPECT_EQ(stack.PlaceOf(KeyOf("greedy", "0")), "redis");
  park(KeyOf("modest", "second"));
  EXPECT_EQ(stack.PlaceOf(KeyOf("modest", "mine")), "host") << "it makes room of what the other has";
  EXPECT_EQ(stack.PlaceOf(KeyOf("greedy", "5")), "disk");
  EXPECT_THAT(holders.held(), UnorderedElementsAre(Pair("host modest", 200), Pair("host greedy", 200),
                                                   Pair("disk greedy", 300), Pair("redis greedy", 300)));
  ASSERT_TRUE(stack.Erase(KeyOf("modest", "mine")).ok());
  stack.Release(KeyOf("modest", "second"));
  EXPECT_THAT(holders.held(),
              UnorderedElementsAre(Pair("host greedy", 200), Pair("disk greedy", 300), Pair("redis greedy", 300)));
}

TEST_F(TierStackTest, ChargesWhatItTakesOverAndNamedCheckpointsToo) {
  FakeHolders holders(/*share=*/100);
  {
    TierStack before({&disk_, &redis_});
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(before.Park(KeyOf("p", std::to_string(i)), MakeVersion(i)).ok());
  }
  TierStack stack({&disk_, &redis_}, {.holders = &holders});
  for (int i = 0; i < 4; ++i) stack.Adopt(KeyOf("p", std::to_string(i)), i == 0 ? redis_ : disk_, 90);
  EXPECT_THAT(holders.held(), UnorderedElementsAre(Pair("disk p", 270), Pair("redis p", 90)));
  ASSERT_TRUE(stack.Erase(KeyOf("p", "1")).ok());
  ASSERT_TRUE(stack.Checkpoint(KeyOf("p", "2", "named"), MakeVersion(2)).ok());
  EXPECT_THAT(holders.held(), UnorderedElementsAre(Pair("disk p", 280), Pair("redis p", 90)));
  ASSERT_TRUE(stack.EraseCheckpoint(KeyOf("p", "2", "named")).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(stack.Erase(KeyOf("p", std::to_string(i))).ok());
  EXPECT_THAT(holders.held(), IsEmpty());
}

TEST_F(TierStackTest, ChainsMovesThroughAllTiersUntilTheLastIsFull) {
  for (int i = 0; i < 9; ++i) Park(std::to_string(i), i);
  EXPECT_THAT(redis_.versions(),
              ElementsAre(Pair(Key("0"), 0), Pair(Key("1"), 1), Pair(Key("2"), 2), Pair(Key("3"), 3)));
  EXPECT_THAT(disk_.versions(), ElementsAre(Pair(Key("4"), 4), Pair(Key("5"), 5), Pair(Key("6"), 6)));
  EXPECT_THAT(host_.versions(), ElementsAre(Pair(Key("7"), 7), Pair(Key("8"), 8)));

  const absl::Status full = stack_.Park(Key("9"), MakeVersion(9));
  ExpectError(full, absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_THAT(full.message(), HasSubstr("host"));
  EXPECT_THAT(full.message(), HasSubstr("redis"));
  for (int i = 0; i < 9; ++i) EXPECT_EQ(Fetch(Key(std::to_string(i))), i);
  EXPECT_EQ(stack_.PlaceOf(Key("9")), "");

  EXPECT_TRUE(stack_.Erase(Key("2")).ok());
  Park("9", 9);
  EXPECT_EQ(Fetch(Key("9")), 9);
}

TEST_F(TierStackTest, ReplacesTheStateOfAParkedSession) {
  Park("a", 1);
  Park("b", 2);
  Park("c", 3);  // a is on disk
  Park("a", 4);  // b goes down
  EXPECT_EQ(Fetch(Key("a")), 4);
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "host");
  // Its older copy on disk stays as a checkpoint until a newer one is durable.
  EXPECT_THAT(disk_.versions(), ElementsAre(Pair(Key("a"), 1), Pair(Key("b"), 2)));
  Park("d", 5);
  Park("e", 6);
  EXPECT_EQ(disk_.versions().at(Key("a")), 4);
}

TEST_F(TierStackTest, PutsAStateLargerThanATierIntoTheNext) {
  Park("a", 1);
  Park("b", 2);
  ASSERT_TRUE(stack_.Park(Key("large"), MakeVersion(3, 250)).ok());
  EXPECT_EQ(stack_.PlaceOf(Key("large")), "disk");
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "host");
  EXPECT_EQ(stack_.PlaceOf(Key("b")), "host");
}

TEST_F(TierStackTest, PassesOverAMiddleTierThatFails) {
  disk_.FailAll(Unavailable("disk"));
  for (int i = 0; i < 6; ++i) Park(std::to_string(i), i);
  EXPECT_THAT(disk_.versions(), IsEmpty());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Fetch(Key(std::to_string(i))), i);
  EXPECT_TRUE(absl::IsUnavailable(stack_.Park(Key("6"), MakeVersion(6))));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Fetch(Key(std::to_string(i))), i);
}

TEST_F(TierStackTest, SaysWhichTierFailedWhereNoOtherHasRoom) {
  TierStack stack({&host_, &disk_}, {.retry_after = absl::ZeroDuration()});
  disk_.FailStores(Unavailable("disk"));
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(1)).ok());
  ASSERT_TRUE(stack.Park(Key("b"), MakeVersion(2)).ok());
  const absl::Status status = stack.Park(Key("c"), MakeVersion(3));
  ExpectError(status, absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(ErrorMetadata(status)["tier"], "disk");
  EXPECT_THAT(host_.versions(), ElementsAre(Pair(Key("a"), 1), Pair(Key("b"), 2)));
  disk_.FailStores(absl::OkStatus());
  EXPECT_TRUE(stack.Park(Key("c"), MakeVersion(3)).ok());
}

TEST_F(TierStackTest, LeavesAnUnreachableTierAloneForAWhile) {
  TierStack stack({&host_, &disk_}, {.retry_after = absl::InfiniteDuration()});
  disk_.FailStores(Unavailable("disk"));
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(1)).ok());
  ASSERT_TRUE(stack.Park(Key("b"), MakeVersion(2)).ok());
  EXPECT_TRUE(absl::IsUnavailable(stack.Park(Key("c"), MakeVersion(3))));
  EXPECT_EQ(disk_.store_calls(), 2) << "of two sessions";
  for (int i = 0; i < 5; ++i) {
    const absl::Status status = stack.Park(Key("c"), MakeVersion(3));
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_EQ(ErrorMetadata(status)["tier"], "disk");
  }
  EXPECT_EQ(disk_.store_calls(), 2);
  // It answers again, to a call that has no other place to go.
  ASSERT_TRUE(disk_.Store(Key("d"), MakeVersion(4)).status() == Unavailable("disk"));
  disk_.FailStores(absl::OkStatus());
  ASSERT_TRUE(disk_.Store(Key("d"), MakeVersion(4)).ok());
  ASSERT_TRUE(stack.Fetch(Key("d")).ok());
  EXPECT_TRUE(stack.Park(Key("c"), MakeVersion(3)).ok());
}

TEST_F(TierStackTest, DoesNotWriteEveryStateToATierThatIsFullWithoutALimit) {
  FakeTier redis("redis", true, 0);
  TierStack stack({&redis}, {.retry_after = absl::InfiniteDuration()});
  redis.FailStores(absl::ResourceExhaustedError("OOM"));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(absl::IsResourceExhausted(stack.Park(Key("a"), MakeVersion(1))));
  EXPECT_EQ(redis.store_calls(), 1);
}

TEST_F(TierStackTest, MovesAnotherStateWhereOneIsDamaged) {
  TierStack stack({&disk_, &redis_});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stack.Park(Key(std::to_string(i)), MakeVersion(i)).ok());
  disk_.Damage(Key("0"));
  ASSERT_TRUE(stack.Park(Key("3"), MakeVersion(3)).ok());
  EXPECT_EQ(stack.PlaceOf(Key("0")), "disk");
  EXPECT_EQ(stack.PlaceOf(Key("1")), "redis");
  EXPECT_EQ(stack.PlaceOf(Key("3")), "disk");
  EXPECT_TRUE(absl::IsDataLoss(stack.Fetch(Key("0")).status()));
}

TEST_F(TierStackTest, ReleaseKeepsADurableCopyAsCheckpoint) {
  Park("a", 1);
  stack_.Release(Key("a"));
  EXPECT_THAT(host_.versions(), IsEmpty());
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "");
  EXPECT_TRUE(absl::IsNotFound(stack_.Fetch(Key("a")).status()));

  for (int i = 0; i < 3; ++i) Park(std::to_string(i), i);
  ASSERT_EQ(stack_.PlaceOf(Key("0")), "disk");
  stack_.Release(Key("0"));
  EXPECT_EQ(stack_.PlaceOf(Key("0")), "");
  EXPECT_EQ(Fetch(Key("0")), 0);
  stack_.Release(Key("never parked"));
}

TEST_F(TierStackTest, CheckpointsGoToTheFastestDurableTierAndReplaceOlderOnes) {
  TierStack lower({&redis_});
  EXPECT_EQ(stack_.durable(), &disk_);
  stack_.Adopt(Key("a"), redis_, 100);
  ASSERT_TRUE(redis_.Store(Key("a"), MakeVersion(1)).ok());
  stack_.Release(Key("a"));
  EXPECT_EQ(Fetch(Key("a")), 1);
  const absl::StatusOr<StoreResult> result = stack_.Checkpoint(Key("a"), MakeVersion(2));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->written_bytes, 100);
  EXPECT_THAT(redis_.versions(), IsEmpty());
  EXPECT_EQ(Fetch(Key("a")), 2);
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "");
}

TEST_F(TierStackTest, CheckpointMovesParkedSessionsDownWhereTheDiskIsFull) {
  for (int i = 0; i < 5; ++i) Park(std::to_string(i), i);  // 0, 1, 2 on disk
  ASSERT_TRUE(stack_.Checkpoint(Key("on device"), MakeVersion(7)).ok());
  EXPECT_EQ(stack_.PlaceOf(Key("0")), "redis");
  ASSERT_TRUE(stack_.Checkpoint(Key("on device", "named"), MakeVersion(8)).ok());
  EXPECT_EQ(Fetch(Key("on device")), 7);
  EXPECT_EQ(Fetch(Key("on device", "named")), 8);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Fetch(Key(std::to_string(i))), i);
}

TEST_F(TierStackTest, CheckpointOfASessionParkedFurtherDownBringsItsPlaceUp) {
  ASSERT_TRUE(redis_.Store(Key("a"), MakeVersion(1)).ok());
  stack_.Adopt(Key("a"), redis_, 100);
  ASSERT_TRUE(stack_.Checkpoint(Key("a"), MakeVersion(1)).ok());
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "disk");
  EXPECT_EQ(Fetch(Key("a")), 1);
}

TEST_F(TierStackTest, CheckpointNeedsADurableTier) {
  TierStack stack({&host_});
  EXPECT_EQ(stack.durable(), nullptr);
  const absl::Status status = stack.Checkpoint(Key("a"), MakeVersion(1)).status();
  ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier);
  EXPECT_TRUE(TierStack({}).empty());
  EXPECT_TRUE(absl::IsResourceExhausted(TierStack({}).Park(Key("a"), MakeVersion(1))));
}

SessionImagePtr At(int64_t epoch, int64_t changes) {
  const auto image = std::const_pointer_cast<SessionImage>(MakeVersion(changes));
  image->header.epoch = epoch;
  image->header.changes = changes;
  return image;
}

TEST_F(TierStackTest, CheckpointGoesOnToTheNextTierIfOneRefuses) {
  const absl::Status full =
      MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted, "no room", {{"tier", "disk"}});
  int64_t version = 1;
  for (const absl::Status& refusal : {Unavailable("disk"), full}) {
    disk_.FailStores(absl::OkStatus());
    ASSERT_TRUE(stack_.Checkpoint(Key("a"), At(1, version)).ok());
    EXPECT_EQ(stack_.NewestCopy(Key("a"))->tier, "disk");
    EXPECT_THAT(redis_.versions(), IsEmpty());
    disk_.FailStores(refusal);
    ASSERT_TRUE(stack_.Checkpoint(Key("a"), At(1, ++version)).ok()) << refusal;
    EXPECT_EQ(stack_.NewestCopy(Key("a"))->tier, "redis");
    EXPECT_EQ(redis_.versions().at(Key("a")), version);
    EXPECT_THAT(disk_.versions(), IsEmpty()) << "the older one is not taken for the newest";
  }
  redis_.FailStores(Unavailable("redis"));
  EXPECT_TRUE(absl::IsUnavailable(stack_.Checkpoint(Key("a"), At(1, 9)).status()));
  EXPECT_EQ(Fetch(Key("a")), version);
  EXPECT_FALSE(stack_.NewestCopy(Key("a")).has_value()) << "whether Redis took the last one is not certain";
}

TEST_F(TierStackTest, AnOlderStateThanTheTierTookIsNeverFetchedButToBeRestored) {
  TierStack stack({&redis_}, {.retry_after = absl::ZeroDuration()});
  ASSERT_TRUE(stack.Park(Key("a"), At(1, 5)).ok());
  ASSERT_TRUE(redis_.Store(Key("a"), At(1, 4)).ok());  // behind the stack's back
  absl::Status status = stack.Fetch(Key("a")).status();
  ExpectError(status, absl::StatusCode::kDataLoss, reason::kStateRolledBack);
  EXPECT_EQ(ErrorMetadata(status)["known"], "epoch 1, change 5");
  EXPECT_EQ(ErrorMetadata(status)["found"], "epoch 1, change 4");
  EXPECT_EQ(VersionOf(*stack.FetchCheckpoint(Key("a"))), 4);
  ASSERT_TRUE(stack.Checkpoint(Key("a"), At(2, 5)).ok());
  EXPECT_EQ(VersionOf(*stack.Fetch(Key("a"))), 5);

  ASSERT_TRUE(redis_.Store(Key("a"), At(2, 6)).ok());
  status = stack.Fetch(Key("a")).status();
  ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver);
  ASSERT_TRUE(redis_.Erase(Key("a"), /*all=*/false).ok());
  ExpectError(stack.Fetch(Key("a")).status(), absl::StatusCode::kDataLoss, reason::kStateRolledBack);
}

TEST_F(TierStackTest, AStateWhoseStoreWasNotAnsweredMayBeThereOrNot) {
  TierStack stack({&redis_}, {.retry_after = absl::ZeroDuration()});
  ASSERT_TRUE(stack.Park(Key("a"), At(1, 5)).ok());
  redis_.FailStores(Unavailable("redis"));
  EXPECT_FALSE(stack.Checkpoint(Key("a"), At(3, 5)).ok());
  redis_.FailStores(absl::OkStatus());
  EXPECT_TRUE(stack.Fetch(Key("a")).ok());
  ASSERT_TRUE(redis_.Store(Key("a"), At(3, 5)).ok());  // it had come to pass
  EXPECT_TRUE(stack.Fetch(Key("a")).ok());
  ASSERT_TRUE(redis_.Store(Key("a"), At(3, 6)).ok());
  EXPECT_FALSE(stack.Fetch(Key("a")).ok());
}

TEST_F(TierStackTest, TrimMakesRoomInHostMemoryAheadOfTime) {
  HostTier host(1000);
  FakeTier disk("disk", true, 0);
  TierStack stack({&host, &disk}, {.retry_after = absl::InfiniteDuration()});
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(stack.Park(Key(std::to_string(i)), MakeVersion(i)).ok());
  EXPECT_FALSE(stack.WantsTrim());
  ASSERT_TRUE(stack.Park(Key("9"), MakeVersion(9)).ok());
  EXPECT_TRUE(stack.WantsTrim());
  stack.Trim();
  EXPECT_FALSE(stack.WantsTrim());
  EXPECT_EQ(host.usage().used_bytes, 800);
  EXPECT_THAT(disk.versions(), ElementsAre(Pair(Key("0"), 0), Pair(Key("1"), 1)));

  disk.FailStores(Unavailable("disk"));
  for (int i = 10; i < 12; ++i) ASSERT_TRUE(stack.Park(Key(std::to_string(i)), MakeVersion(i)).ok());
  EXPECT_TRUE(stack.WantsTrim());
  stack.Trim();
  EXPECT_EQ(host.usage().used_bytes, 1000);
  EXPECT_FALSE(stack.WantsTrim());  // nothing below takes states now
}

TEST_F(TierStackTest, FetchCheckpointLooksBehindANewerStateInHostMemory) {
  ASSERT_TRUE(stack_.Checkpoint(Key("a"), MakeVersion(1)).ok());
  Park("a", 2);
  EXPECT_EQ(Fetch(Key("a")), 2);
  const auto checkpoint = stack_.FetchCheckpoint(Key("a"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(VersionOf(*checkpoint), 1);
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "host");
  Park("b", 1);
  EXPECT_TRUE(absl::IsNotFound(stack_.FetchCheckpoint(Key("b")).status()));
}

TEST_F(TierStackTest, AdoptsTheNewerOfTwoCopiesLast) {
  ASSERT_TRUE(disk_.Store(Key("a"), MakeVersion(1)).ok());
  ASSERT_TRUE(redis_.Store(Key("a"), MakeVersion(2)).ok());
  ASSERT_TRUE(disk_.Store(Key("a", "named"), MakeVersion(3)).ok());
  stack_.Adopt(Key("a"), disk_, 100);
  stack_.Adopt(Key("a"), redis_, 100);
  stack_.Adopt(Key("a", "named"), disk_, 100);
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "redis");
  EXPECT_EQ(stack_.PlaceOf(Key("a", "named")), "");
  stack_.Release(Key("a"));
  EXPECT_EQ(Fetch(Key("a")), 2);
  EXPECT_EQ(Fetch(Key("a", "named")), 3);
  ASSERT_TRUE(stack_.Checkpoint(Key("a"), MakeVersion(4)).ok());
  EXPECT_THAT(redis_.versions(), IsEmpty());
}

TEST_F(TierStackTest, KeepsAnImageWithoutBasesToTheTierThatHasThem) {
  auto image = std::make_shared<SessionImage>();
  image->layers.emplace_back().has_base = false;
  ASSERT_TRUE(stack_.Park(Key("a"), image).ok());
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "disk");
  disk_.FailStores(Unavailable("disk"));
  EXPECT_TRUE(absl::IsUnavailable(stack_.Park(Key("b"), image)));
  EXPECT_THAT(redis_.versions(), IsEmpty());
}

TEST_F(TierStackTest, CallsOfASessionWaitForItsMove) {
  Park("a", 1);
  Park("b", 2);
  HeldStore move(disk_, Key("a"));
  std::thread park([&] { Park("c", 3); });
  move.Await();
  int64_t fetched = 0;
  std::thread fetch([&] { fetched = Fetch(Key("a")); });
  EXPECT_EQ(Fetch(Key("b")), 2);  // others do not wait
  move.Release();
  fetch.join();
  park.join();
  EXPECT_EQ(fetched, 1);
  EXPECT_EQ(stack_.PlaceOf(Key("a")), "disk");
  EXPECT_FALSE(host_.overlapped() || disk_.overlapped());
}

TEST(TierStackTrim, ATrimThatMovesNothingIsTriedLessAndLessOften) {
  AdvancedClock clock;
  FakeTier host("host", /*durable=*/false, /*limit_bytes=*/1000);
  FakeTier disk("disk", /*durable=*/true, /*limit_bytes=*/0);
  TierStack stack({&host, &disk}, {.clock = &clock});
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(stack.Park(Key("s" + std::to_string(i)), MakeVersion(1)).ok());
  disk.FailStores(MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted, "above its watermark",
                            {{"tier", "disk"}, {kWatermark, "95"}}));
  for (int round = 0; round < 5 * 600; ++round) {  // ten minutes of housekeeping
    if (stack.WantsTrim()) stack.Trim();
    clock.Advance(absl::Milliseconds(200));
  }
  EXPECT_GE(disk.store_calls(), 4 * 10);
  EXPECT_LE(disk.store_calls(), 4 * 20);
  disk.FailStores(absl::OkStatus());
  clock.Advance(absl::Minutes(1));
  ASSERT_TRUE(stack.WantsTrim());
  stack.Trim();
  EXPECT_EQ(host.usage().used_bytes, 800);
}

}  // namespace
}  // namespace gdn::tier_stack_test
