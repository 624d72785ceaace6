// Models with quantised weights: what stays quantised in memory, and what that costs in bytes and in accuracy.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/safetensors.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/loaded_model.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/server/model/layer_sessions.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"
#include "tests/support/host_memory_backend.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// In files, and in the copies of a device of its own: what kernels read, not what a checkpoint has beside it.
constexpr double kMostOfItsFile = 1.05;

constexpr const char* kQuantised[] = {"gguf_qwen35_1/q8_0.gguf", "gguf_qwen35_k_1/q4_k.gguf",
                                      "gguf_qwen3next_1/q8_0.gguf", "fp8_qwen3_next_1", "fp8_qwen3_5_1"};

std::vector<const WeightMatrix*> MatricesOf(const LayerWeights& weights) {
  std::vector<const WeightMatrix*> matrices;
  for (const WeightMatrix* matrix : {&weights.in_qkv, &weights.in_z, &weights.in_b, &weights.in_a, &weights.out}) {
    if (matrix->rows > 0) matrices.push_back(matrix);
  }
  return matrices;
}

std::vector<float> Floats(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) WeightRow(matrix, row, values.data() + row * matrix.cols);
  return values;
}

TEST(QuantizedModel, TakesTheMemoryOfItsFile) {
  for (const char* path : kQuantised) {
    for (const bool unified : {true, false}) {
      HostMemoryBackend backend(unified, kAllWeights);
      GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", GoldenFolder(path)));
      const WeightMemory& memory = model.memory();
      EXPECT_LE(memory.total(), kMostOfItsFile * static_cast<double>(memory.in_files)) << path;
      EXPECT_EQ(memory.widened_matrices, 0) << path;
      EXPECT_LE(static_cast<int64_t>(backend.live_bytes()), memory.total()) << path;
      if (!unified) EXPECT_EQ(static_cast<int64_t>(backend.live_bytes()), memory.total()) << path;
    }
  }
}

TEST(QuantizedModel, SaysItsFormats) {
  HostMemoryBackend backend(/*unified_memory=*/true, kAllWeights);
  GDN_ASSERT_OK_AND_ASSIGN(const auto k, LoadModel(backend, "m", GoldenFolder("gguf_qwen35_k_1/q4_k.gguf")));
  EXPECT_THAT(k.memory().Formats(), testing::AllOf(testing::Contains("Q4_K"), testing::Contains("Q6_K")));
  EXPECT_EQ(k.weight_dtype(), DType::kF32);
  GDN_ASSERT_OK_AND_ASSIGN(const auto f32, LoadModel(backend, "m", GoldenFolder("qwen3_5_1")));
  EXPECT_THAT(f32.memory().Formats(), ElementsAre("F32"));
}

TEST(QuantizedModel, IsWidenedForABackendThatDoesNotTakeIt) {
  for (const char* path : kQuantised) {
    HostMemoryBackend takes(/*unified_memory=*/true, kAllWeights);
    HostMemoryBackend widens(/*unified_memory=*/true);
    GDN_ASSERT_OK_AND_ASSIGN(const auto quantised, LoadModel(takes, "m", GoldenFolder(path)));
    GDN_ASSERT_OK_AND_ASSIGN(const auto widened, LoadModel(widens, "m", GoldenFolder(path)));
    EXPECT_GT(widened.memory().widened_matrices, 0) << path;
    EXPECT_EQ(widened.fingerprint(), quantised.fingerprint()) << path;
    for (const auto& [layer, weights] : widened.layers()) {
      const auto matrices = MatricesOf(weights);
      const auto others = MatricesOf(quantised.layers().at(layer));
      ASSERT_EQ(matrices.size(), others.size());
      EXPECT_FALSE(weights.tiled_out);
      for (size_t i = 0; i < matrices.size(); ++i) {
        EXPECT_TRUE(IsPlain(matrices[i]->format));
        if (matrices[i] == &weights.out && quantised.layers().at(layer).tiled_out) continue;
        EXPECT_EQ(Floats(*matrices[i]), Floats(*others[i])) << path;
      }
    }
  }
}

// Relative to the float matrices, the worst of a layer.
double WorstWeightError(const LayerWeights& quantised, const LayerWeights& floats) {
  const auto quantised_matrices = MatricesOf(quantised), float_matrices = MatricesOf(floats);
  EXPECT_EQ(quantised_matrices.size(), float_matrices.size());
  double worst = 0.0;
  for (size_t i = 0; i < float_matrices.size(); ++i) {
    worst = std::max(worst, RelativeNormError(Floats(*quantised_matrices[i]), Floats(*float_matrices[i])));
  }
  return worst;
}

// Prefill and decode of every layer, by one model after the other.
void ExpectAlikeWithinTheQuantisation(Backend& backend, const LoadedModel& quantised, const LoadedModel& floats,
                                      const std::string& recording) {
  // The gated norm amplifies the weights' errors where an output is small: a token's by up to some ten times. Heads or
  // rows in a wrong order, or a factor of another block, give errors of the outputs' own size.
  constexpr double kMostError = 0.1;
  GDN_ASSERT_OK_AND_ASSIGN(const auto io, SafetensorsFile::Open(recording));
  ASSERT_EQ(quantised.layers().size(), floats.layers().size());
  for (const auto& [layer, weights] : floats.layers()) {
    const LayerWeights& of_quantised = quantised.layers().at(layer);
    GDN_ASSERT_OK_AND_ASSIGN(const auto prompt, io.Floats(StrCat("layer.", layer, ".prefill.in")));
    GDN_ASSERT_OK_AND_ASSIGN(const auto token, io.Floats(StrCat("layer.", layer, ".decode.0.in")));
    const auto sequences = static_cast<int32_t>(io.Tensor(StrCat("layer.", layer, ".prefill.in"))->shape[0]);
    GDN_ASSERT_OK_AND_ASSIGN(auto one, LayerSessions::Make(backend, of_quantised, sequences));
    GDN_ASSERT_OK_AND_ASSIGN(auto other, LayerSessions::Make(backend, weights, sequences));
    GDN_ASSERT_OK_AND_ASSIGN(const auto prefill, one.Prefill(prompt));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected_prefill, other.Prefill(prompt));
    GDN_ASSERT_OK_AND_ASSIGN(const auto decode, one.Decode(token));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected_decode, other.Decode(token));
    const double of_weights = WorstWeightError(of_quantised, weights);
    EXPECT_GT(of_weights, 1e-3);  // else nothing was quantised
    EXPECT_LT(of_weights, 1e-2);
    for (const double error :
         {RelativeNormError(prefill, expected_prefill), RelativeNormError(decode, expected_decode)}) {
      EXPECT_LE(error, kMostError) << "layer " << layer;
      EXPECT_GT(error, of_weights / 10) << "layer " << layer;
    }
  }
}

TEST(QuantizedModel, AGgufFileAndASafetensorsFolderAnswerAlike) {
  const std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/0);
  GDN_ASSERT_OK_AND_ASSIGN(const auto gguf, LoadModel(*backend, "m", GoldenFolder("gguf_qwen35_1/q8_0.gguf")));
  GDN_ASSERT_OK_AND_ASSIGN(const auto folder, LoadModel(*backend, "m", GoldenFolder("qwen3_5_1")));
  EXPECT_NE(gguf.fingerprint(), folder.fingerprint());
  ExpectAlikeWithinTheQuantisation(*backend, gguf, folder, GoldenFolder("qwen3_5_1/io.safetensors"));
}

class QuantizedHere : public testing::TestWithParam<const char*> {};

TEST_P(QuantizedHere, AnswersAlikeWithinTheQuantisation) {
  const std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/0);
  if (!backend->info().TakesWeights(WeightFormat::kQ8_0)) GTEST_SKIP() << "takes no Q8_0";
  const std::string path = GoldenFolder(GetParam());
  GDN_ASSERT_OK_AND_ASSIGN(const auto quantised, LoadModel(*backend, "m", path, {.quantize_q8_0 = true}));
  GDN_ASSERT_OK_AND_ASSIGN(const auto floats, LoadModel(*backend, "m", path));
  EXPECT_NE(quantised.fingerprint(), floats.fingerprint());
  EXPECT_EQ(quantised.memory().Formats().front(), "Q8_0");
  ExpectAlikeWithinTheQuantisation(*backend, quantised, floats, path + "/io.safetensors");
}
INSTANTIATE_TEST_SUITE_P(Families, QuantizedHere,
                         testing::Values("qwen3_5_1", "qwen3_next_1", "qwen3_5_5", "qwen4_exp_1"));

TEST(QuantizedModel, WhatIsQuantisedAlreadyStaysTheSameModel) {
  HostMemoryBackend backend(/*unified_memory=*/true, kAllWeights);
  const std::string path = GoldenFolder("gguf_qwen35_1/q8_0.gguf");
  GDN_ASSERT_OK_AND_ASSIGN(const auto again, LoadModel(backend, "m", path, {.quantize_q8_0 = true}));
  GDN_ASSERT_OK_AND_ASSIGN(const auto as_stored, LoadModel(backend, "m", path));
  EXPECT_EQ(again.fingerprint(), as_stored.fingerprint());
}

TEST(QuantizedModel, QuantisingIsRefusedBeforeMemoryIsTaken) {
  HostMemoryBackend plain(/*unified_memory=*/false);
  const auto refused = LoadModel(plain, "m", GoldenFolder("qwen3_5_1"), {.quantize_q8_0 = true}).status();
  ExpectError(refused, absl::StatusCode::kUnimplemented, reason::kDeviceUnsupported);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--quantize"));
  EXPECT_EQ(plain.total_allocations(), 0);
}

TEST(QuantizedModel, AWeightThatCannotBeQuantisedIsRefusedWithItsLayer) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  TestTensor& out = checkpoint.tensors.at("model.layers.1.linear_attn.out_proj.weight");
  const float infinity = INFINITY;
  out.data.replace(4 * 70, sizeof(infinity), reinterpret_cast<const char*>(&infinity), sizeof(infinity));
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true, kAllWeights);
  const auto refused = LoadModel(backend, "m", folder.path(), {.quantize_q8_0 = true}).status();
  ExpectError(refused, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
  EXPECT_THAT(std::string(refused.message()), testing::AllOf(HasSubstr("layer 1"), HasSubstr("matrix out")));
}

}  // namespace
}  // namespace gdn
