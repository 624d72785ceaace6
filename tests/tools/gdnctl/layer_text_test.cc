#include "tools/gdnctl/layer_text.h"

#include "gtest/gtest.h"

namespace gdn::layer_text_test {
namespace {

std::string Part(const LayerSpec& spec, std::string_view part) {
  for (const LayerSpecLine& line : DescribeLayerSpec(spec)) {
    if (line.part == part) return line.text;
  }
  ADD_FAILURE() << "no line " << part;
  return "";
}

TEST(LayerText, DescribesPartByPart) {
  LayerSpec spec = {
      .dims = {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .conv_width = 4, .hidden_size = 48}};
  EXPECT_EQ(Part(spec, "dims"), "H=2 HV=4 K=16 V=24 W=4 D=48");
  EXPECT_EQ(Part(spec, "beta"), "sigmoid(b), in (0, 1)");
  EXPECT_EQ(Part(spec, "norm"), "w o / sqrt(mean o^2 + 1e-06)");
  EXPECT_EQ(Part(spec, "output gate"), "silu(z)");
  const std::vector<LayerSpecLine> plain = DescribeLayerSpec(spec);
  spec.beta_scale = 2.0f;
  spec.norm_epsilon = 1e-5f;
  spec.norm_weight = NormWeight::kOnePlus;
  spec.output_gate = GateActivation::kSigmoid;
  spec.output_gate_scale = 2.0f;
  spec.projections = ProjectionLayout::kSeparate;
  spec.convolutions = ConvLayout::kSeparate;
  spec.a_log = ALogConvention::kNegativeExp;
  spec.value_heads = ValueHeadOrder::kTiled;
  EXPECT_EQ(Part(spec, "beta"), "2 sigmoid(b), in (0, 2)");
  EXPECT_EQ(Part(spec, "norm"), "(1 + w) o / sqrt(mean o^2 + 1e-05)");
  EXPECT_EQ(Part(spec, "output gate"), "2 sigmoid(z)");
  // Every part says that it is another.
  const std::vector<LayerSpecLine> other = DescribeLayerSpec(spec);
  for (size_t i = 1; i < plain.size(); ++i) EXPECT_NE(plain[i].text, other[i].text) << plain[i].part;
}

}  // namespace
}  // namespace gdn::layer_text_test
