// Stages of the chunked delta rule: properties that rows of gdn_parity cannot show, namely bits, sums in double, and
// errors.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/refusal.h"
#include "tools/gdn_parity/cases/delta_rule_stages_cases.h"

namespace gdn::delta_rule_stages_test {
namespace {

using parity::ChunkedProblem;

const LayerDims kGrouped{.key_heads = 2, .value_heads = 4, .key_dim = 40, .value_dim = 24};
const LayerDims kOdd{.key_heads = 1, .value_heads = 3, .key_dim = 33, .value_dim = 17};

ChunkedProblem MakeProblem(const LayerDims& dims, int32_t chunk_tokens, const std::vector<int32_t>& lengths,
                           uint64_t seed) {
  parity::RandomTensor random(seed);
  return CutIntoChunks(RandomDeltaRule(dims, lengths, {}, random), chunk_tokens);
}

class DeltaRuleStages : public GpuTest {
 protected:
  ChunkedBatch UploadBatch(const ChunkedProblem& p) {
    ChunkedBatch batch = p.batch();
    batch.cu_seqlens = Upload(p.cu_seqlens);
    batch.chunk_offsets = Upload(p.chunk_offsets);
    return batch;
  }
  parity::DeltaRuleResult RunAll(const ChunkedProblem& p) {
    absl::StatusOr<parity::DeltaRuleResult> result = RunStages(p, backend());
    EXPECT_EQ(result.status(), absl::OkStatus());
    return result.value_or(parity::DeltaRuleResult{});
  }
};
GDN_ON_BACKENDS(DeltaRuleStages, WithGpus({}));

TEST_P(DeltaRuleStages, SumsAreInDoubleAndTheFusedStageGivesTheBitsOfItsParts) {
  for (const LayerDims& dims : {kGrouped, kOdd}) {
    for (const int32_t c : {16, 32, 64}) {
      SCOPED_TRACE(LayerDimsToString(dims) + " C=" + std::to_string(c));
      const ChunkedProblem p = MakeProblem(dims, c, {1, 0, c + 5, c, 0}, 1);
      const std::vector<double> expected = StagesReference(p).g_sum;
      const int64_t sums = static_cast<int64_t>(expected.size());
      const ChunkedBatch batch = UploadBatch(p);
      const float* k = Upload(p.rule.k);
      const float* g = Upload(p.rule.g);
      const float* beta = Upload(p.rule.beta);
      double* fused_sums = Poisoned<double>(sums);
      float* fused_a = Poisoned(p.matrix_elements());
      ASSERT_EQ(CumsumKktGpu({batch, k, p.k_stride(), g, beta, fused_sums, fused_a}, stream()), absl::OkStatus());
      double* sums_apart = Poisoned<double>(sums);
      float* a_apart = Poisoned(p.matrix_elements());
      ASSERT_EQ(ChunkDecaySumsGpu({batch, g, sums_apart}, stream()), absl::OkStatus());
      ASSERT_EQ(ChunkKktGpu({batch, k, p.k_stride(), beta, sums_apart, a_apart}, stream()), absl::OkStatus());
      const std::vector<double> fused = Download(fused_sums, sums);
      for (size_t i = 0; i < fused.size(); ++i) ASSERT_NEAR(fused[i], expected[i], 1e-12);
      EXPECT_EQ(Download(sums_apart, sums), fused);
      EXPECT_EQ(Download(a_apart, p.matrix_elements()), Download(fused_a, p.matrix_elements()));
    }
  }
}

TEST_P(DeltaRuleStages, ASequenceKeepsItsBitsInAnyBatch) {
  const std::vector<int32_t> lengths{37, 0, 64, 1, 100};
  const ChunkedProblem all = MakeProblem(kOdd, 32, lengths, 7);
  const parity::DeltaRuleResult together = RunAll(all);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t begin = all.cu_seqlens[i], end = all.cu_seqlens[i + 1];
    const auto state = [&](const std::vector<float>& from) {
      return SliceRows(from, kOdd.state_elements(), static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
    };
    const parity::DeltaRuleProblem one = parity::Part(all.rule, begin, end, state(all.rule.initial));
    const parity::DeltaRuleResult alone = RunAll(parity::CutIntoChunks(one, 32));
    EXPECT_TRUE(BitEqual(alone.output, SliceRows(together.output, kOdd.value_features(), begin, end)))
        << "sequence " << i;
    EXPECT_TRUE(BitEqual(alone.states, state(together.states))) << "sequence " << i;
  }
}

TEST_P(DeltaRuleStages, WithoutTokensTheStateIsPassedOn) {
  const ChunkedProblem p = MakeProblem(kGrouped, 64, {0, 0}, 9);
  EXPECT_TRUE(BitEqual(RunAll(p).states, p.rule.initial));
}

TEST_P(DeltaRuleStages, RefuseWhatBreaksTheContract) {
  const ChunkedProblem p = MakeProblem(kGrouped, 64, {70}, 10);
  double* g_sum = Poisoned<double>(static_cast<int64_t>(p.rule.g.size()));
  ChunkDecaySumsParams params{UploadBatch(p), Upload(p.rule.g), g_sum};
  params.batch.chunk_tokens = 48;
  EXPECT_THAT(ChunkDecaySumsGpu(params, stream()), IsInvalid(""));
  params.batch.chunk_tokens = 64;
  params.batch.chunks = 1;  // 70 tokens do not fit one chunk
  EXPECT_THAT(ChunkDecaySumsGpu(params, stream()), IsInvalid(""));
  params.batch.chunks = 2;
  EXPECT_TRUE(ChunkDecaySumsGpu(params, stream()).ok());
  params.g = nullptr;
  EXPECT_THAT(ChunkDecaySumsGpu(params, stream()), IsInvalid(""));
  ChunkAttentionParams short_stride{UploadBatch(p), Upload(p.rule.q), Upload(p.rule.k), 1, p.k_stride(),
                                    g_sum,          Poisoned(64)};
  EXPECT_THAT(ChunkAttentionGpu(short_stride, stream()), IsInvalid(""));
}

}  // namespace
}  // namespace gdn::delta_rule_stages_test
