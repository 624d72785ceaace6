#include "base/layer_dims.h"

#include <limits>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::layer_dims_test {
namespace {

using ::testing::HasSubstr;

constexpr LayerDims kModel{
    .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 64, .conv_width = 4, .hidden_size = 2048};

TEST(LayerDims, DerivesItsSizes) {
  EXPECT_EQ(kModel.group(), 2);
  EXPECT_EQ(kModel.key_features(), 2048);
  EXPECT_EQ(kModel.value_features(), 2048);
  EXPECT_EQ(kModel.conv_channels(), 6144);
  EXPECT_EQ(kModel.state_elements(), 32 * 128 * 64);
  EXPECT_EQ(LayerDimsToString(kModel), "H=16 HV=32 K=128 V=64 W=4 D=2048");
  EXPECT_EQ(kModel.decay_features(), 32);
  LayerDims by_channel = kModel;
  by_channel.decay = DecayKind::kPerChannel;
  EXPECT_EQ(by_channel.decay_dim(), 128);
  EXPECT_EQ(by_channel.decay_features(), 32 * 128);
  EXPECT_EQ(LayerDimsToString(by_channel), "H=16 HV=32 K=128 V=64 W=4 D=2048 decay=per-channel");
  EXPECT_NE(by_channel, kModel);
}

TEST(LayerDims, AcceptsModelsAndBareOperators) {
  EXPECT_TRUE(ValidateLayerDims(kModel).ok());
  LayerDims bare = kModel;
  bare.conv_width = 0;
  bare.hidden_size = 0;
  EXPECT_TRUE(ValidateLayerDims(bare).ok());
  EXPECT_FALSE(bare.has_layer());
  const LayerDims largest{.key_heads = kMaxHeads,
                          .value_heads = kMaxHeads,
                          .key_dim = kMaxHeadDim,
                          .value_dim = kMaxHeadDim,
                          .conv_width = kMaxConvWidth,
                          .hidden_size = kMaxHiddenSize};
  EXPECT_TRUE(ValidateLayerDims(largest).ok());
  EXPECT_EQ(largest.state_elements(), int64_t{1} << 30);
}

TEST(LayerDims, RefusesEachFieldOutOfRangeByName) {
  struct Case {
    std::string field;
    int32_t LayerDims::*member;
    int32_t value;
  };
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  const Case cases[] = {
      {"key_heads", &LayerDims::key_heads, 0},
      {"key_heads", &LayerDims::key_heads, kMin},
      {"key_heads", &LayerDims::key_heads, 1025},
      {"value_heads", &LayerDims::value_heads, 0},
      {"value_heads", &LayerDims::value_heads, 33},
      {"value_heads", &LayerDims::value_heads, 8},
      {"value_heads", &LayerDims::value_heads, 1040},
      {"key_dim", &LayerDims::key_dim, 0},
      {"key_dim", &LayerDims::key_dim, 1025},
      {"value_dim", &LayerDims::value_dim, -1},
      {"value_dim", &LayerDims::value_dim, 1025},
      {"conv_width", &LayerDims::conv_width, 1},
      {"conv_width", &LayerDims::conv_width, 0},
      {"conv_width", &LayerDims::conv_width, 65},
      {"hidden_size", &LayerDims::hidden_size, 0},
      {"hidden_size", &LayerDims::hidden_size, -5},
      {"hidden_size", &LayerDims::hidden_size, (1 << 20) + 1},
  };
  for (const Case& c : cases) {
    LayerDims dims = kModel;
    dims.*c.member = c.value;
    const absl::Status status = ValidateLayerDims(dims);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field << " " << c.value;
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec);
    EXPECT_EQ(ErrorMetadata(status)["field"], c.field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(c.value)));
  }
}

TEST(LayerDims, InputKindsHaveNames) {
  EXPECT_EQ(InputKindName(InputKind::kNone), "none");
  EXPECT_EQ(InputKindName(InputKind::kHiddenStates), "hidden_states");
  EXPECT_EQ(InputKindName(InputKind::kProjected), "projected");
  EXPECT_EQ(InputKindName(InputKind::kDeltaRule), "delta_rule");
}

}  // namespace
}  // namespace gdn::layer_dims_test
