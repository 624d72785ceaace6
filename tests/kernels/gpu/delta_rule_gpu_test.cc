// The production delta-rule kernels on the host executor, against their references in double.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "tests/kernels/gpu/delta_rule_gpu_problem.h"
#include "tests/support/compare.h"

namespace gdn {
namespace {

constexpr double kTolerance = 5e-6;

struct Shape {
  int32_t key_heads, value_heads, key_dim, value_dim;
};
constexpr Shape kShapes[] = {{1, 2, 32, 48}, {2, 2, 48, 32}, {1, 3, 24, 40}, {1, 1, 33, 17}, {1, 1, 64, 64}};

LayerDims DimsOf(const Shape& shape) {
  return OperatorDims(shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim);
}

class DeltaRuleGpu : public testing::TestWithParam<int> {
 protected:
  gpu::Stream stream() const { return {.handle = nullptr, .wave_width = GetParam(), .processors = 2}; }

  // Outputs and states of `path` against the scan's reference, from a random state.
  void ExpectMatchesReference(DeltaRulePath path, const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths,
                              const std::vector<int32_t>& slots, double state_size = 1.0) {
    Random random(17);
    GpuProblem gpu(inputs, lengths, slots, stream());
    HostStatePool expected(inputs.dims, gpu.slot_count());
    for (int32_t slot = 0; slot < gpu.slot_count(); ++slot) {
      const std::vector<float> base = random.Normal(inputs.dims.state_elements(), static_cast<float>(state_size));
      expected.SetBase(slot, base);
      gpu.SetBase(slot, base);
    }
    const absl::Status status = gpu.Run(path);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<float> expected_output(inputs.v.size());
    const std::vector<int32_t> starts = CumulativeLengths(lengths);
    const PackedBatch batch{
        .sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = starts.data(), .slots = slots.data()};
    DeltaRuleScanReference(MakeDeltaRuleParams(inputs, expected.view(), batch, expected_output));
    EXPECT_LE(RelativeNormError(gpu.output(), expected_output), kTolerance) << DeltaRulePathName(path);
    for (int32_t slot = 0; slot < gpu.slot_count(); ++slot) {
      EXPECT_LE(RelativeNormError(gpu.Base(slot), expected.base(slot)), kTolerance)
          << DeltaRulePathName(path) << " slot " << slot;
    }
  }

  void ExpectAllPathsMatch(const DeltaRuleInputs& inputs, double state_size = 1.0) {
    for (DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode}) {
      ExpectMatchesReference(path, inputs, {static_cast<int32_t>(inputs.tokens)}, {0}, state_size);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Waves, DeltaRuleGpu, testing::Values(64, 32),
                         [](const auto& width) { return "Of" + std::to_string(width.param); });

TEST_P(DeltaRuleGpu, EveryPathMatchesTheReferenceForEveryLength) {
  const LayerDims dims = OperatorDims(1, 2, 32, 48);
  for (int64_t tokens : {0, 1, 31, 32, 33, 64, 65}) {
    SCOPED_TRACE(tokens);
    Random random(tokens + 1);
    ExpectAllPathsMatch(RandomDeltaRuleInputs(dims, tokens, random));
  }
}

TEST_P(DeltaRuleGpu, EveryPathMatchesTheReferenceForEveryShape) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(LayerDimsToString(DimsOf(shape)));
    Random random(3);
    ExpectAllPathsMatch(RandomDeltaRuleInputs(DimsOf(shape), 35, random));
  }
}

TEST_P(DeltaRuleGpu, EveryPathMatchesTheReferenceForLargeHeads) {
  for (const Shape& shape : {Shape{1, 1, 128, 128}, {1, 1, 200, 20}, {1, 1, 256, 64}, {1, 1, 260, 17}}) {
    SCOPED_TRACE(LayerDimsToString(DimsOf(shape)));
    Random random(4);
    ExpectAllPathsMatch(RandomDeltaRuleInputs(DimsOf(shape), 5, random));
  }
  for (const Shape& shape : {Shape{1, 1, 512, 16}, {1, 1, 1000, 5}, {1, 1, 1024, 16}}) {
    SCOPED_TRACE(LayerDimsToString(DimsOf(shape)));
    Random random(5);
    ExpectAllPathsMatch(RandomDeltaRuleInputs(DimsOf(shape), 17, random));
  }
}

TEST_P(DeltaRuleGpu, PaddingTouchesNoStateAndZeroesItsRows) {
  Random random(6);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(OperatorDims(1, 2, 32, 48), 50, random);
  for (DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode}) {
    ExpectMatchesReference(path, inputs, {3, 34, 0, 13}, {2, -1, 0, 1});
  }
}

TEST_P(DeltaRuleGpu, StaysExactForStrongDecay) {
  const LayerDims dims = OperatorDims(1, 1, 32, 32);
  Random random(7);
  DeltaRuleInputs strong = RandomDeltaRuleInputs(dims, 65, random);
  std::fill(strong.g.begin(), strong.g.end(), -20.0f);
  ExpectAllPathsMatch(strong);
  for (float once : {-1e2f, -1e3f, -1e4f}) {
    SCOPED_TRACE(once);
    DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 65, random);
    std::fill(inputs.g.begin(), inputs.g.end(), -0.005f);
    inputs.g[9] = inputs.g[40] = once;
    ExpectAllPathsMatch(inputs);
  }
}

TEST_P(DeltaRuleGpu, StaysExactForEveryWriteStrength) {
  const LayerDims dims = OperatorDims(1, 1, 32, 32);
  for (float beta : {0.0f, 1.0f, 2.0f}) {
    SCOPED_TRACE(beta);
    Random random(8);
    DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 65, random, /*g_low=*/-0.1f);
    std::fill(inputs.beta.begin(), inputs.beta.end(), beta);
    ExpectAllPathsMatch(inputs);
  }
}

TEST_P(DeltaRuleGpu, StaysExactForZeroAndCorrelatedKeys) {
  const LayerDims dims = OperatorDims(1, 1, 32, 32);
  Random random(9);
  DeltaRuleInputs correlated = RandomDeltaRuleInputs(dims, 65, random, /*g_low=*/-0.01f);
  for (int64_t t = 1; t < correlated.tokens; ++t) {
    for (int64_t i = 0; i < 32; ++i) correlated.k[t * 32 + i] = correlated.k[i] + 0.02f * correlated.k[t * 32 + i];
  }
  ExpectAllPathsMatch(correlated);
  DeltaRuleInputs zero = RandomDeltaRuleInputs(dims, 65, random);
  std::fill(zero.k.begin() + 5 * 32, zero.k.begin() + 40 * 32, 0.0f);
  ExpectAllPathsMatch(zero);
}

// One sequence of 61 tokens, decoded in calls of the given sizes; slot, outputs and log length.
struct Decoded {
  std::vector<float> output;
  std::vector<float> slot;
  int32_t log_length = 0;
};
Decoded DecodeInCalls(const DeltaRuleInputs& inputs, const std::vector<int64_t>& calls, const gpu::Stream& stream) {
  Decoded decoded;
  Random random(10);
  const std::vector<float> base = random.Normal(inputs.dims.state_elements());
  GpuPool pool(inputs.dims, 1, /*max_draft=*/64);
  pool.SetBase(0, base);
  int64_t done = 0;
  for (int64_t tokens : calls) {
    GpuProblem part(Slice(inputs, done, done + tokens), {static_cast<int32_t>(tokens)}, {0}, stream);
    const absl::Status status = part.Decode(pool, &decoded.log_length);
    EXPECT_TRUE(status.ok()) << status;
    decoded.output.insert(decoded.output.end(), part.output().begin(), part.output().end());
    done += tokens;
  }
  decoded.slot.assign(pool.slot(0).begin(), pool.slot(0).end());
  return decoded;
}

TEST_P(DeltaRuleGpu, DecodeOfManyTokensHasTheBitsOfDecodesOfOneAcrossFolds) {
  Random random(11);
  // The last two have an instance of their own for calls of one token.
  for (const Shape& shape :
       {Shape{1, 2, 32, 48}, {1, 2, 33, 17}, {1, 2, 300, 17}, {1, 1, 1001, 3}, {1, 2, 128, 128}, {1, 1, 256, 64}}) {
    SCOPED_TRACE(LayerDimsToString(DimsOf(shape)));
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(DimsOf(shape), 61, random);
    const Decoded single = DecodeInCalls(inputs, std::vector<int64_t>(61, 1), stream());
    for (const std::vector<int64_t>& calls : {std::vector<int64_t>{61}, {3, 14, 40, 4}, {15, 1, 16, 29}}) {
      const Decoded many = DecodeInCalls(inputs, calls, stream());
      EXPECT_EQ(many.log_length, 61 % kLogCapacity);
      EXPECT_TRUE(BitEqual(many.output, single.output));
      EXPECT_TRUE(BitEqual(many.slot, single.slot));
    }
  }
}

TEST_P(DeltaRuleGpu, DecodeMatchesItsReferenceAndMaterializes) {
  Random random(12);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(OperatorDims(1, 2, 32, 48), 13, random);
  const std::vector<float> base = random.Normal(inputs.dims.state_elements());
  GpuPool pool(inputs.dims, 3, 16);
  HostStatePool expected(inputs.dims, 3, 16);
  pool.SetBase(1, base);
  expected.SetBase(1, base);
  int32_t log_length = 0;
  GpuProblem problem(inputs, {13}, {1}, stream());
  ASSERT_TRUE(problem.Decode(pool, &log_length).ok());
  EXPECT_EQ(log_length, 13);
  EXPECT_TRUE(BitEqual(pool.Base(1), base));

  int32_t expected_length = 0;
  std::vector<float> output(inputs.v.size());
  const std::vector<int32_t> starts = {0, 13};
  const int32_t slot = 1;
  DeltaRuleDecodeReference(
      {.rule = MakeDeltaRuleParams(inputs, expected.view(),
                                   {.sequences = 1, .cu_seqlens = starts.data(), .slots = &slot}, output),
       .log_lengths = &expected_length});
  EXPECT_LE(RelativeNormError(problem.output(), output), kTolerance);
  const StateLayout& layout = expected.view().layout;
  EXPECT_LE(
      RelativeNormError(pool.slot(1).subspan(layout.log_k_offset()), expected.slot(1).subspan(layout.log_k_offset())),
      kTolerance);

  // To another slot, then in place: the same bits.
  const int32_t src[] = {1, -1};
  const int32_t dst[] = {0, 2};
  const int32_t lengths[] = {13, 0};
  std::fill(pool.slot(2).begin(), pool.slot(2).end(), 7.0f);
  MaterializeStateParams params{.pool = pool.view(), .count = 2, .src = src, .dst = dst, .log_lengths = lengths};
  ASSERT_TRUE(MaterializeStateGpu(params, src, dst, lengths, nullptr, stream()).ok());
  const int32_t in_place[] = {1};
  ASSERT_TRUE(
      MaterializeStateGpu({.pool = pool.view(), .count = 1, .src = in_place, .dst = in_place, .log_lengths = lengths},
                          in_place, in_place, lengths, nullptr, stream())
          .ok());
  EXPECT_TRUE(BitEqual(pool.Base(0), pool.Base(1)));
  EXPECT_TRUE(BitEqual(pool.Base(2), std::vector<float>(inputs.dims.state_elements(), 0.0f)));
  MaterializeStateReference(
      {.pool = expected.view(), .count = 1, .src = in_place, .dst = in_place, .log_lengths = lengths});
  EXPECT_LE(RelativeNormError(pool.Base(1), expected.base(1)), kTolerance);
}

TEST_P(DeltaRuleGpu, MaterializeHasTheBitsOfTheFoldInsideDecode) {
  Random random(13);
  for (const Shape& shape : {Shape{1, 2, 32, 48}, {1, 1, 300, 17}, {1, 1, 1001, 3}}) {
    SCOPED_TRACE(LayerDimsToString(DimsOf(shape)));
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(DimsOf(shape), 16, random);
    const std::vector<float> base = random.Normal(inputs.dims.state_elements());
    GpuPool pool(inputs.dims, 1, 16);
    pool.SetBase(0, base);
    int32_t log_length = 0;
    ASSERT_TRUE(GpuProblem(inputs, {16}, {0}, stream()).Decode(pool, &log_length).ok());
    EXPECT_EQ(log_length, 0);
    const std::vector<float> folded = pool.Base(0);

    // The log still holds all 16; folding it into the old base must come to the same.
    pool.SetBase(0, base);
    const int32_t slot[] = {0};
    const int32_t length[] = {16};
    ASSERT_TRUE(MaterializeStateGpu({.pool = pool.view(), .count = 1, .src = slot, .dst = slot, .log_lengths = length},
                                    slot, slot, length, nullptr, stream())
                    .ok());
    EXPECT_TRUE(BitEqual(pool.Base(0), folded));
  }
}

TEST_P(DeltaRuleGpu, MaterializeFoldsDraftsBeyondTheCapacityAndCopiesTheConvolution) {
  LayerDims dims = OperatorDims(1, 2, 24, 40);
  dims.conv_width = 4;
  dims.hidden_size = 8;
  Random random(14);
  GpuPool pool(dims, 2, 16);
  HostStatePool expected(dims, 2, 16);
  std::vector<float> slot = random.Normal(pool.slot(0).size(), 0.2f);
  const StateLayout& layout = pool.view().layout;
  for (int64_t i = layout.log_g_offset(); i < layout.conv_offset(); ++i) slot[i] = -std::abs(slot[i]);
  std::copy(slot.begin(), slot.end(), expected.slot(0).begin());
  std::copy(slot.begin(), slot.end(), pool.slot(0).begin());
  pool.SetBase(0, std::vector<float>(slot.begin(), slot.begin() + dims.state_elements()));
  const int32_t src[] = {0};
  const int32_t dst[] = {1};
  const int32_t lengths[] = {32};
  ASSERT_TRUE(MaterializeStateGpu({.pool = pool.view(), .count = 1, .src = src, .dst = dst, .log_lengths = lengths},
                                  src, dst, lengths, nullptr, stream())
                  .ok());
  MaterializeStateReference({.pool = expected.view(), .count = 1, .src = src, .dst = dst, .log_lengths = lengths});
  EXPECT_LE(RelativeNormError(pool.Base(1), expected.base(1)), kTolerance);
  EXPECT_TRUE(BitEqual(pool.slot(1).subspan(layout.conv_offset()), expected.slot(1).subspan(layout.conv_offset())));
}

TEST_P(DeltaRuleGpu, ASequenceHasTheSameBitsAloneAndInAnyBatch) {
  Random random(15);
  const LayerDims dims = OperatorDims(1, 4, 64, 64);
  const DeltaRuleInputs one = RandomDeltaRuleInputs(dims, 37, random);
  const DeltaRuleInputs before = RandomDeltaRuleInputs(dims, 5, random);
  const DeltaRuleInputs after = RandomDeltaRuleInputs(dims, 20, random);
  const std::vector<float> base = random.Normal(dims.state_elements());
  for (DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode}) {
    SCOPED_TRACE(DeltaRulePathName(path));
    GpuProblem alone(one, {37}, {0}, stream());
    alone.SetBase(0, base);
    ASSERT_TRUE(alone.Run(path).ok());
    // Other batch sizes and processor counts lead to other grids and other columns a group.
    for (int processors : {1, 200}) {
      gpu::Stream other = stream();
      other.processors = processors;
      GpuProblem batched(Concatenate({before, one, after, one}), {5, 37, 20, 37}, {3, 1, 2, 0}, other);
      batched.SetBase(1, base);
      batched.SetBase(0, base);
      ASSERT_TRUE(batched.Run(path).ok());
      const auto rows = [&](int64_t first) {
        return absl::MakeConstSpan(batched.output()).subspan(first * dims.value_features(), 37 * dims.value_features());
      };
      EXPECT_TRUE(BitEqual(rows(5), alone.output()));
      EXPECT_TRUE(BitEqual(rows(62), alone.output()));
      EXPECT_TRUE(BitEqual(batched.Base(1), alone.Base(0)));
      EXPECT_TRUE(BitEqual(batched.Base(0), alone.Base(0)));
    }
  }
}

TEST_P(DeltaRuleGpu, ANotANumberStaysInItsSequence) {
  Random random(16);
  const LayerDims dims = OperatorDims(1, 1, 32, 32);
  const DeltaRuleInputs good = RandomDeltaRuleInputs(dims, 20, random);
  DeltaRuleInputs bad = good;
  bad.v[5] = std::numeric_limits<float>::quiet_NaN();
  for (DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode}) {
    GpuProblem problem(Concatenate({bad, good}), {20, 20}, {0, 1}, stream());
    ASSERT_TRUE(problem.Run(path).ok());
    EXPECT_FALSE(AllFinite(problem.Base(0)));
    EXPECT_TRUE(AllFinite(problem.Base(1)));
  }
}

TEST(DeltaRuleGpuWaves, BothWidthsGiveTheSameBits) {
  Random random(18);
  const LayerDims dims = OperatorDims(1, 2, 64, 48);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 40, random);
  const std::vector<float> base = random.Normal(dims.state_elements());
  for (DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode}) {
    std::vector<float> outputs[2];
    std::vector<float> bases[2];
    for (int i : {0, 1}) {
      GpuProblem problem(inputs, {40}, {0}, {.handle = nullptr, .wave_width = i == 0 ? 64 : 32, .processors = 2});
      problem.SetBase(0, base);
      ASSERT_TRUE(problem.Run(path).ok());
      outputs[i] = problem.output();
      bases[i] = problem.Base(0);
    }
    EXPECT_TRUE(BitEqual(outputs[0], outputs[1])) << DeltaRulePathName(path);
    EXPECT_TRUE(BitEqual(bases[0], bases[1])) << DeltaRulePathName(path);
  }
}

TEST(DeltaRuleGpuContract, ABrokenContractIsRefused) {
  Random random(19);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(OperatorDims(1, 1, 32, 32), 3, random);
  const gpu::Stream stream{.handle = nullptr, .wave_width = 64, .processors = 2};
  GpuProblem problem(inputs, {3}, {5}, stream);
  GpuPool pool(inputs.dims, 1, 8);
  int32_t log_length = 0;
  EXPECT_EQ(problem.Decode(pool, &log_length).code(), absl::StatusCode::kInvalidArgument);
  log_length = kLogCapacity;
  GpuProblem full(inputs, {3}, {0}, stream);
  EXPECT_EQ(full.Decode(pool, &log_length).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdn
