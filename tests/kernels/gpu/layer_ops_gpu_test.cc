#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gating/gating.h"
#include "kernels/qk_l2norm/qk_l2norm.h"
#include "kernels/qkvz_split/qkvz_split.h"
#include "tests/kernels/gpu/gpu_layer_data.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr double kTolerance = 1e-6;
constexpr int32_t kMaxDraft = 3;

class LayerOpsGpuTest : public testing::TestWithParam<int> {
 protected:
  gpu::Stream stream() const { return HostExecutor(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Waves, LayerOpsGpuTest, testing::Values(64, 32),
                         [](const auto& param_info) { return "Wave" + std::to_string(param_info.param); });

TEST_P(LayerOpsGpuTest, GatingMatchesReference) {
  Random random(1);
  for (ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
    const int64_t rows = 67, heads = 5;
    std::vector<float> a = random.Normal(rows * heads, 30.0f);
    const std::vector<float> b = random.Normal(rows * heads, 30.0f), dt_bias = random.Normal(heads);
    std::vector<float> a_log = random.Normal(heads);
    if (convention == ALogConvention::kNegativeExp) {
      for (float& x : a_log) x = -std::exp(x);
    }
    a[0] = 1e30f;  // softplus must not overflow
    a[1] = -1e30f;
    std::vector<float> g(a.size()), beta(a.size()), expected_g(a.size()), expected_beta(a.size());
    GatingParams params{.convention = convention,
                        .value_heads = heads,
                        .rows = rows,
                        .a = a.data(),
                        .b = b.data(),
                        .a_log = a_log.data(),
                        .dt_bias = dt_bias.data(),
                        .g = g.data(),
                        .beta = beta.data()};
    ASSERT_TRUE(GatingGpu(params, stream()).ok());
    params.g = expected_g.data();
    params.beta = expected_beta.data();
    GatingReference(params);
    EXPECT_TRUE(AllFinite(g));
    for (size_t i = 0; i < g.size(); ++i) {
      EXPECT_NEAR(g[i], expected_g[i], 2e-6 * std::abs(expected_g[i]) + 1e-30) << "a = " << a[i];
    }
    EXPECT_LE(RelativeNormError(beta, expected_beta), kTolerance);
  }
}

TEST_P(LayerOpsGpuTest, SplitIsExactInBothLayouts) {
  Random random(2);
  for (const LayerDims& dims :
       {LayerDims{2, 4, 8, 12, 4, 16}, LayerDims{3, 9, 5, 7, 4, 16}, LayerDims{1, 1, 33, 3, 4, 8}}) {
    for (ProjectionLayout layout : {ProjectionLayout::kInterleaved, ProjectionLayout::kFlat}) {
      const int64_t rows = 5;
      const std::vector<float> qkvz = random.Normal(rows * (dims.conv_channels() + dims.value_features()));
      const std::vector<float> ba = random.Normal(rows * 2 * dims.value_heads);
      struct Outputs {
        std::vector<float> mixed, z, b, a;
      };
      const auto run = [&](bool reference) {
        Outputs out{std::vector<float>(rows * dims.conv_channels()), std::vector<float>(rows * dims.value_features()),
                    std::vector<float>(rows * dims.value_heads), std::vector<float>(rows * dims.value_heads)};
        const QkvzSplitParams params{.layout = layout,
                                     .dims = dims,
                                     .rows = rows,
                                     .qkvz = qkvz.data(),
                                     .ba = ba.data(),
                                     .mixed_qkv = out.mixed.data(),
                                     .z = out.z.data(),
                                     .b = out.b.data(),
                                     .a = out.a.data()};
        if (reference) {
          QkvzSplitReference(params);
        } else {
          const absl::Status status = QkvzSplitGpu(params, stream());
          EXPECT_TRUE(status.ok()) << status;
        }
        return out;
      };
      const Outputs actual = run(false), expected = run(true);
      EXPECT_TRUE(BitEqual(actual.mixed, expected.mixed));
      EXPECT_TRUE(BitEqual(actual.z, expected.z));
      EXPECT_TRUE(BitEqual(actual.b, expected.b));
      EXPECT_TRUE(BitEqual(actual.a, expected.a));
    }
  }
}

// A pool, weights and token counts; each Run carries the sequences on.
class Conv {
 public:
  Conv(const LayerDims& dims, int32_t slots, gpu::Stream stream)
      : dims_(dims), pool_(dims, slots, kMaxDraft), counts_(slots, 0), stream_(stream) {
    Random random(13);
    weight_ = random.Normal(dims.conv_channels() * dims.conv_width);
  }

  HostStatePool& pool() { return pool_; }

  // Sequence i, `lengths[i]` tokens of x, is on slot i.
  std::vector<float> Run(const std::vector<int32_t>& lengths, const std::vector<float>& x, bool reference = false) {
    std::vector<int32_t> slots(lengths.size());
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    const Sequences sequences(lengths, slots, counts_);
    std::vector<float> y(x.size(), -7.0f);
    const CausalConv1dParams params{.pool = pool_.view(),
                                    .batch = sequences.batch(),
                                    .token_counts = sequences.counts(),
                                    .x = x.data(),
                                    .weight = weight_.data(),
                                    .y = y.data()};
    if (reference) {
      CausalConv1dReference(params);
    } else {
      const absl::Status status = CausalConv1dGpu(params, sequences.device(), stream_);
      EXPECT_TRUE(status.ok()) << status;
    }
    for (size_t i = 0; i < lengths.size(); ++i) counts_[i] += lengths[i];
    return y;
  }

 private:
  LayerDims dims_;
  HostStatePool pool_;
  std::vector<float> weight_;
  std::vector<int64_t> counts_;
  gpu::Stream stream_;
};

TEST_P(LayerOpsGpuTest, ConvMatchesReferenceForAnyWidthAndLengths) {
  for (int32_t width : {2, 3, 4, 5, 9, 64}) {
    for (int32_t key_dim : {8, 9}) {
      const LayerDims dims{1, 2, key_dim, key_dim + 4, width, 16};
      Conv actual(dims, 4, stream()), expected(dims, 4, stream());
      Random random(width);
      for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
               {1, 0, 2, 70}, {1, 1, 1, 1}, {3, 130, 0, 1}, {63, 64, 17, 2}, {1, 2, 1, 3}}) {
        const std::vector<float> x = random.Normal(CumulativeLengths(lengths).back() * dims.conv_channels());
        EXPECT_LE(RelativeNormError(actual.Run(lengths, x), expected.Run(lengths, x, /*reference=*/true)), kTolerance)
            << width;
        for (int32_t slot = 0; slot < 4; ++slot) {
          EXPECT_TRUE(BitEqual(actual.pool().slot(slot), expected.pool().slot(slot))) << width << " slot " << slot;
        }
      }
    }
  }
}

TEST_P(LayerOpsGpuTest, ConvGivesTheSameBitsInAnySplit) {
  for (int32_t width : {2, 4, 20}) {
    const LayerDims dims{1, 2, 8, 12, width, 16};
    const int64_t channels = dims.conv_channels();
    Random random(3);
    const std::vector<float> x = random.Normal(100 * channels);
    const std::vector<float> expected = Conv(dims, 1, stream()).Run({100}, x);
    for (int32_t piece : {1, 3, 16, 40, 99}) {
      Conv split(dims, 1, stream());
      std::vector<float> actual;
      for (int32_t begin = 0; begin < 100; begin += piece) {
        const int32_t end = std::min(100, begin + piece);
        const std::vector<float> y =
            split.Run({end - begin}, {x.begin() + begin * channels, x.begin() + end * channels});
        actual.insert(actual.end(), y.begin(), y.end());
      }
      EXPECT_TRUE(BitEqual(actual, expected)) << "width " << width << " in pieces of " << piece;
    }
  }
}

TEST_P(LayerOpsGpuTest, ConvLeavesPaddingAndLargeCountsRight) {
  const LayerDims dims{1, 2, 8, 12, 4, 16};
  const int64_t channels = dims.conv_channels();
  Random random(4);
  const std::vector<float> x = random.Normal(6 * channels), weight = random.Normal(channels * 4);
  const Sequences sequences({2, 1, 3}, {1, -1, 0}, {int64_t{1} << 40, 0, 5});
  HostStatePool actual_pool(dims, 3, kMaxDraft), expected_pool(dims, 3, kMaxDraft);
  const std::vector<float> before = random.Normal(actual_pool.slot(0).size());
  for (int32_t slot = 0; slot < 3; ++slot) {
    std::copy(before.begin(), before.end(), actual_pool.slot(slot).begin());
    std::copy(before.begin(), before.end(), expected_pool.slot(slot).begin());
  }
  std::vector<float> actual(x.size(), -7.0f), expected(x.size(), -7.0f);
  CausalConv1dParams params{.pool = actual_pool.view(),
                            .batch = sequences.batch(),
                            .token_counts = sequences.counts(),
                            .x = x.data(),
                            .weight = weight.data(),
                            .y = actual.data()};
  ASSERT_TRUE(CausalConv1dGpu(params, sequences.device(), stream()).ok());
  params.pool = expected_pool.view();
  params.y = expected.data();
  CausalConv1dReference(params);
  EXPECT_LE(RelativeNormError(actual, expected), kTolerance);
  for (int64_t i = 0; i < channels; ++i) EXPECT_EQ(actual[2 * channels + i], 0.0f);
  for (int32_t slot = 0; slot < 3; ++slot) EXPECT_TRUE(BitEqual(actual_pool.slot(slot), expected_pool.slot(slot)));
  EXPECT_TRUE(BitEqual(actual_pool.slot(2), before));
}

TEST_P(LayerOpsGpuTest, L2NormMatchesReferenceInPlaceAndAtAnySize) {
  for (int32_t dim : {1, 24, 33, 64, 128, 132, 257}) {
    for (bool normalize : {true, false}) {
      Random random(dim);
      const int64_t rows = 9, heads = 3, stride = 2 * heads * dim;
      std::vector<float> qk = random.Normal(rows * stride, 1e-3f);  // where the epsilon shows
      for (int32_t i = 0; i < dim; ++i) qk[i] *= 1e28f;             // no square may overflow
      std::vector<float> q(rows * heads * dim), k(q.size()), expected_q(q.size()), expected_k(q.size());
      QkL2NormParams params{.key_heads = static_cast<int32_t>(heads),
                            .key_dim = dim,
                            .rows = rows,
                            .normalize = normalize,
                            .scale = 0.25f,
                            .q = qk.data(),
                            .k = qk.data() + heads * dim,
                            .in_stride = stride,
                            .q_out = q.data(),
                            .k_out = k.data()};
      ASSERT_TRUE(QkL2NormGpu(params, stream()).ok());
      params.q_out = expected_q.data();
      params.k_out = expected_k.data();
      QkL2NormReference(params);
      for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(q[i], expected_q[i], 1e-6 * std::abs(expected_q[i])) << dim;
      EXPECT_LE(RelativeNormError(k, expected_k), kTolerance);
      std::vector<float> in_place = q;
      params.q = params.k = in_place.data();
      params.in_stride = heads * dim;
      params.q_out = params.k_out = nullptr;
      std::vector<float> other(q.size());
      params.q_out = in_place.data();
      params.k = k.data();
      params.k_out = other.data();
      params.q = in_place.data();
      ASSERT_TRUE(QkL2NormGpu(params, stream()).ok());
      params.q = q.data();
      params.q_out = expected_q.data();
      ASSERT_TRUE(QkL2NormGpu(params, stream()).ok());
      EXPECT_TRUE(BitEqual(in_place, expected_q));
    }
  }
}

TEST_P(LayerOpsGpuTest, GatedRmsNormMatchesReferenceInPlaceAndAtAnySize) {
  for (int32_t dim : {1, 24, 33, 128, 132, 257}) {
    Random random(dim);
    const int64_t rows = 37;
    std::vector<float> x = random.Normal(rows * dim), z = random.Normal(rows * dim, 5.0f);
    const std::vector<float> weight = random.Normal(dim);
    for (int32_t i = 0; i < dim; ++i) x[i] *= 1e25f;
    z[dim] = -200.0f;  // e^200 is not a float32
    std::vector<float> expected(x.size());
    GatedRmsNormParams params{.value_dim = dim,
                              .rows = rows,
                              .epsilon = 1e-5f,
                              .x = x.data(),
                              .z = z.data(),
                              .weight = weight.data(),
                              .y = expected.data()};
    GatedRmsNormReference(params);
    params.y = x.data();
    ASSERT_TRUE(GatedRmsNormGpu(params, stream()).ok());
    EXPECT_LE(RelativeNormError(x, expected), kTolerance) << dim;
    // A row alone gives the same bits.
    const std::vector<float> row = random.Normal(dim);
    std::vector<float> many;
    for (int i = 0; i < 20; ++i) many.insert(many.end(), row.begin(), row.end());
    std::vector<float> alone(dim), batch(many.size()), gate(many.size(), 0.7f);
    params.z = gate.data();
    params.x = many.data();
    params.rows = 1;
    params.y = alone.data();
    ASSERT_TRUE(GatedRmsNormGpu(params, stream()).ok());
    params.rows = 20;
    params.y = batch.data();
    ASSERT_TRUE(GatedRmsNormGpu(params, stream()).ok());
    EXPECT_TRUE(BitEqual(alone, absl::MakeConstSpan(batch).last(dim)));
  }
}

}  // namespace
}  // namespace gdn
