#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/gating/gating.h"
#include "kernels/mixer_input/mixer_input.h"
#include "kernels/qk_l2norm/qk_l2norm.h"
#include "tests/kernels/gpu/gpu_layer_data.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr int32_t kSlots = 6;
constexpr int32_t kMaxDraft = 3;

// What a mixer input leaves behind.
struct Result {
  std::vector<float> v, z, q, k, g, beta;
  std::vector<std::vector<float>> slots;
};

void ExpectSameBits(const Result& actual, const Result& expected, const std::string& what) {
  EXPECT_TRUE(BitEqual(actual.v, expected.v)) << what;
  EXPECT_TRUE(BitEqual(actual.z, expected.z)) << what;
  EXPECT_TRUE(BitEqual(actual.q, expected.q)) << what;
  EXPECT_TRUE(BitEqual(actual.k, expected.k)) << what;
  EXPECT_TRUE(BitEqual(actual.g, expected.g)) << what;
  EXPECT_TRUE(BitEqual(actual.beta, expected.beta)) << what;
  for (size_t i = 0; i < expected.slots.size(); ++i) {
    EXPECT_TRUE(BitEqual(actual.slots[i], expected.slots[i])) << what << ", slot " << i;
  }
}

enum class Way { kFused, kFusedFromSplit, kSeparate };

// The inputs and weights of one call; Run starts from the same slots each time.
class Mixer {
 public:
  Mixer(const LayerDims& dims, ProjectionLayout layout, const Sequences& sequences)
      : dims_(dims), layout_(layout), sequences_(sequences), random_(dims.key_dim + dims.conv_width) {
    const int64_t tokens = sequences.tokens();
    qkvz_ = random_.Normal(tokens * (dims.conv_channels() + dims.value_features()));
    ba_ = random_.Normal(tokens * 2 * dims.value_heads);
    weight_ = random_.Normal(dims.conv_channels() * dims.conv_width);
    a_log_ = random_.Normal(dims.value_heads);
    dt_bias_ = random_.Normal(dims.value_heads);
    slot_ = random_.Normal(HostStatePool(dims, 1, kMaxDraft).slot(0).size());
  }

  Result Run(Way way, const gpu::Stream& stream) {
    const int64_t tokens = sequences_.tokens();
    const int64_t values = tokens * dims_.value_features(), gates = tokens * dims_.value_heads;
    HostStatePool pool(dims_, kSlots, kMaxDraft);
    for (int32_t i = 0; i < kSlots; ++i) std::copy(slot_.begin(), slot_.end(), pool.slot(i).begin());
    std::vector<float> mixed(tokens * dims_.conv_channels()), b(gates), a(gates), convolved(mixed.size(), -7.0f);
    Result r{.v = {},
             .z = std::vector<float>(values),
             .q = std::vector<float>(tokens * dims_.key_features(), -7.0f),
             .k = std::vector<float>(tokens * dims_.key_features(), -7.0f),
             .g = std::vector<float>(gates),
             .beta = std::vector<float>(gates),
             .slots = {}};
    if (way != Way::kFused) {
      Expect(QkvzSplitGpu({.layout = layout_,
                           .dims = dims_,
                           .rows = tokens,
                           .qkvz = qkvz_.data(),
                           .ba = ba_.data(),
                           .mixed_qkv = mixed.data(),
                           .z = r.z.data(),
                           .b = b.data(),
                           .a = a.data()},
                          stream));
    }
    if (way == Way::kSeparate) {
      RunSeparate(pool, mixed, b, a, convolved, r, stream);
    } else {
      MixerInputParams params = Params(pool.view(), convolved, r);
      if (way == Way::kFused) {
        params.qkvz = qkvz_.data();
        params.ba = ba_.data();
      } else {
        params.mixed_qkv = mixed.data();
        params.b = b.data();
        params.a = a.data();
      }
      Expect(MixerInputGpu(params, sequences_.device(), stream));
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const auto row = convolved.begin() + t * dims_.conv_channels();
      r.v.insert(r.v.end(), row + 2 * dims_.key_features(), row + dims_.conv_channels());
    }
    for (int32_t i = 0; i < kSlots; ++i) r.slots.emplace_back(pool.slot(i).begin(), pool.slot(i).end());
    return r;
  }

  MixerInputParams Params(const StatePoolView& pool, std::vector<float>& convolved, Result& r) const {
    MixerInputParams params;
    params.pool = pool;
    params.batch = sequences_.batch();
    params.token_counts = sequences_.counts();
    params.layout = layout_;
    params.conv_weight = weight_.data();
    params.a_log = a_log_.data();
    params.dt_bias = dt_bias_.data();
    params.scale = kScale;
    params.convolved = convolved.data();
    params.z = r.z.data();
    params.q = r.q.data();
    params.k = r.k.data();
    params.g = r.g.data();
    params.beta = r.beta.data();
    return params;
  }

 private:
  static constexpr float kScale = 0.3f;

  static void Expect(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

  void RunSeparate(HostStatePool& pool, const std::vector<float>& mixed, const std::vector<float>& b,
                   const std::vector<float>& a, std::vector<float>& convolved, Result& r, const gpu::Stream& stream) {
    Expect(CausalConv1dGpu({.pool = pool.view(),
                            .batch = sequences_.batch(),
                            .token_counts = sequences_.counts(),
                            .x = mixed.data(),
                            .weight = weight_.data(),
                            .y = convolved.data()},
                           sequences_.device(), stream));
    Expect(QkL2NormGpu({.key_heads = dims_.key_heads,
                        .key_dim = dims_.key_dim,
                        .rows = sequences_.tokens(),
                        .scale = kScale,
                        .q = convolved.data(),
                        .k = convolved.data() + dims_.key_features(),
                        .in_stride = dims_.conv_channels(),
                        .q_out = r.q.data(),
                        .k_out = r.k.data()},
                       stream));
    Expect(GatingGpu({.value_heads = dims_.value_heads,
                      .rows = sequences_.tokens(),
                      .a = a.data(),
                      .b = b.data(),
                      .a_log = a_log_.data(),
                      .dt_bias = dt_bias_.data(),
                      .g = r.g.data(),
                      .beta = r.beta.data()},
                     stream));
  }

  LayerDims dims_;
  ProjectionLayout layout_;
  Sequences sequences_;
  Random random_;
  std::vector<float> qkvz_, ba_, weight_, a_log_, dt_bias_, slot_;
};

class MixerInputGpuTest : public testing::TestWithParam<int> {
 protected:
  gpu::Stream stream() const { return HostExecutor(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Waves, MixerInputGpuTest, testing::Values(64, 32),
                         [](const auto& param_info) { return "Wave" + std::to_string(param_info.param); });

TEST_P(MixerInputGpuTest, GivesTheBitsOfTheSeparateOperators) {
  const Sequences decode({1, 3, 1, 2}, {4, 0, -1, 2}, {7, 0, 0, 100});
  const Sequences prefill({37, 0, 16, 5, 1}, {1, 3, 0, -1, 5}, {0, 9, 2, 0, 1000});
  const std::vector<LayerDims> shapes = {
      {2, 4, 8, 12, 4, 16},    // vectors, heads in registers
      {1, 3, 128, 32, 4, 16},  // lanes full
      {2, 2, 136, 8, 4, 16},   // heads through memory
      {1, 2, 33, 7, 4, 16},    // odd sizes
      {5, 5, 24, 20, 3, 16},   // another width
      {1, 2, 12, 8, 20, 16},   // wider than a tile of tokens
  };
  for (const LayerDims& dims : shapes) {
    for (ProjectionLayout layout : {ProjectionLayout::kInterleaved, ProjectionLayout::kFlat}) {
      for (const Sequences* sequences : {&decode, &prefill}) {
        Mixer mixer(dims, layout, *sequences);
        const Result expected = mixer.Run(Way::kSeparate, stream());
        ExpectSameBits(mixer.Run(Way::kFused, stream()), expected, LayerDimsToString(dims) + " fused");
        ExpectSameBits(mixer.Run(Way::kFusedFromSplit, stream()), expected, LayerDimsToString(dims) + " from split");
      }
    }
  }
}

TEST_P(MixerInputGpuTest, BitsDependOnNeitherTheWaveNorTheGrid) {
  const LayerDims dims{3, 6, 20, 12, 4, 16};
  const Sequences sequences({1, 1, 35, 1, 2}, {4, 0, 3, 1, 2}, {7, 0, 5, 3, 1});
  Mixer mixer(dims, ProjectionLayout::kInterleaved, sequences);
  gpu::Stream large = HostExecutor(96 - GetParam());
  large.processors = 100;
  ExpectSameBits(mixer.Run(Way::kFused, large), mixer.Run(Way::kFused, stream()), "other wave, more blocks");
}

// Where a block takes several sequences, its window starts anew for each.
TEST_P(MixerInputGpuTest, ManySequencesShareABlock) {
  const LayerDims dims{1, 1, 8, 8, 4, 16};
  const Sequences sequences({1, 2, 1, 0, 17, 1}, {4, 0, 3, 1, 2, 5}, {7, 0, 5, 3, 1, 6});
  Mixer mixer(dims, ProjectionLayout::kFlat, sequences);
  gpu::Stream small = stream(), large = stream();
  small.processors = 1;  // a grid of two sequences
  large.processors = 1000;
  const Result expected = mixer.Run(Way::kSeparate, large);
  ExpectSameBits(mixer.Run(Way::kFused, small), expected, "fused");
}

TEST(MixerInput, RefusesMissingInputs) {
  const LayerDims dims{2, 4, 8, 12, 4, 16};
  const Sequences sequences({2}, {0}, {0});
  const Mixer mixer(dims, ProjectionLayout::kFlat, sequences);
  HostStatePool pool(dims, 1, kMaxDraft);
  const std::vector<float> input(1000);
  std::vector<float> convolved(1000);
  Result r;
  r.z = r.q = r.k = r.g = r.beta = convolved;
  const auto refusal = [&](auto change) {
    MixerInputParams params = mixer.Params(pool.view(), convolved, r);
    params.qkvz = params.ba = input.data();
    change(params);
    const absl::Status status = MixerInputGpu(params, sequences.device(), HostExecutor(64));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& p) { p.ba = nullptr; }), testing::HasSubstr("ba is null"));
  EXPECT_THAT(refusal([](auto& p) { p.qkvz = nullptr; }), testing::HasSubstr("qkvz is null"));
  EXPECT_THAT(refusal([](auto& p) { p.z = nullptr; }), testing::HasSubstr("z is null"));
  EXPECT_THAT(refusal([](auto& p) { p.qkvz = p.ba = nullptr; }), testing::HasSubstr("mixed_qkv is null"));
  EXPECT_THAT(refusal([](auto& p) { p.conv_weight = nullptr; }), testing::HasSubstr("conv_weight is null"));
  EXPECT_THAT(refusal([](auto& p) { p.beta = nullptr; }), testing::HasSubstr("beta is null"));
  EXPECT_THAT(refusal([](auto& p) { p.scale = INFINITY; }), testing::HasSubstr("scale is inf"));
  EXPECT_THAT(refusal([](auto& p) { p.token_counts = nullptr; }), testing::HasSubstr("token_counts is null"));
  EXPECT_THAT(refusal([](auto& p) { p.pool.data = nullptr; }), testing::HasSubstr("pool.data is null"));
}

}  // namespace
}  // namespace gdn
