// What every form of the delta rule promises over whole sequences: agreement with double precision, independence of
// batch, threads and later tokens, and any split of a prompt.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {
namespace {

constexpr double kPromise = 1e-5;  // the service's: float32 against float64
constexpr double kChunkTolerance = 5e-6;
constexpr double kReferenceTolerance = 1e-7;  // one rounding to float32

std::vector<double> ToDouble(absl::Span<const float> values) { return {values.begin(), values.end()}; }

class DeltaRulePaths : public ::testing::TestWithParam<DeltaRulePath> {
 protected:
  // Runs one sequence from a random state and compares outputs and final state with the double loop.
  void ExpectMatchesDouble(const DeltaRuleInputs& inputs, double tolerance, uint64_t seed = 99) {
    Random random(seed);
    HostStatePool pool(inputs.dims, 1);
    pool.SetBase(0, random.Normal(inputs.dims.state_elements(), 0.3f));
    std::vector<double> state = ToDouble(pool.base(0));
    const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
    const auto output = RunDeltaRule(GetParam(), inputs, pool, threads_);
    ASSERT_TRUE(output.ok()) << output.status();
    EXPECT_LE(RelativeNormError(*output, expected), tolerance) << "output";
    EXPECT_LE(RelativeNormError(pool.base(0), state), tolerance) << "state";
  }

  ThreadPool threads_{2};
};

const LayerDims kDims[] = {
    OperatorDims(1, 1, 128, 128), OperatorDims(2, 4, 64, 64), OperatorDims(2, 6, 48, 32), OperatorDims(2, 2, 32, 48),
    OperatorDims(1, 3, 5, 7),     OperatorDims(3, 3, 1, 1),   OperatorDims(1, 2, 17, 33), OperatorDims(1, 1, 96, 130),
};

TEST_P(DeltaRulePaths, MatchesDoubleForGroupedHeadsAndUnequalDims) {
  Random random(1);
  for (const LayerDims& dims : kDims) {
    for (const int64_t tokens : {1, 7, 64, 77, 150}) {
      SCOPED_TRACE(LayerDimsToString(dims) + " tokens " + std::to_string(tokens));
      ExpectMatchesDouble(RandomDeltaRuleInputs(dims, tokens, random), kChunkTolerance);
    }
  }
}

TEST_P(DeltaRulePaths, MatchesDoubleAtTheLargestHeadDims) {
  Random random(2);
  ExpectMatchesDouble(RandomDeltaRuleInputs(OperatorDims(1, 1, 1024, 40), 70, random), kChunkTolerance);
  ExpectMatchesDouble(RandomDeltaRuleInputs(OperatorDims(1, 1, 40, 1024), 70, random), kChunkTolerance);
}

TEST_P(DeltaRulePaths, MatchesDoubleForEveryLength) {
  Random random(3);
  const LayerDims dims = OperatorDims(1, 2, 24, 20);
  std::vector<int64_t> lengths;
  for (int64_t tokens = 0; tokens <= 130; ++tokens) lengths.push_back(tokens);
  lengths.insert(lengths.end(), {250, 256, 500, 511, 512, 1000});
  for (const int64_t tokens : lengths) {
    SCOPED_TRACE("tokens " + std::to_string(tokens));
    ExpectMatchesDouble(RandomDeltaRuleInputs(dims, tokens, random, /*g_low=*/-0.2f), kChunkTolerance);
  }
}

TEST_P(DeltaRulePaths, LeavesTheStateAloneForNoTokens) {
  Random random(4);
  const LayerDims dims = OperatorDims(1, 2, 8, 8);
  HostStatePool pool(dims, 1);
  const std::vector<float> state = random.Normal(dims.state_elements());
  pool.SetBase(0, state);
  ASSERT_TRUE(RunDeltaRule(GetParam(), RandomDeltaRuleInputs(dims, 0, random), pool, threads_).ok());
  EXPECT_TRUE(BitEqual(pool.base(0), state));
}

TEST_P(DeltaRulePaths, GivesTheSameBitsAloneAndInABatchWithPadding) {
  Random random(5);
  const LayerDims dims = OperatorDims(2, 4, 36, 40);
  const std::vector<int32_t> lengths = {70, 0, 9, 1, 128, 65};
  const std::vector<int32_t> slots = {4, 0, -1, 6, 1, 3};
  std::vector<DeltaRuleInputs> parts;
  for (const int32_t length : lengths) parts.push_back(RandomDeltaRuleInputs(dims, length, random));
  const std::vector<int32_t> offsets = CumulativeLengths(lengths);

  HostStatePool pool(dims, 8);
  for (int32_t slot = 0; slot < 8; ++slot) pool.SetBase(slot, random.Normal(dims.state_elements()));
  HostStatePool before(dims, 8);
  for (int32_t slot = 0; slot < 8; ++slot) before.SetBase(slot, pool.base(slot));

  ThreadPool three(3);
  const auto packed = RunDeltaRule(GetParam(), Concatenate(parts), lengths, slots, pool, three);
  ASSERT_TRUE(packed.ok()) << packed.status();

  ThreadPool one(1);
  for (size_t i = 0; i < lengths.size(); ++i) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    const absl::Span<const float> rows =
        absl::MakeSpan(*packed).subspan(offsets[i] * dims.value_features(), lengths[i] * dims.value_features());
    if (slots[i] < 0) {
      EXPECT_TRUE(BitEqual(rows, std::vector<float>(rows.size(), 0.0f)));
      continue;
    }
    HostStatePool alone(dims, 1);
    alone.SetBase(0, before.base(slots[i]));
    const auto output = RunDeltaRule(GetParam(), parts[i], alone, one);
    ASSERT_TRUE(output.ok()) << output.status();
    EXPECT_TRUE(BitEqual(rows, *output));
    EXPECT_TRUE(BitEqual(pool.base(slots[i]), alone.base(0)));
  }
  for (const int32_t bystander : {2, 5, 7}) {
    EXPECT_TRUE(BitEqual(pool.slot(bystander), before.slot(bystander))) << "slot " << bystander;
  }
}

TEST_P(DeltaRulePaths, GivesTheSameBitsForAnyThreadCount) {
  Random random(6);
  // Few heads and many columns, so that more threads mean other partitions.
  for (const LayerDims& dims : {OperatorDims(1, 4, 20, 150), OperatorDims(1, 1, 33, 100), OperatorDims(2, 6, 16, 16)}) {
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 100, random);
    HostStatePool expected_pool(dims, 1);
    ThreadPool one(1);
    const auto expected = RunDeltaRule(GetParam(), inputs, expected_pool, one);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const int count : {2, 3, 5}) {
      ThreadPool many(count);
      HostStatePool pool(dims, 1);
      const auto output = RunDeltaRule(GetParam(), inputs, pool, many);
      ASSERT_TRUE(output.ok()) << output.status();
      EXPECT_TRUE(BitEqual(*output, *expected)) << LayerDimsToString(dims) << " threads " << count;
      EXPECT_TRUE(BitEqual(pool.base(0), expected_pool.base(0))) << LayerDimsToString(dims) << " threads " << count;
    }
  }
}

TEST_P(DeltaRulePaths, IsCausalToTheBitEvenBeforeNonFiniteTokens) {
  Random random(7);
  const LayerDims dims = OperatorDims(1, 2, 19, 37);
  const int64_t tokens = 135;
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, tokens, random);
  HostStatePool clean(dims, 1);
  const auto expected = RunDeltaRule(GetParam(), inputs, clean, threads_);
  ASSERT_TRUE(expected.ok()) << expected.status();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t changed = 0; changed < tokens; changed += changed % 64 < 60 ? 3 : 1) {
    for (const float value : {0.125f, kNan, kInfinity}) {
      DeltaRuleInputs other = inputs;
      const auto poison = [&](std::vector<float>& tensor, int64_t row) {
        for (int64_t i = 0; i < row; ++i) tensor[changed * row + i] = value;
      };
      poison(other.q, dims.key_features());
      poison(other.k, dims.key_features());
      poison(other.v, dims.value_features());
      HostStatePool pool(dims, 1);
      const auto output = RunDeltaRule(GetParam(), other, pool, threads_);
      ASSERT_TRUE(output.ok()) << output.status();
      const size_t earlier = changed * dims.value_features();
      ASSERT_TRUE(BitEqual(absl::MakeSpan(*output).first(earlier), absl::MakeSpan(*expected).first(earlier)))
          << "token " << changed << " changed to " << value;
      EXPECT_FALSE(BitEqual(*output, *expected)) << "token " << changed << " has no effect";
    }
  }
}

TEST_P(DeltaRulePaths, StaysExactUnderStrongDecay) {
  Random random(8);
  const LayerDims dims = OperatorDims(1, 2, 32, 32);
  ExpectMatchesDouble(RandomDeltaRuleInputs(dims, 200, random, /*g_low=*/-20.0f), kPromise);

  for (const float drop : {-1e2f, -1e3f, -1e4f}) {
    DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 200, random);
    for (float& g : inputs.g) g = -0.005f * static_cast<float>(1.0 + 0.2 * random.NextUnit());
    for (const int64_t t : {0, 5, 40, 63, 64, 100, 190}) {
      for (int32_t hv = 0; hv < dims.value_heads; ++hv) inputs.g[t * dims.value_heads + hv] = drop;
    }
    SCOPED_TRACE("drop " + std::to_string(drop));
    ExpectMatchesDouble(inputs, kPromise);
  }
}

TEST_P(DeltaRulePaths, StaysExactWithoutDecay) {
  Random random(9);
  DeltaRuleInputs inputs = RandomDeltaRuleInputs(OperatorDims(1, 2, 32, 32), 300, random);
  for (float& g : inputs.g) g = 0.0f;
  ExpectMatchesDouble(inputs, kPromise);
}

TEST_P(DeltaRulePaths, StaysExactForBetaZeroOneAndTwo) {
  Random random(10);
  for (const float beta : {0.0f, 1.0f, 2.0f}) {
    DeltaRuleInputs inputs = RandomDeltaRuleInputs(OperatorDims(1, 2, 32, 24), 150, random);
    for (float& value : inputs.beta) value = beta;
    SCOPED_TRACE("beta " + std::to_string(beta));
    ExpectMatchesDouble(inputs, kPromise);
  }
}

TEST_P(DeltaRulePaths, StaysExactForZeroKeys) {
  Random random(11);
  DeltaRuleInputs inputs = RandomDeltaRuleInputs(OperatorDims(2, 2, 32, 24), 150, random);
  for (int64_t t = 0; t < inputs.tokens; ++t) {
    if (t % 3 == 0) std::fill_n(inputs.k.begin() + t * 64, 64, 0.0f);
  }
  ExpectMatchesDouble(inputs, kPromise);
  std::fill(inputs.k.begin(), inputs.k.end(), 0.0f);
  ExpectMatchesDouble(inputs, kPromise);
}

TEST_P(DeltaRulePaths, StaysExactForCorrelatedKeys) {
  Random random(12);
  const LayerDims dims = OperatorDims(1, 2, 64, 32);
  DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 200, random, /*g_low=*/-0.01f);
  // All keys within 1e-3 of the first: A is nearly a triangle of ones.
  for (int64_t t = 1; t < inputs.tokens; ++t) {
    for (int32_t i = 0; i < dims.key_dim; ++i) {
      float& key = inputs.k[t * dims.key_dim + i];
      key = inputs.k[i] + 1e-3f * key;
    }
  }
  for (float& beta : inputs.beta) beta = 0.9f + 0.1f * beta;
  ExpectMatchesDouble(inputs, kPromise);
}

TEST_P(DeltaRulePaths, AnySplitOfAPromptMatchesTheWhole) {
  Random random(13);
  const LayerDims dims = OperatorDims(1, 2, 32, 40);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 200, random, /*g_low=*/-0.05f);
  std::vector<double> state(dims.state_elements(), 0.0);
  const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
  for (const DeltaRulePath first : {DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode}) {
    for (const int64_t split : {0, 1, 31, 63, 64, 65, 100, 127, 128, 129, 191, 192, 193, 199, 200}) {
      HostStatePool pool(dims, 1);
      auto head = RunDeltaRule(first, Slice(inputs, 0, split), pool, threads_);
      const auto tail = RunDeltaRule(GetParam(), Slice(inputs, split, inputs.tokens), pool, threads_);
      ASSERT_TRUE(head.ok() && tail.ok()) << head.status() << tail.status();
      head->insert(head->end(), tail->begin(), tail->end());
      EXPECT_LE(RelativeNormError(*head, expected), kChunkTolerance) << DeltaRulePathName(first) << " to " << split;
      EXPECT_LE(RelativeNormError(pool.base(0), state), kChunkTolerance) << DeltaRulePathName(first) << " to " << split;
    }
  }
}

TEST_P(DeltaRulePaths, ReadsStridedRowsAndWritesOnlyItsOwn) {
  Random random(14);
  const LayerDims dims = OperatorDims(2, 4, 12, 20);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 6, random);
  HostStatePool dense_pool(dims, 3);
  const auto expected = RunDeltaRule(GetParam(), inputs, {6}, {1}, dense_pool, threads_);
  ASSERT_TRUE(expected.ok()) << expected.status();
  // Rows of q, k and v interleaved as a convolution leaves them.
  const int64_t keys = dims.key_features();
  const int64_t stride = 2 * keys + dims.value_features();
  std::vector<float> mixed(6 * stride);
  for (int64_t t = 0; t < 6; ++t) {
    std::copy_n(inputs.q.begin() + t * keys, keys, mixed.begin() + t * stride);
    std::copy_n(inputs.k.begin() + t * keys, keys, mixed.begin() + t * stride + keys);
    std::copy_n(inputs.v.begin() + t * dims.value_features(), dims.value_features(),
                mixed.begin() + t * stride + 2 * keys);
  }
  HostStatePool pool(dims, 3);
  const std::vector<int32_t> offsets = {0, 6};
  const std::vector<int32_t> slots = {1};
  std::vector<float> output(inputs.v.size());
  DeltaRuleParams params = MakeDeltaRuleParams(
      inputs, pool.view(), {.sequences = 1, .cu_seqlens = offsets.data(), .slots = slots.data()}, output);
  params.q = mixed.data();
  params.k = mixed.data() + keys;
  params.v = mixed.data() + 2 * keys;
  params.q_stride = params.k_stride = params.v_stride = stride;
  int32_t log_length = 0;
  absl::Status status;
  switch (GetParam()) {
    case DeltaRulePath::kScan:
      status = DeltaRuleScanCpu(params, threads_);
      break;
    case DeltaRulePath::kChunk:
      status = DeltaRuleChunkCpu(params, threads_);
      break;
    case DeltaRulePath::kDecode:
      status = DeltaRuleDecodeCpu({params, &log_length}, threads_);
      break;
  }
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(BitEqual(output, *expected));
  for (const int32_t bystander : {0, 2}) {
    EXPECT_TRUE(BitEqual(pool.slot(bystander), dense_pool.slot(bystander))) << "slot " << bystander;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, DeltaRulePaths,
                         ::testing::Values(DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode),
                         [](const auto& test) { return DeltaRulePathName(test.param); });

TEST(DeltaRuleScan, AnySplitGivesTheSameBits) {
  Random random(15);
  ThreadPool threads(2);
  const LayerDims dims = OperatorDims(1, 2, 21, 45);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 40, random);
  HostStatePool whole_pool(dims, 1);
  const auto whole = RunDeltaRule(DeltaRulePath::kScan, inputs, whole_pool, threads);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const int64_t step : {1, 2, 3, 7, 16, 39}) {
    HostStatePool pool(dims, 1);
    std::vector<float> output;
    for (int64_t t = 0; t < inputs.tokens; t += step) {
      const auto part =
          RunDeltaRule(DeltaRulePath::kScan, Slice(inputs, t, std::min(t + step, inputs.tokens)), pool, threads);
      ASSERT_TRUE(part.ok()) << part.status();
      output.insert(output.end(), part->begin(), part->end());
    }
    EXPECT_TRUE(BitEqual(output, *whole)) << "step " << step;
    EXPECT_TRUE(BitEqual(pool.base(0), whole_pool.base(0))) << "step " << step;
  }
}

TEST(DeltaRuleChunk, ASplitAtChunkEdgesGivesTheSameBits) {
  Random random(16);
  ThreadPool threads(2);
  const LayerDims dims = OperatorDims(1, 2, 21, 45);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 200, random);
  HostStatePool whole_pool(dims, 1);
  const auto whole = RunDeltaRule(DeltaRulePath::kChunk, inputs, whole_pool, threads);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const int64_t split : {int64_t{kChunkTokens}, int64_t{2 * kChunkTokens}}) {
    HostStatePool pool(dims, 1);
    auto output = RunDeltaRule(DeltaRulePath::kChunk, Slice(inputs, 0, split), pool, threads);
    const auto tail = RunDeltaRule(DeltaRulePath::kChunk, Slice(inputs, split, inputs.tokens), pool, threads);
    ASSERT_TRUE(output.ok() && tail.ok());
    output->insert(output->end(), tail->begin(), tail->end());
    EXPECT_TRUE(BitEqual(*output, *whole)) << "split " << split;
    EXPECT_TRUE(BitEqual(pool.base(0), whole_pool.base(0))) << "split " << split;
  }
}

TEST(DeltaRuleScanReference, MatchesDoubleForPackedSequences) {
  Random random(17);
  const LayerDims dims = OperatorDims(2, 4, 10, 14);
  const std::vector<int32_t> lengths = {20, 3, 11};
  const std::vector<int32_t> slots = {1, -1, 0};
  std::vector<DeltaRuleInputs> parts;
  for (const int32_t length : lengths) parts.push_back(RandomDeltaRuleInputs(dims, length, random));
  const DeltaRuleInputs inputs = Concatenate(parts);
  HostStatePool pool(dims, 2);
  const std::vector<int32_t> offsets = CumulativeLengths(lengths);
  std::vector<float> output(inputs.v.size(), 1.0f);
  DeltaRuleScanReference(MakeDeltaRuleParams(
      inputs, pool.view(), {.sequences = 3, .cu_seqlens = offsets.data(), .slots = slots.data()}, output));
  for (int i = 0; i < 3; ++i) {
    std::vector<double> state(dims.state_elements(), 0.0);
    std::vector<double> expected = DeltaRuleInDouble(parts[i], state);
    if (slots[i] < 0) expected.assign(expected.size(), 0.0);
    EXPECT_LE(RelativeNormError(absl::MakeSpan(output).subspan(offsets[i] * dims.value_features(), expected.size()),
                                expected),
              kReferenceTolerance);
    if (slots[i] < 0) continue;
    EXPECT_LE(RelativeNormError(pool.base(slots[i]), state), kReferenceTolerance);
  }
}

}  // namespace
}  // namespace gdn
