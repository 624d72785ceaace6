#include "kernels/common/slot_set.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"

namespace gdn::slot_set_test {
namespace {

// A SlotSet agrees with std::set, with as many slots as fit without an allocation and with more.
TEST(SlotSet, KnowsWhatIsInIt) {
  Random random(7);
  for (const int32_t count : {0, 1, 2, 3, 64, 255, 256, 5000}) {
    for (const float range : {4.0f, 100.0f, 3.0e6f}) {
      std::set<int32_t> expected;
      SlotSet set(count);
      for (const float value : random.Uniform(count, -0.5f * range, range)) {
        const auto slot = static_cast<int32_t>(value);
        EXPECT_EQ(set.Contains(slot), expected.contains(slot)) << slot;
        EXPECT_EQ(set.Add(slot), expected.insert(slot).second) << slot;
        EXPECT_TRUE(set.Contains(slot)) << slot;
      }
      for (const int32_t slot : expected) {
        EXPECT_TRUE(set.Contains(slot)) << slot;
        EXPECT_EQ(set.Contains(slot + 1), expected.contains(slot + 1)) << slot;
      }
    }
  }
}

// Slots of a pool at equal distances, such as one of each block.
TEST(SlotSet, HoldsSlotsAtEqualDistances) {
  for (const int32_t distance : {1, 2, 64, 4096, 1 << 20}) {
    SlotSet set(2000);
    for (int32_t i = 0; i < 2000; ++i) EXPECT_TRUE(set.Add(i * distance)) << distance;
    for (int32_t i = 0; i < 2000; ++i) EXPECT_FALSE(set.Add(i * distance)) << distance;
    EXPECT_FALSE(set.Contains(2000 * distance));
  }
}

TEST(SlotSet, RepeatedSlotsAreNamedFromTheLeast) {
  const absl::Status status = RepeatedSlot("Op", "dst", {9, 4, 2, 9, 4});
  EXPECT_THAT(status, IsInvalid("Op: slot 4 is in dst more than once; expected distinct slots"));
}

}  // namespace
}  // namespace gdn::slot_set_test
