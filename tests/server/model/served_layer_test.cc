#include "server/model/served_layer.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/projection/random_weights.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::served_layer_test {
namespace {

std::vector<float> Floats(const ServedMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  EXPECT_EQ(static_cast<int64_t>(matrix.data().size()), matrix.rows * matrix.row_bytes());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const bool scaled = matrix.format == WeightFormat::kF8E4M3;
    const float* scales =
        scaled ? &matrix.scales[static_cast<size_t>(row / kFp8Block * Fp8Blocks(matrix.cols))] : nullptr;
    DequantizeRow(matrix.format, matrix.data().data() + row * matrix.row_bytes(), scales, matrix.cols,
                  &values[static_cast<size_t>(row * matrix.cols)]);
  }
  return values;
}

ServeLayerOptions Everything() {
  ServeLayerOptions options;
  options.takes = [](WeightFormat) { return true; };
  return options;
}

ServedLayer Serve(const LayerSpec& spec, const LayerTensors& layer, const ServeLayerOptions& options = {}) {
  absl::StatusOr<ServedLayer> served = ServeLayer(spec, layer, options);
  EXPECT_TRUE(served.ok()) << served.status();
  return served.ok() ? *std::move(served) : ServedLayer();
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

// Returns the values with the value heads in the order of a GGUF converter: member j of key head i comes to block
// j H + i. The value heads are the middle dimension of the [outer, HV, inner] values from `first` on.
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
  const ServedLayer grouped = Serve(spec, checkpoint.layers[1]);

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
  ExpectEqual(Serve(spec, tiled.tensors()), grouped);
}

TEST(ServedLayer, BAndAThatGoByKeyHeadAreSplit) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("gguf_qwen3next_1/f32.gguf")));
  GDN_ASSERT_OK_AND_ASSIGN(const auto same, OpenCheckpoint(GoldenFolder("qwen3_next_1")));
  ASSERT_EQ(checkpoint.config.spec.projections, ProjectionLayout::kFlatGroupedBa);
  const ServedLayer served = Serve(checkpoint.config.spec, checkpoint.layers[0]);
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
  const ServedLayer served = Serve(checkpoint.config.spec, layer.tensors());
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
  const ServedLayer served = Serve(kimi.config.spec, layer.tensors());
  EXPECT_EQ(Floats(served.in_a), layer.Get(LayerTensor::kInA));
  EXPECT_EQ(Floats(served.a_up), layer.Get(LayerTensor::kAUp));
  EXPECT_EQ(Floats(served.in_z), layer.Get(LayerTensor::kInZ));
  EXPECT_EQ(Floats(served.z_up), layer.Get(LayerTensor::kZUp));
  EXPECT_EQ(served.a_up.rows, 96);
  EXPECT_EQ(served.a_up.cols, 32);
  GDN_ASSERT_OK_AND_ASSIGN(const auto ling, OpenCheckpoint(GoldenFolder("bailing_hybrid_1")));
  const ServedLayer full = Serve(ling.config.spec, ling.layers[1]);
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
  const ServedLayer narrow = Serve(checkpoint.config.spec, layer.tensors());
  EXPECT_EQ(narrow.in_qkv.format, WeightFormat::kBF16);
  layer.Set(LayerTensor::kInK, layer.Get(LayerTensor::kInK), DType::kF16);
  const ServedLayer wide = Serve(checkpoint.config.spec, layer.tensors());
  EXPECT_EQ(wide.in_qkv.format, WeightFormat::kF32);
  EXPECT_EQ(Floats(wide.in_qkv), Floats(narrow.in_qkv));
}

TEST(ServedLayer, WhatMultipliesTheNormGoesIntoItsWeight) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("qwen3_next_1")));
  LayerSpec spec = checkpoint.config.spec;
  ChangedLayer layer(checkpoint, 0);
  std::vector<float> weights(static_cast<size_t>(spec.dims.value_dim), -0.25f);
  weights[0] = -0.0f;
  layer.Set(LayerTensor::kNorm, weights);
  EXPECT_TRUE(std::signbit(Serve(spec, layer.tensors()).norm_weight[0]));  // untouched
  spec.norm_weight = NormWeight::kOnePlus;
  EXPECT_EQ(Serve(spec, layer.tensors()).norm_weight[1], 0.75f);
  spec.output_gate_scale = 2.0f;
  EXPECT_EQ(Serve(spec, layer.tensors()).norm_weight[0], 2.0f);
  EXPECT_EQ(Serve(spec, layer.tensors()).norm_weight[1], 1.5f);
}

TEST(ServedLayer, AMatrixThatNeedsNoChangeStaysInItsFile) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("qwen3_next_1")));
  const ServedLayer served = Serve(checkpoint.config.spec, checkpoint.layers[0]);
  EXPECT_TRUE(served.in_qkv.made.empty());
  EXPECT_EQ(served.in_qkv.data().data(), checkpoint.layers[0].tensors.at(LayerTensor::kInQkvz).data.data());
  EXPECT_EQ(served.in_z.rows, 0);
}

// ---- Quantised weights.

// A layer of random tensors: the projections of `format`, everything else F32. V = 128, so a block of 256 spans two
// heads.
struct QuantisedLayer {
  QuantisedLayer(WeightFormat format, ProjectionLayout projections, ValueHeadOrder order) {
    spec.dims = {
        .key_heads = 2, .value_heads = 6, .key_dim = 32, .value_dim = 128, .conv_width = 4, .hidden_size = 256};
    spec.projections = projections;
    spec.value_heads = order;
    spec.a_log = ALogConvention::kNegativeExp;
    uint32_t seed = 1;
    for (const LayerTensor tensor : LayerTensorsOf(spec)) {
      const std::vector<int64_t> shape = LayerTensorShape(tensor, spec);
      const bool matrix = shape.size() == 2;
      const WeightFormat of_tensor = matrix ? format : WeightFormat::kF32;
      const int64_t rows = matrix ? shape[0] : 1;
      int64_t cols = 1;
      for (const int64_t dim : shape) cols *= dim;
      weights[tensor] = MakeRandomWeights(of_tensor, rows, cols / rows, seed++);
      const RandomWeights& random = weights.at(tensor);
      StoredTensor& stored = layer.tensors[tensor];
      stored = {.encoding = of_tensor,
                .shape = shape,
                .data = {reinterpret_cast<const char*>(random.bytes.data()), random.bytes.size()}};
      if (random.scales.empty()) continue;
      stored.scales = {.dtype = DType::kF32,
                       .shape = Fp8BlocksOf(shape),
                       .data = {reinterpret_cast<const char*>(random.scales.data()), random.scales.size() * 4}};
    }
  }

  LayerSpec spec;
  std::map<LayerTensor, RandomWeights> weights;
  LayerTensors layer;
};

std::vector<WeightFormat> QuantisedFormats() {
  std::vector<WeightFormat> formats;
  for (const WeightFormat format : kWeightFormats) {
    if (!IsPlain(format)) formats.push_back(format);
  }
  return formats;
}

TEST(ServedLayer, QuantisedMatricesStayInTheirFile) {
  for (const WeightFormat format : QuantisedFormats()) {
    for (const ProjectionLayout layout : {ProjectionLayout::kFlat, ProjectionLayout::kInterleaved}) {
      const QuantisedLayer layer(format, layout, ValueHeadOrder::kGrouped);
      const ServedLayer served = Serve(layer.spec, layer.layer, Everything());
      for (const ServedMatrix* matrix : {&served.in_qkv, &served.in_z, &served.in_b, &served.in_a, &served.out}) {
        if (matrix->rows == 0) continue;
        EXPECT_EQ(matrix->format, format);
        EXPECT_TRUE(matrix->made.empty());
        EXPECT_FALSE(matrix->widened);
      }
      EXPECT_FALSE(served.tiled_out);
      ExpectEqual(served, Serve(layer.spec, layer.layer));
    }
  }
}

// Out's columns alone may stay tiled, in which case a widened one tells what they are.
TEST(ServedLayer, QuantisedRowsAndWholeBlocksOfTiledHeadsAreGrouped) {
  for (const WeightFormat format : QuantisedFormats()) {
    if (format == WeightFormat::kF8E4M3) continue;
    const QuantisedLayer layer(format, ProjectionLayout::kFlat, ValueHeadOrder::kTiled);
    const LayerDims& dims = layer.spec.dims;
    ServedLayer served = Serve(layer.spec, layer.layer, Everything());
    EXPECT_EQ(served.in_qkv.format, format);
    EXPECT_EQ(served.out.format, format);
    EXPECT_EQ(served.tiled_out, BlockOf(format).weights == 256) << WeightFormatName(format);
    const ServedLayer widened = Serve(layer.spec, layer.layer);
    EXPECT_TRUE(widened.out.widened);
    if (served.tiled_out) {
      EXPECT_TRUE(served.out.made.empty());
      EXPECT_EQ(Floats(served.out), Tiled(Floats(widened.out), dims, dims.hidden_size, 0, dims.value_dim));
      served.out = widened.out;
    }
    ExpectEqual(served, widened);
  }
}

TEST(ServedLayer, QuantisedBAndAThatGoByKeyHeadAreSplit) {
  for (const WeightFormat format : QuantisedFormats()) {
    const QuantisedLayer layer(format, ProjectionLayout::kFlatGroupedBa, ValueHeadOrder::kGrouped);
    const ServedLayer served = Serve(layer.spec, layer.layer, Everything());
    // Rows of F8_E4M3 have their scales where they are.
    EXPECT_EQ(served.in_b.format, format == WeightFormat::kF8E4M3 ? WeightFormat::kF32 : format);
    EXPECT_EQ(served.in_a.widened, format == WeightFormat::kF8E4M3);
    ExpectEqual(served, Serve(layer.spec, layer.layer));
  }
}

TEST(ServedLayer, PartsAreJoinedWhileQuantised) {
  for (const WeightFormat format : QuantisedFormats()) {
    QuantisedLayer layer(format, ProjectionLayout::kSeparate, ValueHeadOrder::kGrouped);
    const ServedLayer served = Serve(layer.spec, layer.layer, Everything());
    // q and k have 64 rows each, of which two share a block of F8_E4M3's scales.
    EXPECT_EQ(served.in_qkv.format, format == WeightFormat::kF8E4M3 ? WeightFormat::kF32 : format);
    ExpectEqual(served, Serve(layer.spec, layer.layer));
    // Parts of two formats are widened.
    layer.layer.tensors.at(LayerTensor::kInK).encoding = WeightFormat::kF32;
    const RandomWeights floats = MakeRandomWeights(WeightFormat::kF32, 64, 256, 9);
    layer.layer.tensors.at(LayerTensor::kInK).data = {reinterpret_cast<const char*>(floats.bytes.data()),
                                                      floats.bytes.size()};
    const ServedLayer mixed = Serve(layer.spec, layer.layer, Everything());
    EXPECT_EQ(mixed.in_qkv.format, WeightFormat::kF32);
    EXPECT_TRUE(mixed.in_qkv.widened);
    EXPECT_EQ(mixed.in_z.format, format);
  }
}

TEST(ServedLayer, WhatABackendDoesNotTakeIsWidened) {
  const QuantisedLayer layer(WeightFormat::kQ5_K, ProjectionLayout::kFlat, ValueHeadOrder::kTiled);
  ServeLayerOptions options;
  options.takes = [](WeightFormat format) { return format == WeightFormat::kQ4_K; };
  const ServedLayer served = Serve(layer.spec, layer.layer, options);
  EXPECT_EQ(served.out.format, WeightFormat::kF32);
  EXPECT_TRUE(served.out.widened);
  EXPECT_FALSE(served.tiled_out);
}

TEST(ServedLayer, LargeProjectionsMayBeQuantised) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16}) {
    const QuantisedLayer layer(format, ProjectionLayout::kFlat, ValueHeadOrder::kTiled);
    ServeLayerOptions options = Everything();
    options.quantize_q8_0 = true;
    const ServedLayer served = Serve(layer.spec, layer.layer, options);
    const ServedLayer plain = Serve(layer.spec, layer.layer);
    EXPECT_TRUE(HasFloatProjections(layer.layer));
    EXPECT_FALSE(served.tiled_out);
    EXPECT_EQ(served.in_b.format, format);
    EXPECT_EQ(served.in_a.format, format);
    for (const auto& [quantised, as_stored] :
         {std::pair(&served.in_qkv, &plain.in_qkv), {&served.in_z, &plain.in_z}, {&served.out, &plain.out}}) {
      EXPECT_EQ(quantised->format, WeightFormat::kQ8_0);
      const std::vector<float> found = Floats(*quantised), expected = Floats(*as_stored);
      for (size_t block = 0; block < expected.size(); block += 32) {
        float greatest = 0.0f;
        for (size_t i = 0; i < 32; ++i) greatest = std::max(greatest, std::fabs(expected[block + i]));
        // Half a step, and what float16 rounds off the factor of 127 of them.
        const float bound = greatest / 127.0f * 0.5f + greatest * 0x1p-11f;
        for (size_t i = 0; i < 32; ++i) ASSERT_NEAR(found[block + i], expected[block + i], bound);
      }
    }
  }
  // Weights that the checkpoint has quantised stay as they are.
  const QuantisedLayer quantised(WeightFormat::kQ4_K, ProjectionLayout::kInterleaved, ValueHeadOrder::kGrouped);
  ServeLayerOptions options = Everything();
  options.quantize_q8_0 = true;
  const ServedLayer served = Serve(quantised.spec, quantised.layer, options);
  EXPECT_FALSE(HasFloatProjections(quantised.layer));
  EXPECT_EQ(served.in_qkv.format, WeightFormat::kQ4_K);
}

TEST(ServedLayer, WhatCannotBeQuantisedIsRefusedByName) {
  ServeLayerOptions options = Everything();
  options.quantize_q8_0 = true;
  QuantisedLayer layer(WeightFormat::kF32, ProjectionLayout::kFlat, ValueHeadOrder::kGrouped);
  const float nan = std::nanf("");
  std::memcpy(&layer.weights.at(LayerTensor::kInZ).bytes[4 * 256 * 7], &nan, sizeof(nan));
  const absl::Status not_finite = ServeLayer(layer.spec, layer.layer, options).status();
  EXPECT_EQ(ErrorReason(not_finite), reason::kInvalidTensorData);
  EXPECT_THAT(std::string(not_finite.message()),
              testing::AllOf(testing::HasSubstr("in_z"), testing::HasSubstr("row 7")));

  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(GoldenFolder("qwen3_5_5")));
  LayerTensors odd = checkpoint.layers[0];
  StoredTensor& qkv = odd.tensors.at(LayerTensor::kInQkv);
  qkv.shape = {qkv.shape[0], qkv.shape[1] - 3};
  const absl::Status cut = ServeLayer(checkpoint.config.spec, odd, options).status();
  EXPECT_EQ(ErrorReason(cut), reason::kInvalidTensorShape);
  EXPECT_THAT(std::string(cut.message()), testing::AllOf(testing::HasSubstr("in_qkv"), testing::HasSubstr("of 32")));
}

}  // namespace
}  // namespace gdn::served_layer_test
