#include "kernels/mixer_input/mixer_input.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::mixer_input_test {
namespace {

constexpr int32_t kSlots = 6;
constexpr int32_t kMaxDraft = 3;

struct Sequences {
  std::vector<int32_t> lengths, slots;
  std::vector<int64_t> counts;
};

// The outputs of a mixer input, and the slots after it.
struct Result {
  std::vector<float> v, z, q, k, g, beta;
  std::vector<std::vector<float>> slots;
};

void ExpectSameBits(const Result& actual, const Result& expected, const std::string& what) {
  SCOPED_TRACE(what);
  for (const auto part : {&Result::v, &Result::z, &Result::q, &Result::k, &Result::g, &Result::beta}) {
    EXPECT_TRUE(BitEqual(actual.*part, expected.*part));
  }
  for (size_t i = 0; i < expected.slots.size(); ++i) {
    EXPECT_TRUE(BitEqual(actual.slots[i], expected.slots[i])) << "slot " << i;
  }
}

enum class Way { kFused, kFusedFromSplit, kSeparate };

// The inputs and weights of one call; Run starts from the same slots each time.
class Mixer {
 public:
  Mixer(const LayerDims& dims, ProjectionLayout layout, const Sequences& sequences)
      : dims_(dims),
        layout_(layout),
        sequences_(sequences),
        cu_seqlens_(CumulativeLengths(sequences.lengths)),
        random_(dims.key_dim + dims.conv_width) {
    qkvz_ = random_.Normal(tokens() * (dims.conv_channels() + dims.value_features()));
    ba_ = random_.Normal(tokens() * 2 * dims.value_heads);
    weight_ = random_.Normal(dims.conv_channels() * dims.conv_width);
    a_log_ = random_.Normal(dims.value_heads);
    dt_bias_ = random_.Normal(dims.value_heads);
    slot_ = random_.Normal(static_cast<int64_t>(HostStatePool(dims, 1, kMaxDraft).slot(0).size()));
  }

  // The separate operators' `convolved` holds the raw q and k beside v, which the fused form may leave out.
  Result Run(Way way, Backend& backend) {
    const int64_t values = tokens() * dims_.value_features(), gates = tokens() * dims_.value_heads;
    HostStatePool pool(dims_, kSlots, kMaxDraft);
    for (int32_t i = 0; i < kSlots; ++i) std::copy(slot_.begin(), slot_.end(), pool.slot(i).begin());
    std::vector<float> mixed(tokens() * dims_.conv_channels()), b(gates), a(gates), convolved(mixed.size(), -7.0f);
    std::vector<float> scratch(mixed.size() + 2 * gates);
    Result r{.v = {},
             .z = std::vector<float>(values),
             .q = std::vector<float>(tokens() * dims_.key_features(), -7.0f),
             .k = std::vector<float>(tokens() * dims_.key_features(), -7.0f),
             .g = std::vector<float>(gates),
             .beta = std::vector<float>(gates),
             .slots = {}};
    MixerInputParams params = Params(pool.view(), convolved, r);
    params.split_scratch = scratch.data();
    if (way != Way::kFused) {
      EXPECT_EQ(backend.QkvzSplit({.layout = layout_,
                                   .dims = dims_,
                                   .rows = tokens(),
                                   .qkvz = qkvz_.data(),
                                   .ba = ba_.data(),
                                   .mixed_qkv = mixed.data(),
                                   .z = r.z.data(),
                                   .b = b.data(),
                                   .a = a.data()}),
                absl::OkStatus());
      params.qkvz = params.ba = nullptr;
      params.mixed_qkv = mixed.data();
      params.b = b.data();
      params.a = a.data();
    }
    if (way == Way::kSeparate) {
      RunSeparate(params, backend);
    } else {
      EXPECT_EQ(backend.MixerInput(params), absl::OkStatus());
    }
    for (int64_t t = 0; t < tokens(); ++t) {
      const auto row = convolved.begin() + t * dims_.conv_channels();
      r.v.insert(r.v.end(), row + 2 * dims_.key_features(), row + dims_.conv_channels());
    }
    for (int32_t i = 0; i < kSlots; ++i) r.slots.emplace_back(pool.slot(i).begin(), pool.slot(i).end());
    return r;
  }

  MixerInputParams Params(const StatePoolView& pool, std::vector<float>& convolved, Result& r) const {
    return {.pool = pool,
            .batch = {.sequences = static_cast<int32_t>(sequences_.slots.size()),
                      .cu_seqlens = cu_seqlens_.data(),
                      .slots = sequences_.slots.data()},
            .token_counts = sequences_.counts.data(),
            .layout = layout_,
            .qkvz = qkvz_.data(),
            .ba = ba_.data(),
            .conv_weight = weight_.data(),
            .beta_scale = layout_ == ProjectionLayout::kFlat ? 2.0f : 1.0f,
            .a_log = a_log_.data(),
            .dt_bias = dt_bias_.data(),
            .scale = 0.3f,
            .convolved = convolved.data(),
            .z = r.z.data(),
            .q = r.q.data(),
            .k = r.k.data(),
            .g = r.g.data(),
            .beta = r.beta.data()};
  }

 private:
  int64_t tokens() const { return cu_seqlens_.back(); }

  void RunSeparate(const MixerInputParams& params, Backend& backend) {
    EXPECT_EQ(backend.CausalConv1d({.pool = params.pool,
                                    .batch = params.batch,
                                    .token_counts = params.token_counts,
                                    .x = params.mixed_qkv,
                                    .weight = params.conv_weight,
                                    .y = params.convolved}),
              absl::OkStatus());
    EXPECT_EQ(backend.QkL2Norm({.key_heads = dims_.key_heads,
                                .key_dim = dims_.key_dim,
                                .rows = tokens(),
                                .scale = params.scale,
                                .q = params.convolved,
                                .k = params.convolved + dims_.key_features(),
                                .in_stride = dims_.conv_channels(),
                                .q_out = params.q,
                                .k_out = params.k}),
              absl::OkStatus());
    EXPECT_EQ(backend.Gating({.beta_scale = params.beta_scale,
                              .value_heads = dims_.value_heads,
                              .rows = tokens(),
                              .a = params.a,
                              .b = params.b,
                              .a_log = params.a_log,
                              .dt_bias = params.dt_bias,
                              .g = params.g,
                              .beta = params.beta}),
              absl::OkStatus());
  }

  LayerDims dims_;
  ProjectionLayout layout_;
  Sequences sequences_;
  std::vector<int32_t> cu_seqlens_;
  Random random_;
  std::vector<float> qkvz_, ba_, weight_, a_log_, dt_bias_, slot_;
};

class MixerInput : public BackendTest {};
GDN_ON_EVERY_BACKEND(MixerInput);

TEST_P(MixerInput, GivesTheBitsOfTheSeparateOperators) {
  const Sequences decode{{1, 3, 1, 2}, {4, 0, -1, 2}, {7, 0, 0, 100}};
  const Sequences prefill{{37, 0, 16, 5, 1}, {1, 3, 0, -1, 5}, {0, 9, 2, 0, 1000}};
  const std::vector<LayerDims> shapes = {
      {2, 4, 8, 12, 4, 16},    // vectors, heads in registers
      {1, 3, 128, 32, 4, 16},  // lanes full
      {2, 2, 136, 8, 4, 16},   // heads through memory
      {1, 2, 33, 7, 4, 16},    // odd sizes
      {5, 5, 24, 20, 3, 16},   // another width
      {1, 2, 12, 8, 20, 16},   // wider than a tile of tokens
  };
  for (const LayerDims& dims : shapes) {
    for (const ProjectionLayout layout : {ProjectionLayout::kInterleaved, ProjectionLayout::kFlat}) {
      for (const Sequences& sequences : {decode, prefill}) {
        Mixer mixer(dims, layout, sequences);
        const Result expected = mixer.Run(Way::kSeparate, backend());
        ExpectSameBits(mixer.Run(Way::kFused, backend()), expected, LayerDimsToString(dims) + " fused");
        ExpectSameBits(mixer.Run(Way::kFusedFromSplit, backend()), expected, LayerDimsToString(dims) + " from split");
      }
    }
  }
}

// A block may take several sequences; then its window starts anew for each.
TEST_P(MixerInput, BitsDoNotDependOnParallelism) {
  const Sequences ragged{{1, 1, 35, 1, 2}, {4, 0, 3, 1, 2}, {7, 0, 5, 3, 1}};
  const Sequences many{{1, 2, 1, 0, 17, 1}, {4, 0, 3, 1, 2, 5}, {7, 0, 5, 3, 1, 6}};
  for (const Sequences& sequences : {ragged, many}) {
    for (const LayerDims& dims : {LayerDims{3, 6, 20, 12, 4, 16}, LayerDims{1, 1, 8, 8, 4, 16}}) {
      Mixer mixer(dims, ProjectionLayout::kInterleaved, sequences);
      const Result expected = mixer.Run(Way::kSeparate, backend());
      for (const auto& other : OthersOfTheSameBits()) ExpectSameBits(mixer.Run(Way::kFused, *other), expected, "other");
    }
  }
}

TEST_P(MixerInput, RefusesMissingInputs) {
  const LayerDims dims{2, 4, 8, 12, 4, 16};
  const Mixer mixer(dims, ProjectionLayout::kFlat, {{2}, {0}, {0}});
  HostStatePool pool(dims, 1, kMaxDraft);
  std::vector<float> convolved(1000), scratch(1000);
  Result r;
  r.z = r.q = r.k = r.g = r.beta = convolved;
  MixerInputParams good = mixer.Params(pool.view(), convolved, r);
  good.split_scratch = scratch.data();
  ExpectRefused<MixerInputParams>([&](const auto& params) { return backend().MixerInput(params); }, good,
                                  {{"ba is null", [](auto& p) { p.ba = nullptr; }},
                                   {"qkvz is null", [](auto& p) { p.qkvz = nullptr; }},
                                   {"z is null", [](auto& p) { p.z = nullptr; }},
                                   {"mixed_qkv is null", [](auto& p) { p.qkvz = p.ba = nullptr; }},
                                   {"conv_weight is null", [](auto& p) { p.conv_weight = nullptr; }},
                                   {"beta is null", [](auto& p) { p.beta = nullptr; }},
                                   {"scale is inf", [](auto& p) { p.scale = INFINITY; }},
                                   {"token_counts is null", [](auto& p) { p.token_counts = nullptr; }},
                                   {"pool.data is null", [](auto& p) { p.pool.data = nullptr; }}});
}

TEST(MixerInputParams, ProjectionsSideBySideAreRefusedWhereDecaysGoByChannel) {
  LayerDims dims{2, 4, 8, 12, 4, 16};
  dims.decay = DecayKind::kPerChannel;
  HostStatePool pool(dims, 1, kMaxDraft);
  float data[2000] = {};
  const int32_t offsets[] = {0, 2};
  const int32_t slot = 0;
  const int64_t count = 0;
  const MixerInputParams split{.pool = pool.view(),
                               .batch = {.sequences = 1, .cu_seqlens = offsets, .slots = &slot},
                               .token_counts = &count,
                               .mixed_qkv = data,
                               .b = data,
                               .a = data,
                               .conv_weight = data,
                               .a_log = data,
                               .dt_bias = data,
                               .convolved = data,
                               .z = data,
                               .q = data,
                               .k = data,
                               .g = data,
                               .beta = data};
  ExpectRefused<MixerInputParams>(ValidateMixerInput, split,
                                  {{"expected mixed_qkv, b and a", [](auto& p) { p.qkvz = p.ba = p.mixed_qkv; }},
                                   {"a is null", [](auto& p) { p.a = nullptr; }}});
}

}  // namespace
}  // namespace gdn::mixer_input_test
