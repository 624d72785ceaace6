#include "base/layer_spec.h"

#include <cmath>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::layer_spec_test {
namespace {

using ::testing::HasSubstr;

LayerSpec Plain() {
  return {
      .dims = {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .conv_width = 4, .hidden_size = 48}};
}

TEST(LayerSpec, TheServedFormKeepsWhatKernelsCompute) {
  LayerSpec spec = Plain();
  EXPECT_EQ(ServedForm(spec), spec);
  spec.beta_scale = 2.0f;
  spec.norm_epsilon = 1e-5f;
  spec.output_gate = GateActivation::kSigmoid;
  spec.projections = ProjectionLayout::kInterleaved;
  spec.a_log = ALogConvention::kNegativeExp;
  EXPECT_EQ(ServedForm(spec), spec);
}

TEST(LayerSpec, TheServedFormHasWhatTheLoaderBringsAbout) {
  LayerSpec stored = Plain();
  stored.projections = ProjectionLayout::kSeparate;
  stored.convolutions = ConvLayout::kSeparate;
  stored.norm_weight = NormWeight::kOnePlus;
  stored.output_gate_scale = 2.0f;
  stored.value_heads = ValueHeadOrder::kTiled;
  EXPECT_EQ(ServedForm(stored), Plain());
  stored.projections = ProjectionLayout::kFlatGroupedBa;
  EXPECT_EQ(ServedForm(stored), Plain());
}

TEST(LayerSpec, BadFieldsAreRefusedByName) {
  struct Case {
    std::string message;
    void (*break_it)(LayerSpec&);
  };
  const Case cases[] = {
      {"key_heads is 0", [](LayerSpec& s) { s.dims.key_heads = 0; }},
      {"beta_scale is 0; expected 1 or 2", [](LayerSpec& s) { s.beta_scale = 0.0f; }},
      {"beta_scale is 1.5", [](LayerSpec& s) { s.beta_scale = 1.5f; }},
      {"norm_epsilon is 0", [](LayerSpec& s) { s.norm_epsilon = 0.0f; }},
      {"norm_epsilon is 1", [](LayerSpec& s) { s.norm_epsilon = 1.0f; }},
      {"norm_epsilon is nan", [](LayerSpec& s) { s.norm_epsilon = NAN; }},
      {"output_gate_scale is -2", [](LayerSpec& s) { s.output_gate_scale = -2.0f; }},
      {"value_heads is tiled",
       [](LayerSpec& s) {
         s.projections = ProjectionLayout::kInterleaved;
         s.value_heads = ValueHeadOrder::kTiled;
       }},
      {"output_gate_scale is inf", [](LayerSpec& s) { s.output_gate_scale = INFINITY; }},
      {"decay_lower_bound is -5; expected 0 with a softplus gate", [](LayerSpec& s) { s.decay_lower_bound = -5.0f; }},
      {"decay_lower_bound is 0; expected a number below 0",
       [](LayerSpec& s) { s.decay_gate = DecayGate::kBoundedSigmoid; }},
      {"decay_rank is 8; expected 0 where a head has one decay", [](LayerSpec& s) { s.decay_rank = 8; }},
      {"output_gate_rank is 8", [](LayerSpec& s) { s.output_gate_rank = 8; }},
      {"decay_rank is -1",
       [](LayerSpec& s) {
         s.dims.decay = DecayKind::kPerChannel;
         s.decay_rank = -1;
       }},
      {"projections go by key head",
       [](LayerSpec& s) {
         s.dims.decay = DecayKind::kPerChannel;
         s.projections = ProjectionLayout::kInterleaved;
       }},
  };
  EXPECT_EQ(ValidateLayerSpec(Plain()), absl::OkStatus());
  for (const Case& c : cases) {
    LayerSpec spec = Plain();
    c.break_it(spec);
    const absl::Status status = ValidateLayerSpec(spec);
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace gdn::layer_spec_test
