// Transposes, masks, products, the decay mask, packed indices and the chunk put together from them, on the GPU sources.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/primitives/decay_mask/decay_mask.h"
#include "kernels/primitives/gemm/gemm.h"
#include "kernels/primitives/masks/masks.h"
#include "kernels/primitives/transpose/transpose.h"
#include "kernels/primitives/varlen_index/varlen_index.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tools/gdn_parity/chunk_by_primitives.h"

namespace gdn {
namespace {

constexpr double kElementwiseTolerance = 1e-6;
constexpr double kSumTolerance = 1e-5;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RunTranspose(GpuDevice& device, int64_t batch, int64_t rows, int64_t cols,
                                const std::vector<float>& x) {
  float* y = device.Poisoned(batch * rows * cols);
  const absl::Status status =
      TransposeGpu({.batch = batch, .rows = rows, .cols = cols, .x = device.Upload(x), .y = y}, device.stream());
  EXPECT_TRUE(status.ok()) << status;
  return device.Download(y, batch * rows * cols);
}

// Swapped grid dimensions leave part of a tall or wide matrix unwritten, which is poisoned.
TEST(Transpose, HoldsWhenRowsAndColumnsDiffer) {
  OnEveryWave([](GpuDevice& device) {
    Random random(1);
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{200, 5}, {5, 200}, {32, 96}, {96, 32}, {33, 65}, {1, 70}, {70, 1}, {64, 64}}) {
      const std::vector<float> x = random.Normal(rows * cols);
      std::vector<float> expected(x.size());
      TransposeReference({.rows = rows, .cols = cols, .x = x.data(), .y = expected.data()});
      EXPECT_TRUE(BitEqual(RunTranspose(device, 1, rows, cols, x), expected)) << rows << " x " << cols;
    }
  });
}

TEST(Transpose, KeepsTheMatricesOfABatchApart) {
  OnEveryWave([](GpuDevice& device) {
    Random random(2);
    const std::vector<float> x = random.Normal(5 * 40 * 24);
    std::vector<float> expected(x.size());
    TransposeReference({.batch = 5, .rows = 40, .cols = 24, .x = x.data(), .y = expected.data()});
    const std::vector<float> y = RunTranspose(device, 5, 40, 24, x);
    EXPECT_TRUE(BitEqual(y, expected));
    EXPECT_TRUE(BitEqual(RunTranspose(device, 5, 24, 40, y), x));
  });
}

TEST(Masks, TrilKeepsWhatIsOnItsDiagonalAndNeverTouchesWhatIsAbove) {
  OnEveryWave([](GpuDevice& device) {
    for (int64_t diagonal : {-70, -3, -1, 0, 2, 70}) {
      constexpr int64_t kRows = 33;
      constexpr int64_t kCols = 66;
      std::vector<float> x(2 * kRows * kCols);
      for (int64_t at = 0; at < 2 * kRows * kCols; ++at) {
        x[at] = at % kCols > at / kCols % kRows + diagonal ? kNan : static_cast<float>(at + 1);
      }
      std::vector<float> expected(x.size());
      TrilReference(
          {.batch = 2, .rows = kRows, .cols = kCols, .diagonal = diagonal, .x = x.data(), .y = expected.data()});
      float* y = device.Upload(x);
      ASSERT_OK(
          TrilGpu({.batch = 2, .rows = kRows, .cols = kCols, .diagonal = diagonal, .x = y, .y = y}, device.stream()));
      EXPECT_TRUE(BitEqual(device.Download(y, 2 * kRows * kCols), expected)) << "diagonal " << diagonal;
    }
  });
}

TEST(Masks, TheCausalMaskIsStrictAndWithoutAnInputTheMaskItself) {
  OnEveryWave([](GpuDevice& device) {
    float* y = device.Poisoned(3 * 3);
    ASSERT_OK(CausalMaskGpu({.size = 3, .y = y}, device.stream()));
    EXPECT_EQ(device.Download(y, 9), (std::vector<float>{0, 0, 0, 1, 0, 0, 1, 1, 0}));
    ASSERT_OK(TrilGpu({.rows = 3, .cols = 3, .y = y}, device.stream()));
    EXPECT_EQ(device.Download(y, 9), (std::vector<float>{1, 0, 0, 1, 1, 0, 1, 1, 1}));
    ASSERT_OK(EyeGpu({.rows = 2, .cols = 4, .y = y}, device.stream()));
    EXPECT_EQ(device.Download(y, 8), (std::vector<float>{1, 0, 0, 0, 0, 1, 0, 0}));
  });
}

TEST(Masks, ApplyingTheIdentityLeavesAUnitDiagonalWithEitherSign) {
  OnEveryWave([](GpuDevice& device) {
    Random random(3);
    constexpr int64_t kSize = 70;
    std::vector<float> x = random.Normal(3 * kSize * kSize);
    for (int64_t at = 0; at < 3 * kSize * kSize; ++at) {
      if (at % kSize >= at / kSize % kSize) x[at] = 0.0f;
    }
    for (float sign : {1.0f, -1.0f}) {
      std::vector<float> expected(x.size());
      ApplyIdentityReference({.batch = 3, .size = kSize, .sign = sign, .x = x.data(), .y = expected.data()});
      float* y = device.Upload(x);
      ASSERT_OK(ApplyIdentityGpu({.batch = 3, .size = kSize, .sign = sign, .x = y, .y = y}, device.stream()));
      const std::vector<float> actual = device.Download(y, 3 * kSize * kSize);
      EXPECT_LE(RelativeNormError(actual, expected), 0.0);
      for (int64_t i = 0; i < kSize; ++i) EXPECT_EQ(actual[i * kSize + i], 1.0f);
    }
  });
}

struct GemmShape {
  int64_t m, n, k, batch;
  int64_t padding;  // floats between stored rows
};

// Host data of a product and its parameters, pointing at them.
struct GemmProblem {
  GemmProblem(GemmLayout layout, const GemmShape& shape, Random& random)
      : params{.layout = layout, .batch = shape.batch, .m = shape.m, .n = shape.n, .k = shape.k} {
    const bool tn = layout == GemmLayout::kTN;
    const bool nt = layout == GemmLayout::kNT;
    params.a_stride = (tn ? shape.m : shape.k) + shape.padding;
    params.b_stride = (nt ? shape.k : shape.n) + shape.padding;
    params.c_stride = shape.n + shape.padding;
    params.a_batch_stride = (tn ? shape.k : shape.m) * params.a_stride;
    params.b_batch_stride = (nt ? shape.n : shape.k) * params.b_stride;
    params.c_batch_stride = shape.m * params.c_stride;
    a = random.Normal(shape.batch * params.a_batch_stride);
    b = random.Normal(shape.batch * params.b_batch_stride);
    c = random.Normal(shape.batch * params.c_batch_stride);
    // Between the rows lies what no product may use.
    for (int64_t at = 0; at < static_cast<int64_t>(a.size()); ++at) {
      if (at % params.a_stride >= params.a_stride - shape.padding) a[at] = kNan;
    }
    for (int64_t at = 0; at < static_cast<int64_t>(b.size()); ++at) {
      if (at % params.b_stride >= params.b_stride - shape.padding) b[at] = kNan;
    }
  }

  std::vector<float> Reference() const {
    std::vector<float> expected = c;
    GemmParams on_host = params;
    on_host.a = a.data();
    on_host.b = b.data();
    on_host.c = expected.data();
    GemmReference(on_host);
    return expected;
  }

  std::vector<float> Run(GpuDevice& device, absl::Status (*launch)(const GemmParams&, const gpu::Stream&)) const {
    GemmParams on_device = params;
    on_device.a = device.Upload(a);
    on_device.b = device.Upload(b);
    on_device.c = device.Upload(c);
    const absl::Status status = launch(on_device, device.stream());
    EXPECT_TRUE(status.ok()) << status;
    return device.Download(on_device.c, static_cast<int64_t>(c.size()));
  }

  GemmParams params;
  std::vector<float> a, b, c;
};

constexpr GemmLayout kLayouts[] = {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN};

TEST(Gemm, EveryLayoutMatchesItsReferenceAndLeavesTheGapsAlone) {
  OnEveryWave([](GpuDevice& device) {
    Random random(4);
    for (GemmLayout layout : kLayouts) {
      for (const GemmShape& shape :
           {GemmShape{64, 64, 64, 1, 0}, GemmShape{65, 3, 17, 2, 0}, GemmShape{3, 70, 16, 1, 4},
            GemmShape{40, 24, 33, 3, 1}, GemmShape{1, 1, 1, 1, 0}, GemmShape{24, 100, 8, 1, 0},
            GemmShape{31, 31, 31, 2, 1}, GemmShape{62, 62, 62, 1, 2}}) {
        const GemmProblem problem(layout, shape, random);
        const std::vector<float> expected = problem.Reference();
        EXPECT_LE(RelativeNormError(problem.Run(device, GemmGpu), expected), kSumTolerance)
            << static_cast<int>(layout) << ": " << shape.m << " x " << shape.n << " x " << shape.k;
      }
    }
  });
}

TEST(Gemm, TheNaiveAndTheTiledFormAgreeToTheBit) {
  OnEveryWave([](GpuDevice& device) {
    Random random(5);
    for (GemmLayout layout : kLayouts) {
      GemmProblem problem(layout, {70, 33, 50, 2, 3}, random);
      problem.params.alpha = -0.7f;
      problem.params.beta = 1.3f;
      const std::vector<float> naive = problem.Run(device, GemmNaiveGpu);
      EXPECT_TRUE(BitEqual(problem.Run(device, GemmGpu), naive));
      EXPECT_LE(RelativeNormError(naive, problem.Reference()), kSumTolerance);
    }
  });
}

TEST(Gemm, WithBetaZeroTheOutputIsNotReadAndAnEmptySumIsZero) {
  OnEveryWave([](GpuDevice& device) {
    Random random(6);
    for (auto* launch : {&GemmGpu, &GemmNaiveGpu}) {
      GemmProblem problem(GemmLayout::kNN, {20, 20, 20, 1, 0}, random);
      problem.c.assign(problem.c.size(), kNan);
      EXPECT_TRUE(AllFinite(problem.Run(device, launch)));
      problem.params.k = 0;
      EXPECT_EQ(problem.Run(device, launch), std::vector<float>(400, 0.0f));
    }
  });
}

TEST(Gemm, AProductsBitsDoNotDependOnItsCompanions) {
  OnEveryWave([](GpuDevice& device) {
    Random random(7);
    const GemmProblem batch(GemmLayout::kTN, {48, 40, 33, 3, 0}, random);
    const std::vector<float> all = batch.Run(device, GemmGpu);
    GemmProblem alone = batch;
    alone.params.batch = 1;
    alone.a.assign(batch.a.begin() + 2 * batch.params.a_batch_stride, batch.a.end());
    alone.b.assign(batch.b.begin() + 2 * batch.params.b_batch_stride, batch.b.end());
    alone.c.resize(batch.params.c_batch_stride);
    const std::vector<float> last(all.begin() + 2 * batch.params.c_batch_stride, all.end());
    EXPECT_TRUE(BitEqual(alone.Run(device, GemmGpu), last));
  });
}

TEST(VarlenIndex, MatchesItsReferenceWithEmptySequencesAndManyOfThem) {
  OnEveryWave([](GpuDevice& device) {
    Random random(8);
    std::vector<std::vector<int32_t>> batches = {{}, {0}, {5}, {0, 3, 0, 0, 7, 1, 0}, {64, 65, 1, 128}};
    std::vector<int32_t> many(600);  // more than are scanned at a time
    for (int32_t& length : many) length = random.NextInt(0, 5);
    batches.push_back(many);
    for (const std::vector<int32_t>& lengths : batches) {
      const parity::OwnedBatch batch(lengths);
      const int32_t sequences = static_cast<int32_t>(lengths.size());
      const int32_t tokens = batch.tokens();
      std::vector<int32_t> expected_lengths(sequences), ids(tokens), positions(tokens), offsets(sequences + 1);
      VarlenIndexParams params{.sequences = sequences,
                               .tokens = tokens,
                               .chunk = 4,
                               .cu_seqlens = batch.cu_seqlens.data(),
                               .lengths = expected_lengths.data(),
                               .sequence_ids = ids.data(),
                               .position_ids = positions.data(),
                               .chunk_offsets = offsets.data()};
      VarlenIndexReference(params);
      params.cu_seqlens = device.UploadValues(batch.cu_seqlens);
      params.lengths = device.PoisonedValues<int32_t>(sequences);
      params.sequence_ids = device.PoisonedValues<int32_t>(tokens);
      params.position_ids = device.PoisonedValues<int32_t>(tokens);
      params.chunk_offsets = device.PoisonedValues<int32_t>(sequences + 1);
      ASSERT_OK(VarlenIndexGpu(params, device.stream()));
      EXPECT_EQ(device.Download(params.lengths, sequences), lengths);
      EXPECT_EQ(device.Download(params.sequence_ids, tokens), ids);
      EXPECT_EQ(device.Download(params.position_ids, tokens), positions);
      EXPECT_EQ(device.Download(params.chunk_offsets, sequences + 1), offsets);
    }
  });
}

// exp(G_j - G_i), the sign as some write-ups have it, gives e and more below the diagonal.
TEST(DecayMask, IsWhatIsLeftAndNotItsReciprocal) {
  OnEveryWave([](GpuDevice& device) {
    const std::vector<float> g(3, -1.0f);
    float* mask = device.Poisoned(9);
    float* from_start = device.Poisoned(3);
    float* to_end = device.Poisoned(3);
    ASSERT_OK(DecayMaskGpu({.size = 3, .g = device.Upload(g), .mask = mask, .from_start = from_start, .to_end = to_end},
                           device.stream()));
    const float e1 = std::exp(-1.0f);
    const float e2 = std::exp(-2.0f);
    EXPECT_LE(RelativeNormError(device.Download(mask, 9), std::vector<float>{1, 0, 0, e1, 1, 0, e2, e1, 1}),
              kElementwiseTolerance);
    EXPECT_LE(RelativeNormError(device.Download(from_start, 3), std::vector<float>{e1, e2, std::exp(-3.0f)}),
              kElementwiseTolerance);
    EXPECT_LE(RelativeNormError(device.Download(to_end, 3), std::vector<float>{e2, e1, 1}), kElementwiseTolerance);
  });
}

// e^{G_i} e^{-G_j} would be 0 times infinity; a float32 running sum would lose the tokens after the one at -1e4.
TEST(DecayMask, IsExactWhereTheDecayIsStrong) {
  OnEveryWave([](GpuDevice& device) {
    for (int32_t size : {5, 64, 256}) {
      std::vector<float> g(2 * size, -1e-3f);
      g[2] = -1e4f;
      g[size + 1] = -200.0f;
      std::vector<float> expected(2 * size * size);
      DecayMaskReference({.batch = 2, .size = size, .g = g.data(), .g_batch_stride = size, .mask = expected.data()});
      float* mask = device.Poisoned(2 * size * size);
      ASSERT_OK(DecayMaskGpu({.batch = 2, .size = size, .g = device.Upload(g), .g_batch_stride = size, .mask = mask},
                             device.stream()));
      EXPECT_LE(RelativeNormError(device.Download(mask, 2 * size * size), expected), kElementwiseTolerance);
    }
  });
}

// With T's unit diagonal lost, a chunk's first token writes nothing.
TEST(ChunkByPrimitives, AChunkOfOneTokenWritesItsValue) {
  OnEveryWave([](GpuDevice& device) {
    const std::vector<float> key = {0.6f, 0.8f};
    const std::vector<float> value = {3.0f, -1.0f, 0.5f};
    const parity::ChunkView chunk{.tokens = 1,
                                  .q = device.Upload(key),
                                  .k = device.Upload(key),
                                  .key_stride = 2,
                                  .v = device.Upload(value),
                                  .value_stride = 3,
                                  .g = device.Upload({0.0f}),
                                  .beta = device.Upload({1.0f}),
                                  .gate_stride = 1};
    float* state = device.Upload(std::vector<float>(6, 0.0f));
    float* output = device.Poisoned(3);
    absl::StatusOr<parity::ChunkByPrimitives> steps = parity::ChunkByPrimitives::Make(device.backend(), 1, 2, 3);
    ASSERT_OK(steps.status());
    ASSERT_OK(steps->Run(chunk, state, output));
    EXPECT_LE(RelativeNormError(device.Download(output, 3), value), kElementwiseTolerance);
    EXPECT_LE(RelativeNormError(device.Download(state, 6), std::vector<float>{1.8f, -0.6f, 0.3f, 2.4f, -0.8f, 0.4f}),
              kElementwiseTolerance);
  });
}

// `state decay + k v^T` is not the delta rule: a key written twice holds the second value, not the sum of both.
TEST(ChunkByPrimitives, ASecondWriteToAKeyReplacesTheFirst) {
  OnEveryWave([](GpuDevice& device) {
    const parity::ChunkView chunk{.tokens = 2,
                                  .q = device.Upload({1.0f, 0.0f, 1.0f, 0.0f}),
                                  .k = device.Upload({1.0f, 0.0f, 1.0f, 0.0f}),
                                  .key_stride = 2,
                                  .v = device.Upload({5.0f, -2.0f}),
                                  .value_stride = 1,
                                  .g = device.Upload({0.0f, 0.0f}),
                                  .beta = device.Upload({1.0f, 1.0f}),
                                  .gate_stride = 1};
    float* state = device.Upload({9.0f, 4.0f});
    float* output = device.Poisoned(2);
    absl::StatusOr<parity::ChunkByPrimitives> steps = parity::ChunkByPrimitives::Make(device.backend(), 2, 2, 1);
    ASSERT_OK(steps.status());
    ASSERT_OK(steps->Run(chunk, state, output));
    EXPECT_EQ(device.Download(output, 2), (std::vector<float>{5.0f, -2.0f}));
    EXPECT_EQ(device.Download(state, 2), (std::vector<float>{-2.0f, 4.0f}));
  });
}

}  // namespace
}  // namespace gdn
