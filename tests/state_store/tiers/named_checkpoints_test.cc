// A session's named checkpoints in a TierStack: listed, counted, erased.
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "state_store/tiers/tier_stack.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/support/assert_ok.h"

namespace gdn::named_checkpoints_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NamedCheckpointsTest : public ::testing::Test {
 protected:
  void Checkpoint(const StateKey& key, int64_t version) {
    const auto stored = stack_.Checkpoint(key, MakeVersion(version));
    ASSERT_TRUE(stored.ok()) << stored.status();
  }
  std::vector<std::string> Ids(const std::string& session) {
    std::vector<std::string> ids;
    const auto found = stack_.ListCheckpoints(Key(session));
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return ids;
    for (const StoredSession& stored : *found) ids.push_back(stored.key.checkpoint);
    return ids;
  }

  FakeTier disk_{"disk", true, 0};
  FakeTier redis_{"redis", true, 0};
  TierStack stack_{{&disk_, &redis_}, {.retry_after = absl::ZeroDuration()}};
};

TEST_F(NamedCheckpointsTest, AreListedByIdWithTheirBytes) {
  EXPECT_THAT(Ids("a"), IsEmpty());
  Checkpoint(Key("a"), 1);
  Checkpoint(Key("a", "two"), 2);
  Checkpoint(Key("a", "one"), 1);
  Checkpoint(Key("b", "other"), 1);
  GDN_ASSERT_OK_AND_ASSIGN(const auto found, stack_.ListCheckpoints(Key("a")));
  ASSERT_EQ(found.size(), 2u) << "the newest has no name";
  EXPECT_EQ(found[0].key, Key("a", "one"));
  EXPECT_EQ(found[0].bytes, 100);
  EXPECT_EQ(found[1].layers.at(0).second.token_count, 2);
  EXPECT_FALSE(disk_.overlapped());
}

TEST_F(NamedCheckpointsTest, OfAnEarlierProcessAreKnownOnceTheyAreAdopted) {
  ASSERT_TRUE(redis_.Store(Key("a", "kept"), MakeVersion(7)).ok());
  stack_.Adopt(Key("a", "kept"), redis_, 100);
  EXPECT_THAT(Ids("a"), ElementsAre("kept"));
  ASSERT_TRUE(stack_.EraseCheckpoint(Key("a", "kept")).ok());
  EXPECT_THAT(redis_.versions(), IsEmpty());
}

TEST_F(NamedCheckpointsTest, ThatAreDamagedCanBeSeenAndErased) {
  Checkpoint(Key("a", "bad"), 1);
  Checkpoint(Key("a", "good"), 1);
  disk_.Damage(Key("a", "bad"));
  GDN_ASSERT_OK_AND_ASSIGN(const auto found, stack_.ListCheckpoints(Key("a")));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].bytes, 0);
  EXPECT_EQ(found[1].bytes, 100);
  ASSERT_TRUE(stack_.EraseCheckpoint(Key("a", "bad")).ok());
  EXPECT_THAT(Ids("a"), ElementsAre("good"));
}

TEST_F(NamedCheckpointsTest, ThatAreErasedLeaveTheOthersAlone) {
  Checkpoint(Key("a"), 1);
  Checkpoint(Key("a", "one"), 1);
  Checkpoint(Key("a", "two"), 2);
  ASSERT_TRUE(stack_.EraseCheckpoint(Key("a", "one")).ok());
  EXPECT_THAT(Ids("a"), ElementsAre("two"));
  EXPECT_EQ(disk_.usage().used_bytes, 200);
  ExpectError(stack_.EraseCheckpoint(Key("a", "one")), absl::StatusCode::kNotFound, reason::kCheckpointNotFound);
  EXPECT_TRUE(absl::IsNotFound(stack_.FetchCheckpoint(Key("a", "one")).status()));
  Checkpoint(Key("a", "one"), 3);
  EXPECT_EQ(VersionOf(*stack_.FetchCheckpoint(Key("a", "one"))), 3);
}

TEST_F(NamedCheckpointsTest, ThatCannotBeErasedNowGoLater) {
  Checkpoint(Key("a", "one"), 1);
  disk_.FailAll(Unavailable("disk"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(stack_.EraseCheckpoint(Key("a", "one")))) << "nor does asking again say it is done";
  }
  EXPECT_THAT(Ids("a"), IsEmpty());
  EXPECT_TRUE(absl::IsUnavailable(stack_.FetchCheckpoint(Key("a", "one")).status()));
  disk_.FailAll(absl::OkStatus());
  ASSERT_TRUE(stack_.EraseCheckpoint(Key("a", "one")).ok());
  EXPECT_THAT(disk_.versions(), IsEmpty());
  ExpectError(stack_.EraseCheckpoint(Key("a", "one")), absl::StatusCode::kNotFound, reason::kCheckpointNotFound);
}

TEST_F(NamedCheckpointsTest, OfATierThatCannotBeReadAreNotSaidToBeNone) {
  Checkpoint(Key("a", "one"), 1);
  disk_.FailLoads(Unavailable("disk"));
  EXPECT_TRUE(absl::IsUnavailable(stack_.ListCheckpoints(Key("a")).status()));
}

TEST_F(NamedCheckpointsTest, AreSoManyAtMost) {
  for (size_t i = 0; i < kMostNamedCheckpoints; ++i) {
    const StateKey key = Key("a", std::to_string(i));
    ASSERT_TRUE(stack_.CheckNamedCheckpoints(key).ok());
    Checkpoint(key, 1);
  }
  const absl::Status refused = stack_.CheckNamedCheckpoints(Key("a", "more"));
  ExpectError(refused, absl::StatusCode::kResourceExhausted, reason::kTooManyCheckpoints);
  EXPECT_EQ(ErrorMetadata(refused).at("limit"), "64");
  EXPECT_THAT(refused.message(), HasSubstr("DeleteCheckpoint"));
  EXPECT_TRUE(stack_.CheckNamedCheckpoints(Key("a", "7")).ok()) << "that one is there";
  EXPECT_TRUE(stack_.CheckNamedCheckpoints(Key("a")).ok()) << "the newest has no name";
  EXPECT_TRUE(stack_.CheckNamedCheckpoints(Key("b", "more")).ok());
  ASSERT_TRUE(stack_.EraseCheckpoint(Key("a", "7")).ok());
  EXPECT_TRUE(stack_.CheckNamedCheckpoints(Key("a", "more")).ok());
}

}  // namespace
}  // namespace gdn::named_checkpoints_test
