#include "state_store/tiers/host_tier.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/support/assert_ok.h"

namespace gdn::host_tier_test {
namespace {

using ::testing::HasSubstr;

TEST(HostTier, GivesBackTheVeryImageThatWasStored) {
  HostTier host(1000);
  const SessionImagePtr image = MakeVersion(7);
  const absl::StatusOr<StoreResult> stored = host.Store(Key("a"), image);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->written_bytes, 100);
  EXPECT_FALSE(stored->incremental);
  const absl::StatusOr<SessionImagePtr> loaded = host.Load(Key("a"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->get(), image.get());
  EXPECT_FALSE(host.durable());
}

TEST(HostTier, RefusesWhatExceedsItsBudgetAndKeepsTheOldState) {
  HostTier host(250);
  ASSERT_TRUE(host.Store(Key("a"), MakeVersion(1)).ok());
  ASSERT_TRUE(host.Store(Key("b"), MakeVersion(2)).ok());
  const absl::Status refused = host.Store(Key("c"), MakeVersion(3)).status();
  ExpectError(refused, absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("250"));
  EXPECT_TRUE(absl::IsResourceExhausted(host.Store(Key("a"), MakeVersion(4, 151)).status()));
  EXPECT_EQ(VersionOf(*host.Load(Key("a"))), 1);
  // Replacing counts what is replaced as free.
  EXPECT_TRUE(host.Store(Key("a"), MakeVersion(5, 150)).ok());
  EXPECT_EQ(host.usage().used_bytes, 250);
}

TEST(HostTier, AStoredReplyCountsAmongItsBytes) {
  HostTier host(250);
  const auto image = [](size_t reply_bytes) {
    auto made = std::make_shared<SessionImage>();
    auto reply = std::make_shared<StoredReply>();
    reply->output.assign(reply_bytes, 'x');
    made->layers.emplace_back().reply = std::move(reply);
    return made;
  };
  ASSERT_TRUE(host.Store(Key("a"), image(200)).ok());
  EXPECT_EQ(host.usage().used_bytes, 200);
  EXPECT_TRUE(absl::IsResourceExhausted(host.Store(Key("b"), image(51)).status()));
  EXPECT_TRUE(host.Store(Key("b"), image(50)).ok());
}

TEST(HostTier, HasNoLimitWhereNoneIsGiven) {
  HostTier host(0);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(host.Store(Key(std::to_string(i)), MakeVersion(i)).ok());
  EXPECT_EQ(host.usage().used_bytes, 10000);
}

TEST(HostTier, RefusesAnImageThatLeavesBasesOut) {
  HostTier host(1000);
  auto image = std::make_shared<SessionImage>(SessionImage{});
  image->layers.emplace_back().has_base = false;
  EXPECT_TRUE(absl::IsInvalidArgument(host.Store(Key("a"), image).status()));
  EXPECT_EQ(host.usage().sessions, 0);
}

TEST(HostTier, ErasesOneStateOrAllOfASession) {
  HostTier host(1000);
  for (const StateKey& key : {Key("a"), Key("a", "x"), Key("a", "y"), Key("ab"), Key("b")}) {
    ASSERT_TRUE(host.Store(key, MakeVersion(1)).ok());
  }
  EXPECT_TRUE(host.Erase(Key("a", "x"), /*all=*/false).ok());
  EXPECT_TRUE(host.Erase(Key("a", "x"), /*all=*/false).ok());
  EXPECT_TRUE(absl::IsNotFound(host.Load(Key("a", "x")).status()));
  EXPECT_TRUE(host.Load(Key("a")).ok());
  EXPECT_TRUE(host.Erase(Key("a"), /*all=*/true).ok());
  EXPECT_TRUE(absl::IsNotFound(host.Load(Key("a")).status()));
  EXPECT_TRUE(absl::IsNotFound(host.Load(Key("a", "y")).status()));
  EXPECT_TRUE(host.Load(Key("ab")).ok());
  EXPECT_TRUE(host.Load(Key("b")).ok());
  EXPECT_EQ(host.usage().used_bytes, 200);
}

TEST(HostTier, CountsWhatGoesInAndOut) {
  HostTier host(1000);
  ASSERT_TRUE(host.Store(Key("a"), MakeVersion(1)).ok());
  ASSERT_TRUE(host.Store(Key("a"), MakeVersion(2, 150)).ok());
  ASSERT_TRUE(host.Load(Key("a")).ok());
  const TierUsage usage = host.usage();
  EXPECT_EQ(usage.name, "host");
  EXPECT_EQ(usage.limit_bytes, 1000);
  EXPECT_EQ(usage.used_bytes, 150);
  EXPECT_EQ(usage.sessions, 1);
  EXPECT_EQ(usage.stores, 2);
  EXPECT_EQ(usage.stored_bytes, 250);
  EXPECT_EQ(usage.loads, 1);
  EXPECT_EQ(usage.loaded_bytes, 150);
}

}  // namespace
}  // namespace gdn::host_tier_test
