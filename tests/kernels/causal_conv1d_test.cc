#include "kernels/causal_conv1d/causal_conv1d.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "gmock/gmock.h"
#include "kernels/slot_access.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::causal_conv1d_test {
namespace {

constexpr double kTolerance = 1e-6;
constexpr int32_t kMaxDraft = 3;

LayerDims Dims(int32_t width, int32_t key_dim = 9) {
  return {
      .key_heads = 1, .value_heads = 2, .key_dim = key_dim, .value_dim = 11, .conv_width = width, .hidden_size = 16};
}

// A pool, weights and token counts; each Run carries the sequences on.
class Conv {
 public:
  Conv(Backend& backend, const LayerDims& dims, int32_t slots)
      : backend_(backend), dims_(dims), pool_(dims, slots, kMaxDraft), counts_(slots, 0) {
    Random random(13);
    weight_ = random.Normal(dims.conv_channels() * dims.conv_width);
  }

  HostStatePool& pool() { return pool_; }
  std::vector<float>& weight() { return weight_; }
  std::vector<int64_t>& counts() { return counts_; }

  // Each part is [tokens, C] of the slot of its index.
  std::vector<float> Run(const std::vector<std::vector<float>>& parts) {
    std::vector<int32_t> cu_seqlens{0}, slots;
    std::vector<float> x;
    for (const std::vector<float>& part : parts) {
      slots.push_back(static_cast<int32_t>(slots.size()));
      Append(part, x);
      cu_seqlens.push_back(static_cast<int32_t>(static_cast<int64_t>(x.size()) / dims_.conv_channels()));
    }
    std::vector<float> y = Run(cu_seqlens, slots, x, /*reference=*/false);
    for (size_t i = 0; i < parts.size(); ++i) counts_[i] += cu_seqlens[i + 1] - cu_seqlens[i];
    return y;
  }
  std::vector<float> Run(const std::vector<int32_t>& cu_seqlens, const std::vector<int32_t>& slots,
                         const std::vector<float>& x, bool reference) {
    std::vector<float> y(x.size(), -7.0f);
    const CausalConv1dParams params{.pool = pool_.view(),
                                    .batch = {.sequences = static_cast<int32_t>(slots.size()),
                                              .cu_seqlens = cu_seqlens.data(),
                                              .slots = slots.data()},
                                    .token_counts = counts_.data(),
                                    .x = x.data(),
                                    .weight = weight_.data(),
                                    .y = y.data()};
    if (reference) {
      CausalConv1dReference(params);
    } else {
      EXPECT_EQ(backend_.CausalConv1d(params), absl::OkStatus());
    }
    return y;
  }
  // The newest columns after `token_count` tokens.
  std::vector<float> Columns(int64_t token_count) { return ReadHostSlot(pool_.view(), 0, 0, token_count)->conv; }

 private:
  Backend& backend_;
  LayerDims dims_;
  HostStatePool pool_;
  std::vector<float> weight_;
  std::vector<int64_t> counts_;
};

class CausalConv1d : public BackendTest {};
GDN_ON_EVERY_BACKEND(CausalConv1d);

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

TEST_P(CausalConv1d, WeighsTheCurrentTokenWithTheLastTap) {
  const LayerDims dims{
      .key_heads = 1, .value_heads = 1, .key_dim = 1, .value_dim = 1, .conv_width = 3, .hidden_size = 4};
  Conv conv(backend(), dims, 1);
  conv.weight() = {1, 10, 100, 0, 0, 1, 0, 0, 1};  // channel 0 tells its taps apart
  const std::vector<float> y = conv.Run({{0.01f, 0, 0, 0.02f, 0, 0, 0.03f, 0, 0}});
  EXPECT_NEAR(y[0], Silu(1.0), 1e-6);
  EXPECT_NEAR(y[3], Silu(0.1 + 2.0), 1e-6);
  EXPECT_NEAR(y[6], Silu(0.01 + 0.2 + 3.0), 1e-6);
}

TEST_P(CausalConv1d, AnySplitGivesTheSameBits) {
  const std::vector<std::unique_ptr<Backend>> others = OthersOfTheSameBits();
  for (const int32_t width : {2, 3, 4, 9, 20}) {
    const LayerDims dims = Dims(width);
    const int64_t channels = dims.conv_channels();
    Random random(3);
    const std::vector<float> x = random.Normal(100 * channels);
    Conv whole(backend(), dims, 1);
    const std::vector<float> expected = whole.Run({x});
    for (const int64_t piece : {1, 2, 3, 7, 16, 40, 64, 99}) {
      Conv split(*others[piece % others.size()], dims, 1);
      std::vector<float> actual;
      for (int64_t begin = 0; begin < 100; begin += piece) {
        const int64_t end = std::min<int64_t>(100, begin + piece);
        Append(split.Run({{x.begin() + begin * channels, x.begin() + end * channels}}), actual);
      }
      EXPECT_TRUE(BitEqual(actual, expected)) << "width " << width << " in pieces of " << piece;
      EXPECT_TRUE(BitEqual(whole.Columns(100), split.Columns(100)));
    }
  }
}

// A state imported at token count 0 brings columns of tokens before its first.
TEST_P(CausalConv1d, ReadsImportedColumnsAtAnyTokenCount) {
  const LayerDims dims = Dims(4);
  const int64_t channels = dims.conv_channels();
  Random random(4);
  const std::vector<float> x = random.Normal(8 * channels);
  const std::vector<float> expected = Conv(backend(), dims, 1).Run({x});
  for (const int64_t token_count : {0, 1, 2, 3, 5, 6, 1000003}) {
    SlotImage image;
    image.base.resize(dims.state_elements());
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t t = 0; t < 3; ++t) image.conv.push_back(x[t * channels + c]);
    }
    Conv imported(backend(), dims, 1);
    ASSERT_TRUE(WriteHostSlot(imported.pool().view(), 0, token_count, image).ok());
    imported.counts() = {token_count};
    const std::vector<float> y = imported.Run({{x.begin() + 3 * channels, x.end()}});
    EXPECT_TRUE(BitEqual(y, absl::MakeSpan(expected).subspan(3 * channels))) << token_count;
  }
}

// The ring keeps max_draft columns more than the filter needs, so a count that steps back over drafts finds its inputs.
TEST_P(CausalConv1d, DroppedDraftsLeaveTheColumnsBeforeThem) {
  const LayerDims dims = Dims(4);
  const int64_t channels = dims.conv_channels();
  Random random(5);
  const std::vector<float> prompt = random.Normal(10 * channels);
  Conv with_drafts(backend(), dims, 1), without(backend(), dims, 1);
  with_drafts.Run({prompt});
  without.Run({prompt});
  with_drafts.Run({random.Normal(kMaxDraft * channels)});
  EXPECT_TRUE(BitEqual(with_drafts.Columns(10), without.Columns(10)));
}

TEST_P(CausalConv1d, PaddingGivesZerosAndTouchesNoStateBesideLargeCounts) {
  const LayerDims dims = Dims(4);
  const int64_t channels = dims.conv_channels();
  Conv actual(backend(), dims, 3), expected(backend(), dims, 3);
  Random random(6);
  const std::vector<float> before = random.Normal(static_cast<int64_t>(actual.pool().slot(0).size()));
  for (Conv* conv : {&actual, &expected}) {
    for (int32_t slot = 0; slot < 3; ++slot) std::copy(before.begin(), before.end(), conv->pool().slot(slot).begin());
    conv->counts() = {int64_t{1} << 40, -5, 5};  // a padding sequence's count means nothing
  }
  std::vector<float> x = random.Normal(6 * channels);
  std::fill_n(x.begin() + 2 * channels, channels, NAN);
  const std::vector<int32_t> cu_seqlens = {0, 2, 3, 6}, slots = {1, -1, 0};
  const std::vector<float> y = actual.Run(cu_seqlens, slots, x, /*reference=*/false);
  EXPECT_LE(RelativeNormError(y, expected.Run(cu_seqlens, slots, x, /*reference=*/true)), kTolerance);
  EXPECT_THAT(absl::MakeSpan(y).subspan(2 * channels, channels), testing::Each(0.0f));
  for (int32_t slot = 0; slot < 3; ++slot) EXPECT_TRUE(BitEqual(actual.pool().slot(slot), expected.pool().slot(slot)));
  EXPECT_TRUE(BitEqual(actual.pool().slot(2), before));
}

TEST_P(CausalConv1d, SiluIsFiniteForTheLargestInputs) {
  const LayerDims dims = Dims(2);
  Conv conv(backend(), dims, 1);
  const int64_t channels = dims.conv_channels();
  std::fill(conv.weight().begin(), conv.weight().end(), 0.0f);
  for (int64_t c = 0; c < channels; ++c) conv.weight()[c * 2 + 1] = 1.0f;
  std::vector<float> x(channels);
  const float extremes[] = {3e38f, -3e38f, 89.0f, -89.0f, 104.0f, -104.0f, 0.0f, -1e-30f};
  for (int64_t c = 0; c < channels; ++c) x[c] = extremes[c % 8];
  const std::vector<float> y = conv.Run({x});
  for (int64_t c = 0; c < channels; ++c) EXPECT_NEAR(y[c], Silu(x[c]), std::abs(Silu(x[c])) * 1e-6 + 1e-37) << x[c];
}

TEST(CausalConv1dParams, BadOnesAreRefusedByName) {
  const LayerDims dims = Dims(4);
  HostStatePool pool(dims, 1, kMaxDraft), bare(OperatorDims(1, 1, 4, 4), 1);
  float data[256] = {};
  const int32_t cu_seqlens[] = {0, 1};
  const int32_t slot = 0;
  const int64_t count = 0, negative = -1;
  ExpectRefused<CausalConv1dParams>(ValidateCausalConv1d,
                                    {.pool = pool.view(),
                                     .batch = {.sequences = 1, .cu_seqlens = cu_seqlens, .slots = &slot},
                                     .token_counts = &count,
                                     .x = data,
                                     .weight = data,
                                     .y = data},
                                    {{"weight is null", [](auto& p) { p.weight = nullptr; }},
                                     {"token_counts[0] is -1", [&](auto& p) { p.token_counts = &negative; }},
                                     {"conv_width is 0", [&](auto& p) { p.pool = bare.view(); }}});
}

}  // namespace
}  // namespace gdn::causal_conv1d_test
