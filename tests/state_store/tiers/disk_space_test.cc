// Watermarks of a disk whose file system is made up.
#include "state_store/tiers/disk/disk_space.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "state_store/tiers/tier_stack.h"
#include "tests/state_store/tiers/disk_tier_fixture.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/support/assert_ok.h"

namespace gdn::disk_space_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTotal = 100'000'000;

StateKey KeyOf(const std::string& id) { return {.principal = "ab12", .id = id, .checkpoint = ""}; }

TestSession SessionOf(const std::string& id) {
  TestSession session = MakeModelSession();
  session.header.id = id;
  return session;
}

class DiskSpaceTest : public DiskTierFixture {
 protected:
  DiskSpaceTest() { OpenWith(90, 80); }

  void OpenWith(int32_t high, int32_t low) {
    tier_.reset();
    DiskTierOptions options{.directory = path_, .max_draft = 8};
    options.watermarks = {.high_percent = high, .low_percent = low, .space = [this](const std::string& folder) {
                            EXPECT_EQ(folder, path_);
                            ++asked_;
                            return space_;
                          }};
    tier_ = *DiskTier::Open(options, memory_.host);
  }
  void Use(int64_t percent) { space_ = DiskSpace{.used_bytes = kTotal / 100 * percent, .total_bytes = kTotal}; }
  absl::Status StoreOf(const std::string& id) { return Store(KeyOf(id), SessionOf(id)).status(); }
  void ExpectRefused(const std::string& id) {
    const absl::Status refused = StoreOf(id);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_EQ(ErrorReason(refused), reason::kStateBudgetExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--disk-high-watermark 90 %"));
    EXPECT_EQ(ErrorMetadata(refused)["tier"], "disk");
    EXPECT_GT(std::stoll(ErrorMetadata(refused)["needed"]), 0);
    EXPECT_TRUE(absl::IsNotFound(tier_->Load(KeyOf(id)).status()));
  }

  absl::StatusOr<DiskSpace> space_ = DiskSpace{.used_bytes = kTotal / 2, .total_bytes = kTotal};
  int asked_ = 0;
};

TEST_F(DiskSpaceTest, AboveTheHighMarkNothingNewIsTakenUntilTheLowOne) {
  EXPECT_TRUE(StoreOf("a").ok());
  EXPECT_EQ(tier_->watermarks().problem(), "");
  Use(91);
  ExpectRefused("b");
  EXPECT_THAT(tier_->watermarks().problem(), HasSubstr("91000000 of 100000000 bytes"));
  EXPECT_DOUBLE_EQ(tier_->watermarks().used_share(), 0.91);
  EXPECT_TRUE(StoreOf("a").ok()) << "it replaces one";
  ExpectLoads(*tier_, KeyOf("a"), SessionOf("a"));
  Use(85);
  ExpectRefused("b");
  Use(80);
  EXPECT_TRUE(StoreOf("b").ok());
  EXPECT_EQ(tier_->watermarks().problem(), "");
  Use(85);
  EXPECT_TRUE(StoreOf("c").ok()) << "not above the high one since";
}

TEST_F(DiskSpaceTest, AStateThatWouldPassTheMarkIsRefusedAlone) {
  space_ = DiskSpace{.used_bytes = kTotal / 100 * 90 - 10, .total_bytes = kTotal};
  ExpectRefused("a");
  EXPECT_EQ(tier_->watermarks().problem(), "");
}

TEST_F(DiskSpaceTest, BothChangesAreLoggedOnce) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  Use(95);
  for (int i = 0; i < 3; ++i) tier_->watermarks().Look();
  const std::string above = log.str();
  log.str("");
  Use(70);
  for (int i = 0; i < 3; ++i) tier_->watermarks().Look();
  spdlog::set_default_logger(before);
  EXPECT_THAT(above, HasSubstr("degraded: no new states are put on the disk"));
  EXPECT_EQ(std::ranges::count(above, '\n'), 1);
  EXPECT_THAT(log.str(), HasSubstr("new states are put on the disk again"));
  const std::string below = log.str();
  EXPECT_EQ(std::ranges::count(below, '\n'), 1);
}

TEST_F(DiskSpaceTest, WhereTheSystemDoesNotAnswerAllStaysAsItWas) {
  space_ = Unavailable("disk");
  EXPECT_TRUE(StoreOf("a").ok());
  Use(95);
  ExpectRefused("b");
  space_ = Unavailable("disk");
  ExpectRefused("b");
}

TEST_F(DiskSpaceTest, WithoutWatermarksNobodyAsks) {
  for (const int32_t high : {0, 100}) {
    OpenWith(high, 0);
    Use(100);
    EXPECT_TRUE(StoreOf("a" + std::to_string(high)).ok());
    tier_->watermarks().Look();
    EXPECT_EQ(asked_, 0);
  }
}

TEST_F(DiskSpaceTest, AtTheEndAllIsTaken) {
  Use(95);
  ExpectRefused("a");
  tier_->watermarks().Lift();
  EXPECT_TRUE(StoreOf("a").ok());
}

TEST_F(DiskSpaceTest, NewStatesGoToTheNextTierAndNoneMovesForThem) {
  FakeTier redis("redis", true, 0);
  TierStack stack({tier_.get(), &redis});
  ASSERT_TRUE(stack.Park(KeyOf("a"), MakeImage(SessionOf("a"), memory_.host)).ok());
  Use(95);
  ASSERT_TRUE(stack.Park(KeyOf("b"), MakeImage(SessionOf("b"), memory_.host)).ok());
  EXPECT_EQ(stack.PlaceOf(KeyOf("a")), "disk");
  EXPECT_EQ(stack.PlaceOf(KeyOf("b")), "redis");
  redis.FailStores(Unavailable("redis"));
  EXPECT_FALSE(stack.Park(KeyOf("c"), MakeImage(SessionOf("c"), memory_.host)).ok());
  ASSERT_TRUE(stack.Park(KeyOf("a"), MakeImage(SessionOf("a"), memory_.host)).ok());
  EXPECT_EQ(stack.PlaceOf(KeyOf("a")), "disk");
}

TEST_F(DiskSpaceTest, WithoutANextTierTheStateStaysWithItsCaller) {
  TierStack stack({tier_.get()});
  Use(95);
  const absl::Status refused = stack.Park(KeyOf("a"), MakeImage(SessionOf("a"), memory_.host));
  EXPECT_EQ(ErrorReason(refused), reason::kStateBudgetExhausted) << refused;
  EXPECT_TRUE(stack.TakesStates().ok()) << "what is there may be replaced meanwhile";
}

TEST(SpaceOf, SaysHowFullARealOneIs) {
  const TempFolder folder;
  GDN_ASSERT_OK_AND_ASSIGN(const DiskSpace space, SpaceOf(folder.path()));
  EXPECT_GT(space.used_bytes, 0);
  EXPECT_GE(space.total_bytes, space.used_bytes);
  EXPECT_EQ(SpaceOf(folder.path() + "/none").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gdn::disk_space_test
