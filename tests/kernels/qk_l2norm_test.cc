#include "kernels/qk_l2norm/qk_l2norm.h"

#include <cmath>

#include "gmock/gmock.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::qk_l2norm_test {
namespace {

struct Normalized {
  std::vector<float> q, k;
};

class QkL2Norm : public BackendTest {
 protected:
  void Run(const QkL2NormParams& params) { EXPECT_EQ(backend().QkL2Norm(params), absl::OkStatus()); }
  // q and k lie side by side in rows of `x`, as in mixed_qkv.
  Normalized Run(const std::vector<float>& x, int32_t heads, int32_t dim, float scale) {
    const int64_t stride = 2 * int64_t{heads} * dim;
    const int64_t rows = static_cast<int64_t>(x.size()) / stride;
    Normalized out{std::vector<float>(rows * heads * dim), std::vector<float>(rows * heads * dim)};
    Run({.key_heads = heads,
         .key_dim = dim,
         .rows = rows,
         .scale = scale,
         .q = x.data(),
         .k = x.data() + heads * dim,
         .in_stride = stride,
         .q_out = out.q.data(),
         .k_out = out.k.data()});
    return out;
  }
};
GDN_ON_EVERY_BACKEND(QkL2Norm);

TEST_P(QkL2Norm, GivesUnitVectorsAndScalesOnlyQ) {
  const Normalized out = Run({3.0f, 4.0f, 0.0f, 5.0f}, 1, 2, /*scale=*/2.0f);
  EXPECT_THAT(out.q, testing::Pointwise(testing::FloatNear(1e-6f), {1.2f, 1.6f}));
  EXPECT_THAT(out.k, testing::Pointwise(testing::FloatNear(1e-6f), {0.0f, 1.0f}));
}

// Checkpoints exist whose q and k norms are near 1e-3; there an epsilon other than 1e-6 is a large error.
TEST_P(QkL2Norm, AddsOneMillionthToTheSumOfSquares) {
  const Normalized out = Run({1e-3f, 0.0f, 0.0f, 0.0f}, 1, 2, 1.0f);
  EXPECT_NEAR(out.q[0], 1.0 / std::sqrt(2.0), 1e-6);
  EXPECT_THAT(out.k, testing::Each(0.0f));
}

TEST_P(QkL2Norm, StaysFiniteWhereTheSumOfSquaresOverflowsFloat32) {
  const Normalized out = Run({1e30f, 1e30f, -1e25f, 0.0f}, 1, 2, 1.0f);
  EXPECT_NEAR(out.q[0], std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(out.k[0], -1.0, 1e-6);
}

TEST_P(QkL2Norm, ARowHasTheSameBitsAloneAndAmongOthers) {
  Random random(4);
  const int64_t stride = 2 * 2 * 50;
  const std::vector<float> x = random.Normal(300 * stride);
  const Normalized all = Run(x, 2, 50, 0.5f);
  for (int64_t row : {0, 1, 150, 299}) {
    const std::vector<float> own(x.begin() + row * stride, x.begin() + (row + 1) * stride);
    const Normalized alone = Run(own, 2, 50, 0.5f);
    EXPECT_TRUE(BitEqual(alone.q, absl::MakeSpan(all.q).subspan(row * 100, 100)));
    EXPECT_TRUE(BitEqual(alone.k, absl::MakeSpan(all.k).subspan(row * 100, 100)));
  }
}

TEST_P(QkL2Norm, EveryElementIsRightAndOutputsMayAliasInputs) {
  for (const int32_t dim : {1, 10, 24, 33, 64, 128, 132, 257}) {
    for (const bool normalize : {true, false}) {
      Random random(dim);
      constexpr int64_t kRows = 9;
      constexpr int32_t kHeads = 3;
      std::vector<float> q = random.Normal(kRows * kHeads * dim, 1e-3f);  // where the epsilon shows
      std::vector<float> k = random.Normal(kRows * kHeads * dim);
      for (int32_t i = 0; i < dim; ++i) q[i] *= 1e28f;  // no square may overflow
      std::vector<float> q_out(q.size()), k_out(k.size()), expected_q(q.size()), expected_k(k.size());
      QkL2NormParams params{.key_heads = kHeads,
                            .key_dim = dim,
                            .rows = kRows,
                            .normalize = normalize,
                            .scale = 0.25f,
                            .q = q.data(),
                            .k = k.data(),
                            .in_stride = kHeads * dim,
                            .q_out = expected_q.data(),
                            .k_out = expected_k.data()};
      QkL2NormReference(params);
      params.q_out = q_out.data();
      params.k_out = k_out.data();
      Run(params);
      for (size_t i = 0; i < q.size(); ++i) {
        EXPECT_NEAR(q_out[i], expected_q[i], 1e-6 * std::abs(expected_q[i])) << dim;
      }
      params.q_out = q.data();
      params.k_out = k.data();
      Run(params);
      EXPECT_TRUE(BitEqual(q, q_out));
      EXPECT_TRUE(BitEqual(k, k_out));
    }
  }
}

TEST(QkL2NormParams, BadOnesAreRefusedByName) {
  float data[8] = {};
  ExpectRefused<QkL2NormParams>(
      ValidateQkL2Norm,
      {.key_heads = 1, .key_dim = 4, .rows = 1, .q = data, .k = data, .in_stride = 4, .q_out = data, .k_out = data},
      {{"scale is nan", [](auto& p) { p.scale = NAN; }},
       {"in_stride is 3", [](auto& p) { p.in_stride = 3; }},
       {"k_out is null", [](auto& p) { p.k_out = nullptr; }}});
}

}  // namespace
}  // namespace gdn::qk_l2norm_test
