// A TierStack over three tiers that a test can make fail.
//
// Thread safety: for one thread. Ownership: the fixture owns its tiers.
//
//   TEST_F(TierStackTest, ..) { Park("a", 1); EXPECT_EQ(Fetch(Key("a")), 1); }
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "state_store/tiers/tier_stack.h"
#include "tests/state_store/tiers/fake_tier.h"

namespace gdn {

// Images have 100 bytes; the tiers have room for 2, 3 and 4 of them.
class TierStackTest : public ::testing::Test {
 protected:
  void Park(const std::string& id, int64_t version) {
    const absl::Status status = stack_.Park(Key(id), MakeVersion(version));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Returns the version of the fetched state; -1 if Fetch fails.
  int64_t Fetch(const StateKey& key) {
    const absl::StatusOr<SessionImagePtr> image = stack_.Fetch(key);
    return image.ok() ? VersionOf(*image) : -1;
  }

  FakeTier host_{"host", false, 200};
  FakeTier disk_{"disk", true, 300};
  FakeTier redis_{"redis", true, 400};
  TierStack stack_{{&host_, &disk_, &redis_}, {.retry_after = absl::ZeroDuration()}};
};

}  // namespace gdn
