#include "kernels/common/state_layout.h"

#include <vector>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/common/delta_rule.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {
namespace {

using ::testing::HasSubstr;

LayerDims FullDims() {
  LayerDims dims = OperatorDims(/*key_heads=*/3, /*value_heads=*/6, /*key_dim=*/5, /*value_dim=*/7);
  dims.conv_width = 4;
  dims.hidden_size = 64;
  return dims;
}

TEST(StateLayout, SectionsFollowEachOtherOnCacheLinesWithoutOverlap) {
  const StateLayout layout = StateLayout::Make(FullDims(), /*max_draft=*/3).value();
  const LayerDims& dims = layout.dims();
  EXPECT_EQ(layout.log_rows(), kLogCapacity + 3);
  EXPECT_EQ(layout.conv_columns(), 3 + 3);
  const int64_t starts[] = {layout.base_offset(),  layout.log_k_offset(), layout.log_u_offset(),
                            layout.log_g_offset(), layout.conv_offset(),  layout.slot_floats()};
  const int64_t sizes[] = {dims.state_elements(), layout.log_rows() * dims.key_features(),
                           layout.log_rows() * dims.value_features(), int64_t{layout.log_rows()} * dims.value_heads,
                           layout.conv_columns() * dims.conv_channels()};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(starts[i] % 16, 0) << "section " << i;
    EXPECT_GE(starts[i + 1], starts[i] + sizes[i]) << "section " << i;
    EXPECT_LT(starts[i + 1], starts[i] + sizes[i] + 16) << "section " << i;
  }
  EXPECT_EQ(layout.slot_floats() % 16, 0);
  EXPECT_EQ(layout.slot_bytes(), layout.slot_floats() * 4);
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
  EXPECT_EQ(StateLayout::Make(OperatorDims(2, 3, 8, 8), 4).status().code(), absl::StatusCode::kInvalidArgument);
  for (const int32_t max_draft : {-1, 0, kMaxDraftLimit + 1}) {
    const absl::Status status = StateLayout::Make(FullDims(), max_draft).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << max_draft;
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec) << max_draft;
    EXPECT_THAT(std::string(status.message()), HasSubstr("max_draft"));
  }
}

void ExpectRefused(const absl::Status& status, const char* part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
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
  ExpectRefused(check({1, 3, 5}, slots), "cu_seqlens[0]");
  ExpectRefused(check({0, 3, 2}, slots), "cu_seqlens[2]");
  ExpectRefused(check(offsets, {0, 2}), "slots[1]");
  ExpectRefused(check(offsets, {1, 1}), "slot 1");
  EXPECT_TRUE(check(offsets, {-1, -1}).ok());
  ExpectRefused(ValidatePackedBatch({.sequences = -1, .cu_seqlens = offsets.data()}, 2), "sequences");
  ExpectRefused(ValidatePackedBatch({.sequences = 2, .slots = slots.data()}, 2), "cu_seqlens");
  ExpectRefused(ValidatePackedBatch({.sequences = 2, .cu_seqlens = offsets.data()}, 2), "slots");
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
  const DeltaRuleParams good = MakeDeltaRuleParams(inputs, pool.view(), batch, output);
  EXPECT_TRUE(ValidateDeltaRule(good).ok());

  const auto check = [&](const char* part, auto change) {
    DeltaRuleParams params = good;
    change(params);
    ExpectRefused(ValidateDeltaRule(params), part);
  };
  check("q is null", [](DeltaRuleParams& p) { p.q = nullptr; });
  check("k is null", [](DeltaRuleParams& p) { p.k = nullptr; });
  check("v is null", [](DeltaRuleParams& p) { p.v = nullptr; });
  check("g is null", [](DeltaRuleParams& p) { p.g = nullptr; });
  check("beta is null", [](DeltaRuleParams& p) { p.beta = nullptr; });
  check("output is null", [](DeltaRuleParams& p) { p.output = nullptr; });
  check("pool.data", [](DeltaRuleParams& p) { p.pool.data = nullptr; });
  check("q_stride", [](DeltaRuleParams& p) { p.q_stride = 3; });
  check("k_stride", [](DeltaRuleParams& p) { p.k_stride = -1; });
  check("v_stride", [](DeltaRuleParams& p) { p.v_stride = 7; });
  check("cu_seqlens", [](DeltaRuleParams& p) { p.batch.cu_seqlens = nullptr; });
}

}  // namespace
}  // namespace gdn
