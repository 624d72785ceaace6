// Forks: sessions with logs of their own over a base in another slot.

#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::decode_fork_test {
namespace {

constexpr int32_t kMaxDraft = 24;

// K and V that fill the lanes and that do not; columns that stay in memory on the GPU; heads that share keys.
const std::vector<LayerDims> kShapes = {OperatorDims(1, 2, 8, 5), OperatorDims(2, 4, 24, 40),
                                        OperatorDims(1, 1, 64, 32), OperatorDims(1, 1, 300, 3),
                                        OperatorDims(1, 1, 1001, 3)};

using DecodeFork = BackendTest;
GDN_ON_BACKENDS(DecodeFork, WithGpus({"cpu", "reference"}));

TEST_P(DecodeFork, HasTheBitsOfASessionWithItsOwnBaseAndLeavesTheSharedOneAlone) {
  for (const LayerDims& dims : WithChannelDecays(kShapes)) {
    SCOPED_TRACE(LayerDimsToString(dims));
    Random random(31);
    DecodeSlots slots(backend(), dims, /*slots=*/5, kMaxDraft);
    slots.SetBase(0, random.Normal(dims.state_elements()));
    Log parent{.slot = 0, .base_slot = 0};
    slots.Decode(RandomDeltaRuleInputs(dims, 5, random), parent);
    // 1 and 2 are forks of 0, and 3 and 4 the same with bases of their own.
    for (const int32_t slot : {1, 2, 3, 4}) slots.Copy(slot, 0);
    slots.PoisonBase(1);
    slots.PoisonBase(2);
    const std::vector<float> shared = slots.ReadAll(0);
    const std::vector<float> poisoned = slots.Read(1, 0).base;
    std::vector<Log> forks = {{1, 0, 5}, {2, 0, 5}};
    std::vector<Log> alone = {{3, 3, 5}, {4, 4, 5}};
    // The first fork folds in the second call, in its midst; the second in the fourth, at its end, and in the fifth.
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{4, 1}, {24, 3}, {0, 2}, {1, 5}, {7, 24}}) {
      const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, lengths[0] + lengths[1], random);
      std::vector<int32_t> folds;
      for (int i : {0, 1}) folds.push_back((forks[i].length + lengths[i]) / kLogCapacity);
      EXPECT_TRUE(BitEqual(slots.Decode(inputs, lengths, forks), slots.Decode(inputs, lengths, alone)));
      for (int i : {0, 1}) {
        EXPECT_EQ(forks[i].length, alone[i].length);
        if (folds[i] > 0) forks[i].base_slot = forks[i].slot;
        SlotImage expected = slots.Read(alone[i].slot, alone[i].length);
        if (forks[i].base_slot == 0) expected.base = poisoned;
        EXPECT_TRUE(BitEqual(slots.Read(forks[i].slot, forks[i].length), expected));
      }
      EXPECT_TRUE(BitEqual(slots.ReadAll(0), shared));
    }
    EXPECT_EQ(forks[0].base_slot, 1);
    EXPECT_EQ(forks[1].base_slot, 2);
  }
}

TEST_P(DecodeFork, BitsOfAFoldByMaterializeStateAreThoseOfADecodes) {
  for (const LayerDims& dims : WithChannelDecays(kShapes)) {
    SCOPED_TRACE(LayerDimsToString(dims));
    Random random(32);
    DecodeSlots slots(backend(), dims, /*slots=*/3, kMaxDraft);
    const std::vector<float> base = random.Normal(dims.state_elements());
    for (const int32_t slot : {0, 1, 2}) slots.SetBase(slot, base);
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, kLogCapacity, random);
    Log decoded{.slot = 0, .base_slot = 0};
    slots.Decode(inputs, decoded);
    ASSERT_EQ(decoded.length, 0);
    Log drafted{.slot = 1, .base_slot = 2};
    slots.PoisonBase(1);
    slots.Decode(inputs, drafted, /*draft=*/true);
    ASSERT_EQ(drafted.length, kLogCapacity);
    ASSERT_EQ(slots.Materialize({drafted.slot}, {drafted.slot}, {drafted.length}, {drafted.base_slot}),
              absl::OkStatus());
    EXPECT_TRUE(BitEqual(slots.Read(1, 0).base, slots.Read(0, 0).base));
    EXPECT_TRUE(BitEqual(slots.Read(2, 0).base, base));
  }
}

TEST_P(DecodeFork, MaterializeStateCopiesASharedBaseUnderAnEmptyLog) {
  const LayerDims dims = OperatorDims(1, 2, 8, 5);
  Random random(33);
  DecodeSlots slots(backend(), dims, /*slots=*/3, kMaxDraft);
  const std::vector<float> base = random.Normal(dims.state_elements());
  slots.SetBase(0, base);
  slots.PoisonBase(1);
  ASSERT_EQ(slots.Materialize({1, -1}, {1, 2}, {0, 0}, {0, -5}), absl::OkStatus());
  EXPECT_TRUE(BitEqual(slots.Read(1, 0).base, base));
  EXPECT_TRUE(BitEqual(slots.Read(2, 0).base, std::vector<float>(base.size(), 0.0f)));
}

}  // namespace
}  // namespace gdn::decode_fork_test
