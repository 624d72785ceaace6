// Layers of some heads: their outputs add up to the whole layer's, and nothing beyond the slice is loaded.
#include <algorithm>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/slice_layer.h"
#include "server/model/loaded_model.h"
#include "server/model/served_layer.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/server/model/layer_sessions.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"
#include "tests/support/host_memory_backend.h"
#include "tests/support/test_backend.h"

namespace gdn::head_slices_test {
namespace {

using ::testing::HasSubstr;

// Relative norm error of a sum of slices, against the recording and against the whole layer.
constexpr double kTolerance = 1e-5;

bool IsGguf(const std::string& set) { return set.find('/') != std::string::npos; }
std::string ModelPath(const std::string& set) { return GoldenFolder(set) + (IsGguf(set) ? ".gguf" : ""); }
std::string RecordingPath(const std::string& set) {
  return GoldenFolder(set) + (IsGguf(set) ? ".io.safetensors" : "/io.safetensors");
}

// A key head each.
std::vector<HeadSlice> SlicesOf(const LayerDims& dims) {
  std::vector<HeadSlice> slices;
  for (int32_t i = 0; i < dims.key_heads; ++i) {
    slices.push_back({.first = i * dims.group(), .count = dims.group(), .total = dims.value_heads});
  }
  return slices;
}

std::vector<float> Sum(const std::vector<std::vector<float>>& parts) {
  std::vector<float> sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += parts[i][j];
  }
  return sum;
}

class HeadSlices : public ::testing::TestWithParam<std::string> {};

TEST_P(HeadSlices, PartialOutputsAddUpToTheWholeLayers) {
  const auto backend = MakeTestBackend(/*threads=*/0);
  GDN_ASSERT_OK_AND_ASSIGN(const auto whole, LoadModel(*backend, "m", ModelPath(GetParam())));
  std::deque<LoadedModel> parts;
  for (const HeadSlice& heads : SlicesOf(whole.config().spec.dims)) {
    GDN_ASSERT_OK_AND_ASSIGN(auto part, LoadModel(*backend, "m", ModelPath(GetParam()), {.heads = heads}));
    parts.push_back(std::move(part));
  }
  GDN_ASSERT_OK_AND_ASSIGN(const auto io, SafetensorsFile::Open(RecordingPath(GetParam())));
  const auto golden = [&](int32_t layer, const std::string& what) {
    return io.Floats(StrCat("layer.", layer, ".", what)).value();
  };
  const auto sequences = static_cast<int32_t>(io.Tensor("layer.0.prefill.in")->shape[0]);
  for (const auto& [layer, weights] : whole.layers()) {
    GDN_ASSERT_OK_AND_ASSIGN(auto all, LayerSessions::Make(*backend, weights, sequences));
    std::deque<LayerSessions> sliced;
    for (const LoadedModel& part : parts) {
      GDN_ASSERT_OK_AND_ASSIGN(auto sessions, LayerSessions::Make(*backend, part.layers().at(layer), sequences));
      sliced.push_back(std::move(sessions));
    }
    const auto step = [&](const std::string& name, bool decode) {
      const std::vector<float> input = golden(layer, name + ".in");
      std::vector<std::vector<float>> partial;
      for (LayerSessions& sessions : sliced) {
        GDN_ASSERT_OK_AND_ASSIGN(auto output, decode ? sessions.Decode(input) : sessions.Prefill(input));
        partial.push_back(std::move(output));
      }
      GDN_ASSERT_OK_AND_ASSIGN(const auto output, decode ? all.Decode(input) : all.Prefill(input));
      EXPECT_LE(RelativeNormError(Sum(partial), output), kTolerance) << "layer " << layer << " " << name;
      EXPECT_LE(RelativeNormError(Sum(partial), golden(layer, name + ".out")), kTolerance)
          << "layer " << layer << " " << name;
      EXPECT_GT(RelativeNormError(partial[0], output), 1e-2);  // each has something to add
    };
    step("prefill", /*decode=*/false);
    for (int32_t s = 0; io.Contains(StrCat("layer.", layer, ".decode.", s, ".in")); ++s) {
      step(StrCat("decode.", s), /*decode=*/true);
    }
    // The states are the whole layer's, by heads.
    for (int32_t i = 0; i < sequences; ++i) {
      GDN_ASSERT_OK_AND_ASSIGN(const auto state, all.Read(i));
      std::vector<float> joined;
      for (LayerSessions& sessions : sliced) {
        GDN_ASSERT_OK_AND_ASSIGN(const auto part, sessions.Read(i));
        joined.insert(joined.end(), part.base.begin(), part.base.end());
      }
      EXPECT_LE(RelativeNormError(joined, state.base), kTolerance) << "layer " << layer;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, HeadSlices,
                         ::testing::Values("qwen3_next_1", "qwen3_next_5", "qwen3_5_1", "qwen3_5_5", "qwen4_exp_1",
                                           "olmo_hybrid_1", "fp8_qwen3_next_1", "fp8_qwen3_5_1", "gguf_qwen35_1/f32",
                                           "gguf_qwen35_1/q8_0", "gguf_qwen3next_1/f32", "gguf_qwen3next_1/q8_0"),
                         [](const auto& test_info) {
                           std::string name = test_info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

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

// [outer, heads, inner] of some heads, where a matrix has them.
std::vector<float> HeadsOf(const std::vector<float>& values, int64_t outer, int64_t heads, int64_t first,
                           int64_t count) {
  std::vector<float> taken;
  const auto inner = static_cast<int64_t>(values.size()) / outer / heads;
  for (int64_t o = 0; o < outer; ++o) {
    const auto begin = values.begin() + (o * heads + first) * inner;
    taken.insert(taken.end(), begin, begin + count * inner);
  }
  return taken;
}

// Each with whether quantised weights stay so.
std::vector<std::pair<HeadSlice, bool>> SlicesBothWays(const LayerDims& dims) {
  std::vector<std::pair<HeadSlice, bool>> both;
  for (const HeadSlice& heads : SlicesOf(dims)) {
    both.emplace_back(heads, false);
    both.emplace_back(heads, true);
  }
  return both;
}

TEST(SliceLayer, TakesTheHeadsThatTheWholeLayerHas) {
  for (const char* set : {"qwen3_5_5", "olmo_hybrid_1", "fp8_qwen3_5_1", "gguf_qwen35_1/f32", "gguf_qwen35_1/q8_0"}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(ModelPath(set)));
    const LayerSpec& spec = checkpoint.config.spec;
    const LayerDims& dims = spec.dims;
    GDN_ASSERT_OK_AND_ASSIGN(const ServedLayer whole, ServeLayer(spec, checkpoint.layers[0]));
    for (const auto& [heads, keeps_quantised] : SlicesBothWays(dims)) {
      ASSERT_TRUE(CheckSlice(checkpoint.config, checkpoint.layers, heads).ok()) << set;
      const MadeLayer sliced = SliceLayer(spec, checkpoint.layers[0], heads);
      ServeLayerOptions options;
      if (keeps_quantised) options.takes = [](WeightFormat) { return true; };
      GDN_ASSERT_OK_AND_ASSIGN(const ServedLayer part, ServeLayer(SliceSpec(spec, heads), sliced.tensors, options));
      const int32_t key = heads.first / dims.group();
      const auto values = [&](const std::vector<float>& all, int64_t outer = 1) {
        return HeadsOf(all, outer, dims.value_heads, heads.first, heads.count);
      };
      // q, k and v one below the other.
      const auto channels = [&](const std::vector<float>& all) {
        const auto each = static_cast<int64_t>(all.size()) / dims.conv_channels();
        const auto v = all.begin() + 2 * dims.key_features() * each;
        std::vector<float> taken = HeadsOf({all.begin(), v}, 2, dims.key_heads, key, 1);
        const std::vector<float> of_v = values({v, all.end()});
        taken.insert(taken.end(), of_v.begin(), of_v.end());
        return taken;
      };
      EXPECT_EQ(Floats(part.in_qkv), channels(Floats(whole.in_qkv))) << set;
      EXPECT_EQ(part.conv_weight, channels(whole.conv_weight)) << set;
      EXPECT_EQ(Floats(part.in_z), values(Floats(whole.in_z))) << set;
      EXPECT_EQ(Floats(part.in_b), values(Floats(whole.in_b))) << set;
      EXPECT_EQ(Floats(part.in_a), values(Floats(whole.in_a))) << set;
      EXPECT_EQ(Floats(part.out), values(Floats(whole.out), dims.hidden_size)) << set;
      EXPECT_EQ(part.a_log, values(whole.a_log)) << set;
      EXPECT_EQ(part.dt_bias, values(whole.dt_bias)) << set;
      EXPECT_EQ(part.norm_weight, whole.norm_weight) << set;
    }
  }
}

TEST(SliceLayer, ASliceThatWouldCutABlockToBeQuantisedIsRefused) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenCheckpoint(ModelPath("qwen3_5_1")));
  ModelConfig config = checkpoint.config;
  const HeadSlice heads{.first = 2, .count = 2, .total = 4};
  EXPECT_EQ(CheckSlice(config, checkpoint.layers, heads, /*quantize_q8_0=*/true), absl::OkStatus());
  config.spec.dims.value_dim = 24;  // two heads' columns end in the middle of a block
  EXPECT_EQ(CheckSlice(config, checkpoint.layers, heads), absl::OkStatus());
  const absl::Status refused = CheckSlice(config, checkpoint.layers, heads, /*quantize_q8_0=*/true);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(refused), reason::kInvalidSpec);
  EXPECT_THAT(std::string(refused.message()), testing::AllOf(HasSubstr("Q8_0"), HasSubstr("multiples of 4")));
}

TEST(SliceLayer, QuantisedWeightsStayQuantisedAndRowsStayInTheFile) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto gguf, OpenCheckpoint(ModelPath("gguf_qwen35_1/q8_0")));
  const HeadSlice heads{.first = 2, .count = 2, .total = 4};
  const MadeLayer sliced = SliceLayer(gguf.config.spec, gguf.layers[0], heads);
  EXPECT_EQ(sliced.tensors.tensors.at(LayerTensor::kInZ).encoding, WeightFormat::kQ8_0);
  EXPECT_EQ(sliced.tensors.tensors.at(LayerTensor::kOut).encoding, WeightFormat::kQ8_0);
  GDN_ASSERT_OK_AND_ASSIGN(const auto fp8, OpenCheckpoint(ModelPath("fp8_qwen3_5_1")));
  const MadeLayer whole_blocks = SliceLayer(fp8.config.spec, fp8.layers[0], heads);
  EXPECT_EQ(whole_blocks.tensors.tensors.at(LayerTensor::kInZ).encoding, WeightFormat::kF8E4M3);
  EXPECT_EQ(whole_blocks.tensors.tensors.at(LayerTensor::kOut).encoding, WeightFormat::kF8E4M3);
  EXPECT_EQ(whole_blocks.tensors.tensors.at(LayerTensor::kInQkv).encoding, WeightFormat::kF32);  // K = 64 cuts them

  GDN_ASSERT_OK_AND_ASSIGN(const auto plain, OpenCheckpoint(ModelPath("qwen3_next_1")));
  const MadeLayer rows = SliceLayer(plain.config.spec, plain.layers[0], heads);
  EXPECT_FALSE(rows.HasMade(rows.tensors.tensors.at(LayerTensor::kInQkvz).data.data()));
  EXPECT_TRUE(rows.HasMade(rows.tensors.tensors.at(LayerTensor::kOut).data.data()));
}

// Blocks of two heads: the columns stay in tiled order, of the slice's own key heads, as the gated norm then writes.
TEST(SliceLayer, TiledColumnsInBlocksOfSeveralHeadsStayTiled) {
  LayerSpec spec{.dims = {.key_heads = 4, .value_heads = 8, .key_dim = 8, .value_dim = 16, .hidden_size = 3},
                 .projections = ProjectionLayout::kFlat,
                 .value_heads = ValueHeadOrder::kTiled};
  const LayerDims& dims = spec.dims;
  std::vector<float> values(static_cast<size_t>(dims.hidden_size * dims.value_features()));
  std::iota(values.begin(), values.end(), 1.0f);
  std::string blocks(static_cast<size_t>(dims.hidden_size * RowBytes(WeightFormat::kQ8_0, dims.value_features())), 0);
  ASSERT_TRUE(QuantizeQ8_0(values.data(), static_cast<int64_t>(values.size()), blocks.data()));
  const std::vector<int64_t> shape = {dims.hidden_size, dims.value_features()};
  const StoredTensor out{.encoding = WeightFormat::kQ8_0, .shape = shape, .data = blocks};
  DecodeTensor(out, values.data());

  const HeadSlice heads{.first = 4, .count = 4, .total = 8};  // key heads 2 and 3
  const MadeLayer sliced = SliceLayer(spec, {.layer = 0, .tensors = {{LayerTensor::kOut, out}}}, heads);
  const StoredTensor& part = sliced.tensors.tensors.at(LayerTensor::kOut);
  EXPECT_EQ(part.encoding, WeightFormat::kQ8_0);
  ASSERT_EQ(part.shape, (std::vector<int64_t>{dims.hidden_size, 4 * dims.value_dim}));
  std::vector<float> found(static_cast<size_t>(part.ElementCount()));
  DecodeTensor(part, found.data());
  std::vector<float> expected;
  for (int64_t row = 0; row < dims.hidden_size; ++row) {
    for (const int64_t block : {2, 3, 6, 7}) {  // member 0 of both, then member 1
      const auto from = values.begin() + row * dims.value_features() + block * dims.value_dim;
      expected.insert(expected.end(), from, from + dims.value_dim);
    }
  }
  EXPECT_EQ(found, expected);
}

TEST(LoadModel, AServerOfASliceHoldsItsShareOfTheWeights) {
  for (const bool unified_memory : {true, false}) {
    HostMemoryBackend backend(unified_memory);
    GDN_ASSERT_OK_AND_ASSIGN(const auto whole, LoadModel(backend, "m", ModelPath("qwen3_next_1")));
    const LayerDims& dims = whole.config().spec.dims;
    int64_t sum = 0;
    for (const HeadSlice& heads : SlicesOf(dims)) {
      GDN_ASSERT_OK_AND_ASSIGN(const auto part, LoadModel(backend, "m", ModelPath("qwen3_next_1"), {.heads = heads}));
      EXPECT_EQ(part.heads(), heads);
      EXPECT_EQ(part.config().spec.dims, SliceDims(dims, heads));
      EXPECT_EQ(part.whole_fingerprint(), whole.fingerprint());
      EXPECT_EQ(part.fingerprint(), SliceFingerprint(whole.fingerprint(), heads));
      sum += part.memory().total();
      for (const auto& [layer, weights] : part.layers()) {
        EXPECT_TRUE(backend.Owns(weights.out.data));
        EXPECT_EQ(backend.Owns(weights.in_qkv.data), !unified_memory);  // key heads lie together there
      }
    }
    // All but the norm's weights, which every slice has.
    const auto norms = static_cast<int64_t>(whole.layers().size()) * dims.value_dim * int64_t{sizeof(float)};
    EXPECT_EQ(sum, whole.memory().total() + (dims.key_heads - 1) * norms);
    EXPECT_EQ(whole.fingerprint(), whole.whole_fingerprint());
  }
}

TEST(LoadModel, ASliceOfAllHeadsIsTheModel) {
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", ModelPath("qwen3_next_1"),
                                                       {.heads = {.first = 0, .count = 4, .total = 4}}));
  EXPECT_EQ(model.heads(), HeadSlice{});
  EXPECT_EQ(model.fingerprint(), model.whole_fingerprint());
}

TEST(LoadModel, RefusesASliceBeforeAnythingIsAllocated) {
  struct Case {
    const char* set;
    HeadSlice heads;
    std::vector<const char*> message;
  };
  const Case cases[] = {
      {"qwen3_next_1", {.first = 0, .count = 1, .total = 4}, {"heads 0-0/4", "cut the 2 value heads", "key head 0"}},
      {"qwen3_next_1", {.first = 0, .count = 2, .total = 8}, {"of 8 value heads", "the model has 4"}},
      {"qwen3_next_1", {.first = 0, .count = 8, .total = 8}, {"of 8 value heads", "the model has 4"}},
      {"qwen3_next_1", {.first = 2, .count = 4, .total = 4}, {"not among the model's"}},
      {"gguf_qwen35_k_1/q4_k",
       {.first = 0, .count = 2, .total = 4},
       {"layer 0: ssm_out.weight", "Q6_K", "blocks of 256 columns", "columns 0 to 63", "multiples of 4"}},
  };
  for (const Case& c : cases) {
    HostMemoryBackend backend(/*unified_memory=*/false);
    const auto model = LoadModel(backend, "m", ModelPath(c.set), {.heads = c.heads});
    EXPECT_EQ(ErrorReason(model.status()), reason::kInvalidSpec);
    EXPECT_EQ(ErrorMetadata(model.status()).at("field"), "heads");
    for (const char* part : c.message) EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
    EXPECT_EQ(backend.total_allocations(), 0);
  }
}

}  // namespace
}  // namespace gdn::head_slices_test
