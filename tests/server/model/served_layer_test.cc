#include "server/model/served_layer.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn {
namespace {

std::vector<float> Floats(const ServedMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  EXPECT_EQ(matrix.data().size(), values.size() * DTypeSize(matrix.dtype));
  ConvertToFloat(matrix.dtype, matrix.data().data(), values.size(), values.data());
  return values;
}

void ExpectEqual(const ServedLayer& a, const ServedLayer& b) {
  EXPECT_EQ(Floats(a.in_qkv), Floats(b.in_qkv));
  EXPECT_EQ(Floats(a.in_z), Floats(b.in_z));
  EXPECT_EQ(Floats(a.in_b), Floats(b.in_b));
  EXPECT_EQ(Floats(a.in_a), Floats(b.in_a));
  EXPECT_EQ(Floats(a.out), Floats(b.out));
  EXPECT_EQ(a.conv_weight, b.conv_weight);
  EXPECT_EQ(a.a_log, b.a_log);
  EXPECT_EQ(a.dt_bias, b.dt_bias);
  EXPECT_EQ(a.norm_weight, b.norm_weight);
}

// A layer whose tensors a test may change.
class ChangedLayer {
 public:
  ChangedLayer(const Checkpoint& checkpoint, int32_t layer)
      : layer_(checkpoint.layers.at(static_cast<size_t>(layer))) {}

  const LayerTensors& tensors() const { return layer_; }
  void Set(LayerTensor tensor, const std::vector<float>& values, DType dtype = DType::kF32) {
    std::string& data = data_[tensor];
    data.resize(values.size() * DTypeSize(dtype));
    ConvertFromFloat(values.data(), values.size(), dtype, data.data());
    StoredTensor& stored = layer_.tensors.at(tensor);
    stored = PlainTensor({.dtype = dtype, .shape = stored.shape, .data = data});
  }
  std::vector<float> Get(LayerTensor tensor) const {
    const StoredTensor& stored = layer_.tensors.at(tensor);
    std::vector<float> values(static_cast<size_t>(stored.ElementCount()));
    DecodeTensor(stored, values.data());
    return values;
  }

 private:
  LayerTensors layer_;
  std::map<LayerTensor, std::string> data_;
};

// As a converter to GGUF puts them: element e of member j of key head i comes to block j H + i. The value heads are the
// middle one of [outer, HV, inner] from `first` on.
std::vector<float> Tiled(const std::vector<float>& grouped, const LayerDims& dims, int64_t outer, int64_t first,
                         int64_t inner) {
  std::vector<float> tiled = grouped;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < dims.key_heads; ++i) {
      for (int64_t j = 0; j < dims.group(); ++j) {
        for (int64_t e = 0; e < inner; ++e) {
          const int64_t base = first + o * dims.value_heads * inner;
          tiled[static_cast<size_t>(base + (j * dims.key_heads + i) * inner + e)] =
              grouped[static_cast<size_t>(base + (i * dims.group() + j) * inner + e)];
        }
      }
    }
  }
  return tiled;
}

TEST(ServedLayer, TiledValueHeadsAreGrouped) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("qwen3_5_5")));
  LayerSpec spec = checkpoint.config.spec;
  const LayerDims& dims = spec.dims;
  ASSERT_GT(dims.group(), dims.key_heads);  // or a wrong transposition might be the right one
  ASSERT_NE(dims.key_dim, dims.value_dim);
  const ServedLayer grouped = ServeLayer(spec, checkpoint.layers[1]);

  ChangedLayer tiled(checkpoint, 1);
  const int64_t keys = 2 * dims.key_features();
  const auto tile = [&](LayerTensor tensor, int64_t outer, int64_t first, int64_t inner) {
    tiled.Set(tensor, Tiled(tiled.Get(tensor), dims, outer, first, inner));
  };
  tile(LayerTensor::kInQkv, 1, keys * dims.hidden_size, int64_t{dims.value_dim} * dims.hidden_size);
  tile(LayerTensor::kInZ, 1, 0, int64_t{dims.value_dim} * dims.hidden_size);
  tile(LayerTensor::kInB, 1, 0, dims.hidden_size);
  tile(LayerTensor::kInA, 1, 0, dims.hidden_size);
  tile(LayerTensor::kOut, dims.hidden_size, 0, dims.value_dim);
  tile(LayerTensor::kConv, 1, keys * dims.conv_width, int64_t{dims.value_dim} * dims.conv_width);
  tile(LayerTensor::kALog, 1, 0, 1);
  tile(LayerTensor::kDtBias, 1, 0, 1);
  spec.value_heads = ValueHeadOrder::kTiled;
  ExpectEqual(ServeLayer(spec, tiled.tensors()), grouped);
}

TEST(ServedLayer, BAndAThatGoByKeyHeadAreSplit) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("gguf_qwen3next_1/f32.gguf")));
  GDN_ASSERT_OK_AND_ASSIGN(const auto same, OpenCheckpoint(GoldenFolder("qwen3_next_1")));
  ASSERT_EQ(checkpoint.config.spec.projections, ProjectionLayout::kFlatGroupedBa);
  const ServedLayer served = ServeLayer(checkpoint.config.spec, checkpoint.layers[0]);
  const std::vector<float> ba = ChangedLayer(same, 0).Get(LayerTensor::kInBa);
  const int64_t group = checkpoint.config.spec.dims.group();
  for (int64_t head = 0; head < served.in_b.rows; ++head) {
    const int64_t row = head / group * 2 * group + head % group;
    for (int64_t i = 0; i < served.in_b.cols; ++i) {
      const int64_t at = head * served.in_b.cols + i;
      EXPECT_EQ(Floats(served.in_b)[static_cast<size_t>(at)], ba[static_cast<size_t>(row * served.in_b.cols + i)]);
      EXPECT_EQ(Floats(served.in_a)[static_cast<size_t>(at)],
                ba[static_cast<size_t>((row + group) * served.in_b.cols + i)]);
    }
  }
}

TEST(ServedLayer, SeparatePartsAreJoinedInTheOrderQKV) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("olmo_hybrid_1")));
  const ChangedLayer layer(checkpoint, 0);
  const ServedLayer served = ServeLayer(checkpoint.config.spec, layer.tensors());
  std::vector<float> qkv, conv;
  for (const LayerTensor part : {LayerTensor::kInQ, LayerTensor::kInK, LayerTensor::kInV}) {
    const std::vector<float> values = layer.Get(part);
    qkv.insert(qkv.end(), values.begin(), values.end());
  }
  for (const LayerTensor part : {LayerTensor::kConvQ, LayerTensor::kConvK, LayerTensor::kConvV}) {
    const std::vector<float> values = layer.Get(part);
    conv.insert(conv.end(), values.begin(), values.end());
  }
  EXPECT_EQ(Floats(served.in_qkv), qkv);
  EXPECT_EQ(served.conv_weight, conv);
  EXPECT_EQ(served.in_qkv.rows, checkpoint.config.spec.dims.conv_channels());
}

TEST(ServedLayer, LowRankPairsStayTwoMatrices) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto kimi, OpenCheckpoint(GoldenFolder("kimi_linear_1")));
  const ChangedLayer layer(kimi, 1);
  const ServedLayer served = ServeLayer(kimi.config.spec, layer.tensors());
  EXPECT_EQ(Floats(served.in_a), layer.Get(LayerTensor::kInA));
  EXPECT_EQ(Floats(served.a_up), layer.Get(LayerTensor::kAUp));
  EXPECT_EQ(Floats(served.in_z), layer.Get(LayerTensor::kInZ));
  EXPECT_EQ(Floats(served.z_up), layer.Get(LayerTensor::kZUp));
  EXPECT_EQ(served.a_up.rows, 96);
  EXPECT_EQ(served.a_up.cols, 32);
  GDN_ASSERT_OK_AND_ASSIGN(const auto ling, OpenCheckpoint(GoldenFolder("bailing_hybrid_1")));
  const ServedLayer full = ServeLayer(ling.config.spec, ling.layers[1]);
  EXPECT_EQ(full.in_a.rows, 96);
  EXPECT_EQ(full.a_up.rows, 0);
  EXPECT_EQ(full.z_up.rows, 0);
}

TEST(ServedLayer, PartsOfSeveralDtypesAreWidened) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("olmo_hybrid_1")));
  ChangedLayer layer(checkpoint, 0);
  for (const LayerTensor part : {LayerTensor::kInQ, LayerTensor::kInK, LayerTensor::kInV}) {
    layer.Set(part, layer.Get(part), DType::kBF16);
  }
  const ServedLayer narrow = ServeLayer(checkpoint.config.spec, layer.tensors());
  EXPECT_EQ(narrow.in_qkv.dtype, DType::kBF16);
  layer.Set(LayerTensor::kInK, layer.Get(LayerTensor::kInK), DType::kF16);
  const ServedLayer wide = ServeLayer(checkpoint.config.spec, layer.tensors());
  EXPECT_EQ(wide.in_qkv.dtype, DType::kF32);
  EXPECT_EQ(Floats(wide.in_qkv), Floats(narrow.in_qkv));
}

TEST(ServedLayer, WhatMultipliesTheNormGoesIntoItsWeight) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("qwen3_next_1")));
  LayerSpec spec = checkpoint.config.spec;
  ChangedLayer layer(checkpoint, 0);
  std::vector<float> weights(static_cast<size_t>(spec.dims.value_dim), -0.25f);
  weights[0] = -0.0f;
  layer.Set(LayerTensor::kNorm, weights);
  EXPECT_TRUE(std::signbit(ServeLayer(spec, layer.tensors()).norm_weight[0]));  // untouched
  spec.norm_weight = NormWeight::kOnePlus;
  EXPECT_EQ(ServeLayer(spec, layer.tensors()).norm_weight[1], 0.75f);
  spec.output_gate_scale = 2.0f;
  EXPECT_EQ(ServeLayer(spec, layer.tensors()).norm_weight[0], 2.0f);
  EXPECT_EQ(ServeLayer(spec, layer.tensors()).norm_weight[1], 1.5f);
}

TEST(ServedLayer, AMatrixThatNeedsNoChangeStaysInItsFile) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("qwen3_next_1")));
  const ServedLayer served = ServeLayer(checkpoint.config.spec, checkpoint.layers[0]);
  EXPECT_TRUE(served.in_qkv.made.empty());
  EXPECT_EQ(served.in_qkv.data().data(), checkpoint.layers[0].tensors.at(LayerTensor::kInQkvz).data.data());
  EXPECT_EQ(served.in_z.rows, 0);
}

}  // namespace
}  // namespace gdn
