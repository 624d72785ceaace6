// What rows of gdn_parity cannot say of the stages of the chunked delta rule: bits, sums in double, errors.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tools/gdn_parity/cases/delta_rule_stages_cases.h"

namespace gdn {
namespace {

using parity::ChunkedProblem;

const LayerDims kGrouped{.key_heads = 2, .value_heads = 4, .key_dim = 40, .value_dim = 24};
const LayerDims kOdd{.key_heads = 1, .value_heads = 3, .key_dim = 33, .value_dim = 17};

ChunkedProblem MakeProblem(const LayerDims& dims, int32_t chunk_tokens, const std::vector<int32_t>& lengths,
                           uint64_t seed) {
  parity::RandomTensor random(seed);
  return CutIntoChunks(RandomDeltaRule(dims, lengths, {}, random), chunk_tokens);
}

ChunkedBatch Upload(GpuDevice& device, const ChunkedProblem& p) {
  ChunkedBatch batch = p.batch();
  batch.cu_seqlens = device.UploadValues(p.cu_seqlens);
  batch.chunk_offsets = device.UploadValues(p.chunk_offsets);
  return batch;
}

parity::DeltaRuleResult RunAll(GpuDevice& device, const ChunkedProblem& p) {
  absl::StatusOr<parity::DeltaRuleResult> result = RunStages(p, device.backend());
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(parity::DeltaRuleResult{});
}

TEST(DeltaRuleStages, SumsAreInDoubleAndTheFusedStageGivesTheBitsOfItsParts) {
  OnEveryWave([](GpuDevice& device) {
    for (const LayerDims& dims : {kGrouped, kOdd}) {
      for (const int32_t c : {16, 32, 64}) {
        SCOPED_TRACE(LayerDimsToString(dims) + " C=" + std::to_string(c));
        const ChunkedProblem p = MakeProblem(dims, c, {1, 0, c + 5, c, 0}, 1);
        const std::vector<double> expected = StagesReference(p).g_sum;
        const int64_t sums = static_cast<int64_t>(expected.size());
        const ChunkedBatch batch = Upload(device, p);
        const float* k = device.Upload(p.rule.k);
        const float* g = device.Upload(p.rule.g);
        const float* beta = device.Upload(p.rule.beta);
        double* fused_sums = device.PoisonedValues<double>(sums);
        float* fused_a = device.Poisoned(p.matrix_elements());
        ASSERT_OK(CumsumKktGpu({batch, k, p.k_stride(), g, beta, fused_sums, fused_a}, device.stream()));
        double* sums_apart = device.PoisonedValues<double>(sums);
        float* a_apart = device.Poisoned(p.matrix_elements());
        ASSERT_OK(ChunkDecaySumsGpu({batch, g, sums_apart}, device.stream()));
        ASSERT_OK(ChunkKktGpu({batch, k, p.k_stride(), beta, sums_apart, a_apart}, device.stream()));
        const std::vector<double> fused = device.Download(fused_sums, sums);
        for (size_t i = 0; i < fused.size(); ++i) ASSERT_NEAR(fused[i], expected[i], 1e-12);
        EXPECT_EQ(device.Download(sums_apart, sums), fused);
        EXPECT_EQ(device.Download(a_apart, p.matrix_elements()), device.Download(fused_a, p.matrix_elements()));
      }
    }
  });
}

TEST(DeltaRuleStages, ASequenceKeepsItsBitsInAnyBatch) {
  OnEveryWave([](GpuDevice& device) {
    const std::vector<int32_t> lengths{37, 0, 64, 1, 100};
    const ChunkedProblem all = MakeProblem(kOdd, 32, lengths, 7);
    const parity::DeltaRuleResult together = RunAll(device, all);
    for (size_t i = 0; i < lengths.size(); ++i) {
      // Rows [begin, end) of a tensor with `row` floats each.
      const auto cut = [](const std::vector<float>& from, int64_t begin, int64_t end, int64_t row) {
        return std::vector<float>(from.begin() + begin * row, from.begin() + end * row);
      };
      const int64_t begin = all.cu_seqlens[i], end = all.cu_seqlens[i + 1];
      const auto state = [&](const std::vector<float>& from) {
        return cut(from, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1, kOdd.state_elements());
      };
      const parity::DeltaRuleProblem one = parity::Part(all.rule, begin, end, state(all.rule.initial));
      const parity::DeltaRuleResult alone = RunAll(device, parity::CutIntoChunks(one, 32));
      EXPECT_TRUE(BitEqual(alone.output, cut(together.output, begin, end, kOdd.value_features()))) << "sequence " << i;
      EXPECT_TRUE(BitEqual(alone.states, state(together.states))) << "sequence " << i;
    }
  });
}

TEST(DeltaRuleStages, WithoutTokensTheStateIsPassedOn) {
  OnEveryWave([](GpuDevice& device) {
    const ChunkedProblem p = MakeProblem(kGrouped, 64, {0, 0}, 9);
    EXPECT_TRUE(BitEqual(RunAll(device, p).states, p.rule.initial));
  });
}

TEST(DeltaRuleStages, RefuseWhatBreaksTheContract) {
  OnEveryWave([](GpuDevice& device) {
    const ChunkedProblem p = MakeProblem(kGrouped, 64, {70}, 10);
    double* g_sum = device.PoisonedValues<double>(static_cast<int64_t>(p.rule.g.size()));
    ChunkDecaySumsParams params{Upload(device, p), device.Upload(p.rule.g), g_sum};
    params.batch.chunk_tokens = 48;
    EXPECT_EQ(ChunkDecaySumsGpu(params, device.stream()).code(), absl::StatusCode::kInvalidArgument);
    params.batch.chunk_tokens = 64;
    params.batch.chunks = 1;  // 70 tokens do not fit one chunk
    EXPECT_EQ(ChunkDecaySumsGpu(params, device.stream()).code(), absl::StatusCode::kInvalidArgument);
    params.batch.chunks = 2;
    EXPECT_TRUE(ChunkDecaySumsGpu(params, device.stream()).ok());
    params.g = nullptr;
    EXPECT_EQ(ChunkDecaySumsGpu(params, device.stream()).code(), absl::StatusCode::kInvalidArgument);
    ChunkAttentionParams short_stride{
        Upload(device, p),  device.Upload(p.rule.q), device.Upload(p.rule.k), 1, p.k_stride(), g_sum,
        device.Poisoned(64)};
    EXPECT_EQ(ChunkAttentionGpu(short_stride, device.stream()).code(), absl::StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace gdn
