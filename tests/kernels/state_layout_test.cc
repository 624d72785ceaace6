#include "kernels/common/state_layout.h"

#include <vector>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/common/delta_rule.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/refusal.h"

namespace gdn::state_layout_test {
namespace {

LayerDims FullDims() {
  LayerDims dims = OperatorDims(/*key_heads=*/3, /*value_heads=*/6, /*key_dim=*/5, /*value_dim=*/7);
  dims.conv_width = 4;
  dims.hidden_size = 64;
  return dims;
}

void ExpectSectionsInOrder(const LayerDims& full) {
  SCOPED_TRACE(LayerDimsToString(full));
  const StateLayout layout = StateLayout::Make(full, /*max_draft=*/3).value();
  const LayerDims& dims = layout.dims();
  EXPECT_EQ(layout.log_rows(), kLogCapacity + 3);
  EXPECT_EQ(layout.conv_columns(), 3 + 3);
  const int64_t starts[] = {layout.base_offset(),  layout.log_k_offset(), layout.log_u_offset(),
                            layout.log_g_offset(), layout.conv_offset(),  layout.slot_floats()};
  const int64_t sizes[] = {dims.state_elements(), layout.log_rows() * dims.key_features(),
                           layout.log_rows() * dims.value_features(), layout.log_rows() * dims.decay_features(),
                           layout.conv_columns() * dims.conv_channels()};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(starts[i] % 16, 0) << "section " << i;
    EXPECT_GE(starts[i + 1], starts[i] + sizes[i]) << "section " << i;
    EXPECT_LT(starts[i + 1], starts[i] + sizes[i] + 16) << "section " << i;
  }
  EXPECT_EQ(layout.slot_floats() % 16, 0);
  EXPECT_EQ(layout.slot_bytes(), layout.slot_floats() * 4);
}

TEST(StateLayout, SectionsFollowEachOtherOnCacheLinesWithoutOverlap) {
  ExpectSectionsInOrder(FullDims());
  LayerDims by_channel = FullDims();
  by_channel.decay = DecayKind::kPerChannel;
  ExpectSectionsInOrder(by_channel);
  EXPECT_FALSE(StateLayout::Make(FullDims(), 3).value() == StateLayout::Make(by_channel, 3).value());
}

TEST(StateLayout, HasNoConvolutionColumnsForABareOperator) {
  const StateLayout layout = StateLayout::Make(OperatorDims(1, 2, 8, 8), /*max_draft=*/64).value();
  EXPECT_EQ(layout.conv_columns(), 0);
  EXPECT_EQ(layout.slot_floats(), layout.conv_offset());
}

TEST(StateLayout, FitsInt64AtTheLargestDims) {
  LayerDims dims = OperatorDims(kMaxHeads, kMaxHeads, kMaxHeadDim, kMaxHeadDim);
  dims.conv_width = kMaxConvWidth;
  dims.hidden_size = kMaxHiddenSize;
  const StateLayout layout = StateLayout::Make(dims, kMaxDraftLimit).value();
  EXPECT_GT(layout.slot_floats(), layout.conv_offset());
  EXPECT_GE(layout.conv_offset(), dims.state_elements());
}

TEST(StateLayout, RefusesBadDimsAndDrafts) {
  EXPECT_THAT(StateLayout::Make(OperatorDims(2, 3, 8, 8), 4).status(), IsInvalid(""));
  for (const int32_t max_draft : {-1, 0, kMaxDraftLimit + 1}) {
    const absl::Status status = StateLayout::Make(FullDims(), max_draft).status();
    EXPECT_THAT(status, IsInvalid("max_draft")) << max_draft;
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec) << max_draft;
  }
}

TEST(PackedBatch, AcceptsEmptySequencesPaddingAndNoSequences) {
  const std::vector<int32_t> offsets = {0, 3, 3, 10};
  const std::vector<int32_t> slots = {5, -1, 0};
  const PackedBatch batch{.sequences = 3, .cu_seqlens = offsets.data(), .slots = slots.data()};
  EXPECT_TRUE(ValidatePackedBatch(batch, 6).ok());
  EXPECT_EQ(batch.tokens(), 10);
  EXPECT_EQ(batch.length(1), 0);
  EXPECT_TRUE(ValidatePackedBatch({.sequences = 0, .cu_seqlens = offsets.data()}, 0).ok());
}

TEST(PackedBatch, NamesTheEntryThatBreaksTheContract) {
  const std::vector<int32_t> offsets = {0, 3, 5};
  const std::vector<int32_t> slots = {0, 1};
  const auto check = [](const std::vector<int32_t>& at, const std::vector<int32_t>& slot) {
    return ValidatePackedBatch({.sequences = 2, .cu_seqlens = at.data(), .slots = slot.data()}, 2);
  };
  EXPECT_TRUE(check(offsets, slots).ok());
  EXPECT_THAT(check({1, 3, 5}, slots), IsInvalid("cu_seqlens[0]"));
  EXPECT_THAT(check({0, 3, 2}, slots), IsInvalid("cu_seqlens[2]"));
  EXPECT_THAT(check(offsets, {0, 2}), IsInvalid("slots[1]"));
  EXPECT_THAT(check(offsets, {1, 1}), IsInvalid("slot 1"));
  EXPECT_TRUE(check(offsets, {-1, -1}).ok());
  EXPECT_THAT(ValidatePackedBatch({.sequences = -1, .cu_seqlens = offsets.data()}, 2), IsInvalid("sequences"));
  EXPECT_THAT(ValidatePackedBatch({.sequences = 2, .slots = slots.data()}, 2), IsInvalid("cu_seqlens"));
  EXPECT_THAT(ValidatePackedBatch({.sequences = 2, .cu_seqlens = offsets.data()}, 2), IsInvalid("slots"));
}

// A batch is known again by what it holds, not by where it is.
TEST(PackedBatch, WhatChangedInPlaceIsCheckedAgain) {
  std::vector<int32_t> offsets = {0, 1, 2, 3};
  std::vector<int32_t> slots = {4, 2, 0};
  const PackedBatch batch{.sequences = 3, .cu_seqlens = offsets.data(), .slots = slots.data()};
  const auto expect_valid = [&] {
    EXPECT_EQ(ValidatePackedBatch(batch, 5), absl::OkStatus());
    EXPECT_EQ(ValidatePackedBatch(batch, 5), absl::OkStatus());
  };
  expect_valid();
  EXPECT_THAT(ValidatePackedBatch(batch, 4),
              IsInvalid("batch: slots[0] is 4; expected 0 .. 3, or a negative number for padding"));
  expect_valid();
  slots[2] = 4;
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(ValidatePackedBatch(batch, 5),
                IsInvalid("batch: slot 4 is in slots more than once; expected distinct slots"));
  }
  slots[2] = 1;
  expect_valid();
  offsets[2] = 0;
  EXPECT_THAT(ValidatePackedBatch(batch, 5),
              IsInvalid("batch: cu_seqlens[2] is 0; expected 1 or more: offsets never fall"));
  offsets[2] = 1;
  expect_valid();
  slots[1] = 5;
  // Fewer sequences of the same arrays, and then all of them.
  EXPECT_EQ(ValidatePackedBatch({.sequences = 1, .cu_seqlens = offsets.data(), .slots = slots.data()}, 5),
            absl::OkStatus());
  EXPECT_THAT(ValidatePackedBatch(batch, 5), IsInvalid("slots[1] is 5"));
}

TEST(PackedBatch, TokenCountsOfSequencesWithASlotAreNotNegative) {
  const std::vector<int32_t> offsets = {0, 1, 2};
  const std::vector<int32_t> slots = {-1, 1};
  const PackedBatch batch{.sequences = 2, .cu_seqlens = offsets.data(), .slots = slots.data()};
  std::vector<int64_t> counts = {-1, 0};
  EXPECT_EQ(ValidateTokenCounts("Op", batch, counts.data()), absl::OkStatus());
  counts[1] = -7;
  EXPECT_THAT(ValidateTokenCounts("Op", batch, counts.data()),
              IsInvalid("Op: token_counts[1] is -7; expected 0 .. 9007199254740992"));
  EXPECT_THAT(ValidateTokenCounts("Op", batch, nullptr), IsInvalid("token_counts"));
}

TEST(StatePools, OfOneLayoutAreNumberedAlike) {
  const StateLayout layout = *StateLayout::Make(OperatorDims(1, 2, 4, 4), /*max_draft=*/4);
  std::vector<float> memory(static_cast<size_t>(10 * layout.slot_floats()));
  const auto pool = [&](int64_t first, int32_t count) {
    return StatePoolView{.layout = layout, .data = memory.data() + first * layout.slot_floats(), .slot_count = count};
  };
  const StatePoolView low = pool(1, 2), high = pool(5, 4);
  for (const auto& [one, other] : {std::pair(low, high), std::pair(high, low)}) {
    StatePoolView all = one;
    ASSERT_TRUE(JoinPools(other, &all));
    EXPECT_EQ(all.data, low.data);
    EXPECT_EQ(all.slot_count, 8);
    for (const StatePoolView& each : {low, high}) {
      for (int32_t slot = 0; slot < each.slot_count; ++slot) {
        EXPECT_EQ(all.slot(SlotIn(all, each, slot)), each.slot(slot));
      }
      EXPECT_EQ(SlotIn(all, each, -1), -1);
    }
    ASSERT_TRUE(JoinPools(low, &all));
    EXPECT_EQ(all.slot_count, 8) << "it was in already";
  }
}

TEST(StatePools, TooFarApartAreNotJoined) {
  const StateLayout layout = *StateLayout::Make(OperatorDims(1, 2, 4, 4), /*max_draft=*/4);
  const int64_t bytes = layout.slot_bytes();
  const auto at = [&](int64_t slot) {
    return StatePoolView{.layout = layout, .data = reinterpret_cast<float*>(slot * bytes), .slot_count = 3};
  };
  StatePoolView all = at(7);
  EXPECT_FALSE(JoinPools(at(int64_t{1} << 32), &all));
  EXPECT_EQ(all.data, at(7).data);
  EXPECT_EQ(all.slot_count, 3);
  EXPECT_TRUE(JoinPools(at(int64_t{1} << 30), &all));
}

TEST(DeltaRuleParams, MissingPointersAndShortStridesAreRefused) {
  const LayerDims dims = OperatorDims(1, 2, 4, 4);
  Random random(1);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 3, random);
  HostStatePool pool(dims, 1);
  const std::vector<int32_t> offsets = {0, 3};
  const std::vector<int32_t> slots = {0};
  const PackedBatch batch{.sequences = 1, .cu_seqlens = offsets.data(), .slots = slots.data()};
  std::vector<float> output(inputs.v.size());
  ExpectRefused<DeltaRuleParams>(ValidateDeltaRule, MakeDeltaRuleParams(inputs, pool.view(), batch, output),
                                 {{"q is null", [](auto& p) { p.q = nullptr; }},
                                  {"k is null", [](auto& p) { p.k = nullptr; }},
                                  {"v is null", [](auto& p) { p.v = nullptr; }},
                                  {"g is null", [](auto& p) { p.g = nullptr; }},
                                  {"beta is null", [](auto& p) { p.beta = nullptr; }},
                                  {"output is null", [](auto& p) { p.output = nullptr; }},
                                  {"pool.data", [](auto& p) { p.pool.data = nullptr; }},
                                  {"q_stride", [](auto& p) { p.q_stride = 3; }},
                                  {"k_stride", [](auto& p) { p.k_stride = -1; }},
                                  {"v_stride", [](auto& p) { p.v_stride = 7; }},
                                  {"cu_seqlens", [](auto& p) { p.batch.cu_seqlens = nullptr; }}});
}

}  // namespace
}  // namespace gdn::state_layout_test
