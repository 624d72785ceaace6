// Masks, products, the decay mask and the chunk put together from primitives: properties that rows of gdn_parity cannot
// show, namely values worked out by hand, and bits.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/primitives/decay_mask/decay_mask.h"
#include "kernels/primitives/gemm/gemm.h"
#include "kernels/primitives/masks/masks.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tools/gdn_parity/cases/gemm_cases.h"
#include "tools/gdn_parity/chunk_by_primitives.h"

namespace gdn::matrix_primitives_test {
namespace {

constexpr double kElementwiseTolerance = 1e-6;

using Masks = GpuTest;
GDN_ON_BACKENDS(Masks, WithGpus({}));

TEST_P(Masks, TheCausalMaskIsStrictAndWithoutAnInputTheMaskItself) {
  float* y = Poisoned(3 * 3);
  ASSERT_EQ(TrilGpu({.rows = 3, .cols = 3, .diagonal = -1, .y = y}, stream()), absl::OkStatus());
  EXPECT_EQ(Download(y, 9), (std::vector<float>{0, 0, 0, 1, 0, 0, 1, 1, 0}));
  ASSERT_EQ(TrilGpu({.rows = 3, .cols = 3, .y = y}, stream()), absl::OkStatus());
  EXPECT_EQ(Download(y, 9), (std::vector<float>{1, 0, 0, 1, 1, 0, 1, 1, 1}));
  ASSERT_EQ(IdentityGpu({.rows = 2, .cols = 4, .y = y}, stream()), absl::OkStatus());
  EXPECT_EQ(Download(y, 8), (std::vector<float>{1, 0, 0, 0, 0, 1, 0, 0}));
}

class Gemm : public GpuTest {
 protected:
  std::vector<float> Run(const parity::GemmProblem& problem,
                         absl::Status (*launch)(const GemmParams&, const gpu::Stream&)) {
    GemmParams params = problem.params;
    params.a = Upload(problem.a);
    params.b = Upload(problem.b);
    params.c = Upload(problem.c);
    EXPECT_EQ(launch(params, stream()), absl::OkStatus());
    return Download(params.c, static_cast<int64_t>(problem.c.size()));
  }
};
GDN_ON_BACKENDS(Gemm, WithGpus({}));

TEST_P(Gemm, TheNaiveAndTheTiledFormAgreeToTheBit) {
  parity::RandomTensor random(5);
  for (GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN}) {
    parity::GemmProblem problem = RandomGemm(layout, {70, 33, 50, 2, 3}, random);
    problem.params.alpha = -0.7f;
    problem.params.beta = 1.3f;
    EXPECT_TRUE(BitEqual(Run(problem, GemmGpu), Run(problem, GemmNaiveGpu)));
  }
}

TEST_P(Gemm, WithBetaZeroTheOutputIsNotReadAndAnEmptySumIsZero) {
  parity::RandomTensor random(6);
  for (auto* launch : {&GemmGpu, &GemmNaiveGpu}) {
    parity::GemmProblem problem = RandomGemm(GemmLayout::kNN, {20, 20, 20}, random);
    problem.c.assign(problem.c.size(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(AllFinite(Run(problem, launch)));
    problem.params.k = 0;
    EXPECT_EQ(Run(problem, launch), std::vector<float>(400, 0.0f));
  }
}

TEST_P(Gemm, AProductsBitsDoNotDependOnItsCompanions) {
  parity::RandomTensor random(7);
  const parity::GemmProblem batch = RandomGemm(GemmLayout::kTN, {48, 40, 33, 3}, random);
  const std::vector<float> all = Run(batch, GemmGpu);
  parity::GemmProblem alone = batch;
  alone.params.batch = 1;
  alone.a.assign(batch.a.begin() + 2 * batch.params.a_batch_stride, batch.a.end());
  alone.b.assign(batch.b.begin() + 2 * batch.params.b_batch_stride, batch.b.end());
  alone.c.resize(batch.params.c_batch_stride);
  const std::vector<float> last(all.begin() + 2 * batch.params.c_batch_stride, all.end());
  EXPECT_TRUE(BitEqual(Run(alone, GemmGpu), last));
}

using DecayMask = GpuTest;
GDN_ON_BACKENDS(DecayMask, WithGpus({}));

// exp(G_j - G_i), the sign as some write-ups have it, gives e and more below the diagonal.
TEST_P(DecayMask, IsWhatIsLeftAndNotItsReciprocal) {
  const std::vector<float> g(3, -1.0f);
  float* mask = Poisoned(9);
  float* from_start = Poisoned(3);
  float* to_end = Poisoned(3);
  ASSERT_EQ(
      DecayMaskGpu({.size = 3, .g = Upload(g), .mask = mask, .from_start = from_start, .to_end = to_end}, stream()),
      absl::OkStatus());
  const float e1 = std::exp(-1.0f);
  const float e2 = std::exp(-2.0f);
  EXPECT_LE(RelativeNormError(Download(mask, 9), std::vector<float>{1, 0, 0, e1, 1, 0, e2, e1, 1}),
            kElementwiseTolerance);
  EXPECT_LE(RelativeNormError(Download(from_start, 3), std::vector<float>{e1, e2, std::exp(-3.0f)}),
            kElementwiseTolerance);
  EXPECT_LE(RelativeNormError(Download(to_end, 3), std::vector<float>{e2, e1, 1}), kElementwiseTolerance);
}

using ChunkByPrimitives = GpuTest;
GDN_ON_BACKENDS(ChunkByPrimitives, WithGpus({}));

// With T's unit diagonal lost, a chunk's first token writes nothing.
TEST_P(ChunkByPrimitives, AChunkOfOneTokenWritesItsValue) {
  const std::vector<float> key = {0.6f, 0.8f};
  const std::vector<float> value = {3.0f, -1.0f, 0.5f};
  const parity::ChunkView chunk{.tokens = 1,
                                .q = Upload(key),
                                .k = Upload(key),
                                .key_stride = 2,
                                .v = Upload(value),
                                .value_stride = 3,
                                .g = Upload({0.0f}),
                                .beta = Upload({1.0f}),
                                .gate_stride = 1};
  float* state = Upload(std::vector<float>(6, 0.0f));
  float* output = Poisoned(3);
  absl::StatusOr<parity::ChunkByPrimitives> steps = parity::ChunkByPrimitives::Make(backend(), 1, 2, 3);
  ASSERT_EQ(steps.status(), absl::OkStatus());
  ASSERT_EQ(steps->Run(chunk, state, output), absl::OkStatus());
  EXPECT_LE(RelativeNormError(Download(output, 3), value), kElementwiseTolerance);
  EXPECT_LE(RelativeNormError(Download(state, 6), std::vector<float>{1.8f, -0.6f, 0.3f, 2.4f, -0.8f, 0.4f}),
            kElementwiseTolerance);
}

// `state decay + k v^T` is not the delta rule: a key written twice holds the second value, not the sum of both.
TEST_P(ChunkByPrimitives, ASecondWriteToAKeyReplacesTheFirst) {
  const parity::ChunkView chunk{.tokens = 2,
                                .q = Upload({1.0f, 0.0f, 1.0f, 0.0f}),
                                .k = Upload({1.0f, 0.0f, 1.0f, 0.0f}),
                                .key_stride = 2,
                                .v = Upload({5.0f, -2.0f}),
                                .value_stride = 1,
                                .g = Upload({0.0f, 0.0f}),
                                .beta = Upload({1.0f, 1.0f}),
                                .gate_stride = 1};
  float* state = Upload({9.0f, 4.0f});
  float* output = Poisoned(2);
  absl::StatusOr<parity::ChunkByPrimitives> steps = parity::ChunkByPrimitives::Make(backend(), 2, 2, 1);
  ASSERT_EQ(steps.status(), absl::OkStatus());
  ASSERT_EQ(steps->Run(chunk, state, output), absl::OkStatus());
  EXPECT_EQ(Download(output, 2), (std::vector<float>{5.0f, -2.0f}));
  EXPECT_EQ(Download(state, 2), (std::vector<float>{-2.0f, 4.0f}));
}

}  // namespace
}  // namespace gdn::matrix_primitives_test
