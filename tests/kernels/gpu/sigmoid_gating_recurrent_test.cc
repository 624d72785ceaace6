// Gates and step in one launch against the two launches it stands for.

#include "kernels/primitives/sigmoid_gating_recurrent/sigmoid_gating_recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <vector>

#include "base/error.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "tests/support/assert_ok.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn::sigmoid_gating_recurrent_test {
namespace {

class SigmoidGatingRecurrent : public ::testing::TestWithParam<int> {
 protected:
  gpu::Stream stream() const { return {.handle = nullptr, .wave_width = GetParam(), .processors = 2}; }
};

TEST(SigmoidGatingRecurrentParams, DecaysByChannelAreRefused) {
  const LayerDims dims = ChannelDims(1, 2, 32, 16);
  Random random(5);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 3, random);
  const std::vector<int32_t> cu_seqlens = {0, 3};
  const std::vector<int32_t> slots = {0};
  HostStatePool pool(dims, 1);
  std::vector<float> out(3 * dims.value_features()), gates(3 * 2 * 32);
  SigmoidGatingRecurrentParams params{
      .rule = MakeDeltaRuleParams(inputs, pool.view(),
                                  {.sequences = 1, .cu_seqlens = cu_seqlens.data(), .slots = slots.data()}, out),
      .a = gates.data(),
      .b = gates.data(),
      .a_log = gates.data(),
      .dt_bias = gates.data()};
  const absl::Status refused = ValidateSigmoidGatingRecurrent(params);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(refused), reason::kInvalidSpec);
}

// Device memory is plain memory on the host executor.
TEST_P(SigmoidGatingRecurrent, HasTheBitsOfGatingThenScan) {
  Random random(5);
  for (const LayerDims& dims : {OperatorDims(2, 4, 32, 48), OperatorDims(1, 3, 33, 17), OperatorDims(1, 2, 128, 128)}) {
    SCOPED_TRACE(LayerDimsToString(dims));
    const std::vector<int32_t> cu_seqlens = {0, 1, 6, 6};
    const std::vector<int32_t> slots = {2, 0, 1};
    const int64_t tokens = cu_seqlens.back();
    const int64_t heads = dims.value_heads;
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, tokens, random);
    const std::vector<float> a = random.Normal(tokens * heads);
    const std::vector<float> b = random.Normal(tokens * heads);
    const std::vector<float> a_log = random.Normal(heads);
    const std::vector<float> dt_bias = random.Normal(heads);
    const PackedBatch batch{.sequences = 3, .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
    const gpu::DeviceBatch device{.sequences = 3,
                                  .tokens = static_cast<int32_t>(tokens),
                                  .max_length = 5,
                                  .cu_seqlens = cu_seqlens.data(),
                                  .slots = slots.data()};
    for (ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
      std::vector<float> rates = a_log;
      if (convention == ALogConvention::kNegativeExp) {
        for (float& rate : rates) rate = -std::exp(rate);
      }
      // All slots are zero, so the base's axis order does not matter at the start.
      HostStatePool fused_pool(dims, 3), apart_pool(dims, 3);
      std::vector<float> fused(tokens * dims.value_features(), -1.0f), apart(fused.size(), -2.0f);
      SigmoidGatingRecurrentParams params{.rule = MakeDeltaRuleParams(inputs, fused_pool.view(), batch, fused),
                                          .convention = convention,
                                          .a = a.data(),
                                          .b = b.data(),
                                          .a_log = rates.data(),
                                          .dt_bias = dt_bias.data()};
      params.rule.g = nullptr;
      params.rule.beta = nullptr;
      ASSERT_EQ(SigmoidGatingRecurrentGpu(params, device, stream()), absl::OkStatus());

      std::vector<float> g(tokens * heads), beta(tokens * heads);
      ASSERT_EQ(GatingGpu({.convention = convention,
                           .value_heads = dims.value_heads,
                           .rows = tokens,
                           .a = a.data(),
                           .b = b.data(),
                           .a_log = rates.data(),
                           .dt_bias = dt_bias.data(),
                           .g = g.data(),
                           .beta = beta.data()},
                          stream()),
                absl::OkStatus());
      DeltaRuleParams rule = MakeDeltaRuleParams(inputs, apart_pool.view(), batch, apart);
      rule.g = g.data();
      rule.beta = beta.data();
      ASSERT_EQ(DeltaRuleScanGpu(rule, device, stream()), absl::OkStatus());
      EXPECT_EQ(fused, apart);
      for (int32_t slot = 0; slot < 3; ++slot) {
        EXPECT_TRUE(
            std::equal(fused_pool.slot(slot).begin(), fused_pool.slot(slot).end(), apart_pool.slot(slot).begin()));
      }
    }
  }
}

TEST_P(SigmoidGatingRecurrent, RefusesMissingGates) {
  const LayerDims dims = OperatorDims(1, 1, 32, 32);
  HostStatePool pool(dims, 1);
  const std::vector<int32_t> cu_seqlens = {0, 1};
  const std::vector<int32_t> slots = {0};
  Random random(1);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 1, random);
  std::vector<float> output(dims.value_features());
  const SigmoidGatingRecurrentParams params{
      .rule = MakeDeltaRuleParams(inputs, pool.view(),
                                  {.sequences = 1, .cu_seqlens = cu_seqlens.data(), .slots = slots.data()}, output)};
  const absl::Status status = SigmoidGatingRecurrentGpu(params, {}, stream());
  ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInputMissing);
}

INSTANTIATE_TEST_SUITE_P(Waves, SigmoidGatingRecurrent, ::testing::Values(64, 32));

}  // namespace
}  // namespace gdn::sigmoid_gating_recurrent_test
