#include "server/scheduler/launch_cost.h"

#include <random>

#include "gtest/gtest.h"

namespace gdn::launch_cost_test {
namespace {

TEST(LaunchCost, IsWhatItWasMadeWithUntilItIsMeasured) {
  const LaunchCost cost(40, 3);
  EXPECT_NEAR(cost.Estimate(1), 43, 1e-6);
  EXPECT_NEAR(cost.Estimate(100), 340, 1e-6);
  EXPECT_EQ(cost.TokensWithin(340.5), 100);
  EXPECT_EQ(cost.TokensWithin(40), 0);
}

TEST(LaunchCost, LearnsALineThroughNoise) {
  LaunchCost cost(40, 3);
  std::mt19937 random(1);
  std::uniform_real_distribution<> noise(0.9, 1.1);
  for (int i = 0; i < 300; ++i) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 512);
    cost.Observe(tokens, (200 + 7 * static_cast<double>(tokens)) * noise(random));
  }
  for (const int64_t tokens : {32, 256, 512}) {
    EXPECT_NEAR(cost.Estimate(tokens) / (200 + 7.0 * static_cast<double>(tokens)), 1, 0.15) << tokens;
  }
}

TEST(LaunchCost, FollowsLaunchesOfOneSize) {
  LaunchCost cost(40, 3);
  for (int i = 0; i < 200; ++i) cost.Observe(512, 9000);
  EXPECT_NEAR(cost.Estimate(512), 9000, 90);
  for (int i = 0; i < 200; ++i) cost.Observe(512, 900);
  EXPECT_NEAR(cost.Estimate(512), 900, 9);
}

TEST(LaunchCost, IsNeverNegative) {
  LaunchCost cost(40, 3);
  for (int i = 0; i < 100; ++i) {
    cost.Observe(1, 1);
    cost.Observe(512, 5000);
    EXPECT_GE(cost.Estimate(1), 0);
  }
  for (int i = 0; i < 100; ++i) {  // larger launches that take less: of no line with a rising slope
    cost.Observe(1, 5000);
    cost.Observe(512, 1);
    EXPECT_GE(cost.Estimate(1), 0);
    EXPECT_GE(cost.Estimate(1 << 20), 0);
  }
}

}  // namespace
}  // namespace gdn::launch_cost_test
