#include "kernels/qk_l2norm/qk_l2norm.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr double kTolerance = 1e-6;

struct Normalized {
  std::vector<float> q, k;
};

// q and k lie side by side in rows of `x`, as in mixed_qkv.
template <typename Operator>
Normalized Apply(const std::vector<float>& x, int32_t heads, int32_t dim, int64_t stride, bool normalize, float scale,
                 Operator run) {
  const int64_t rows = static_cast<int64_t>(x.size()) / stride;
  Normalized out{std::vector<float>(rows * heads * dim), std::vector<float>(rows * heads * dim)};
  run(QkL2NormParams{.key_heads = heads,
                     .key_dim = dim,
                     .rows = rows,
                     .normalize = normalize,
                     .scale = scale,
                     .q = x.data(),
                     .k = x.data() + heads * dim,
                     .in_stride = stride,
                     .q_out = out.q.data(),
                     .k_out = out.k.data()});
  return out;
}

void OnCpu(const QkL2NormParams& params) {
  ThreadPool pool(3);
  const absl::Status status = QkL2NormCpu(params, pool);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(QkL2Norm, GivesUnitVectorsAndScalesOnlyQ) {
  const Normalized out = Apply({3.0f, 4.0f, 0.0f, 5.0f}, 1, 2, 4, /*normalize=*/true, /*scale=*/2.0f, OnCpu);
  EXPECT_THAT(out.q, testing::Pointwise(testing::FloatNear(1e-6f), {1.2f, 1.6f}));
  EXPECT_THAT(out.k, testing::Pointwise(testing::FloatNear(1e-6f), {0.0f, 1.0f}));
}

// Checkpoints exist whose q and k norms are near 1e-3; there an epsilon other than 1e-6 is a large error.
TEST(QkL2Norm, AddsOneMillionthToTheSumOfSquares) {
  const Normalized out = Apply({1e-3f, 0.0f, 0.0f, 0.0f}, 1, 2, 4, true, 1.0f, OnCpu);
  EXPECT_NEAR(out.q[0], 1.0 / std::sqrt(2.0), 1e-6);
  EXPECT_THAT(out.k, testing::Each(0.0f));
}

TEST(QkL2Norm, MatchesReferenceForEveryTailOfKeyDim) {
  Random random(2);
  for (int32_t dim : {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 128, 256}) {
    for (bool normalize : {true, false}) {
      const int64_t stride = 2 * 3 * dim + 5;
      const std::vector<float> x = random.Normal(41 * stride, 0.3f);
      const Normalized actual = Apply(x, 3, dim, stride, normalize, 0.125f, OnCpu);
      const Normalized expected = Apply(x, 3, dim, stride, normalize, 0.125f, QkL2NormReference);
      EXPECT_LE(RelativeNormError(actual.q, expected.q), kTolerance) << dim;
      EXPECT_LE(RelativeNormError(actual.k, expected.k), kTolerance) << dim;
    }
  }
}

TEST(QkL2Norm, StaysFiniteWhereTheSumOfSquaresOverflowsFloat32) {
  const Normalized out = Apply({1e30f, 1e30f, -1e25f, 0.0f}, 1, 2, 4, true, 1.0f, OnCpu);
  EXPECT_NEAR(out.q[0], std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(out.k[0], -1.0, 1e-6);
}

TEST(QkL2Norm, ARowHasTheSameBitsAloneAndAmongOthers) {
  Random random(4);
  const int64_t stride = 2 * 2 * 50;
  const std::vector<float> x = random.Normal(300 * stride);
  const Normalized all = Apply(x, 2, 50, stride, true, 0.5f, OnCpu);
  for (int64_t row : {0, 1, 150, 299}) {
    const std::vector<float> own(x.begin() + row * stride, x.begin() + (row + 1) * stride);
    const Normalized alone = Apply(own, 2, 50, stride, true, 0.5f, OnCpu);
    EXPECT_TRUE(BitEqual(alone.q, absl::MakeSpan(all.q).subspan(row * 100, 100)));
    EXPECT_TRUE(BitEqual(alone.k, absl::MakeSpan(all.k).subspan(row * 100, 100)));
  }
}

TEST(QkL2Norm, OutputsMayAliasInputs) {
  Random random(5);
  std::vector<float> q = random.Normal(6 * 20), k = random.Normal(6 * 20);
  std::vector<float> q_out(q.size()), k_out(k.size());
  QkL2NormParams params{.key_heads = 2,
                        .key_dim = 10,
                        .rows = 6,
                        .scale = 0.5f,
                        .q = q.data(),
                        .k = k.data(),
                        .in_stride = 20,
                        .q_out = q_out.data(),
                        .k_out = k_out.data()};
  OnCpu(params);
  params.q_out = q.data();
  params.k_out = k.data();
  OnCpu(params);
  EXPECT_TRUE(BitEqual(q, q_out));
  EXPECT_TRUE(BitEqual(k, k_out));
}

TEST(QkL2Norm, BadParamsAreRefusedByName) {
  float data[8] = {};
  QkL2NormParams params{.key_heads = 1,
                        .key_dim = 4,
                        .rows = 1,
                        .scale = NAN,
                        .q = data,
                        .k = data,
                        .in_stride = 3,
                        .q_out = data,
                        .k_out = data};
  EXPECT_THAT(std::string(ValidateQkL2Norm(params).message()), testing::HasSubstr("scale is nan"));
  params.scale = 1.0f;
  EXPECT_THAT(std::string(ValidateQkL2Norm(params).message()), testing::HasSubstr("in_stride is 3"));
  params.in_stride = 4;
  params.k_out = nullptr;
  EXPECT_THAT(std::string(ValidateQkL2Norm(params).message()), testing::HasSubstr("k_out is null"));
}

}  // namespace
}  // namespace gdn
