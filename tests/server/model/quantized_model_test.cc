// Models with quantised weights: what stays quantised in memory, and what that costs in bytes and in accuracy.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/error.h"
#include "base/files/safetensors.h"
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

namespace gdn::quantized_model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// In files, and in the copies of a device of its own: what kernels read, not what a checkpoint has beside it.
constexpr double kMostOfItsFile = 1.05;

constexpr const char* kQuantised[] = {"gguf_qwen35_1/q8_0.gguf",
                                      "gguf_qwen35_k_1/q4_k.gguf",
                                      "gguf_qwen3next_1/q8_0.gguf",
                                      "gguf_qwen35_types_1/blocks32.gguf",
                                      "gguf_qwen35_types_1/blocks256.gguf",
                                      "gguf_qwen35_types_1/iq3_s.gguf",
                                      "fp8_qwen3_next_1",
                                      "fp8_qwen3_5_1"};

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
      if (!unified) {
        EXPECT_EQ(static_cast<int64_t>(backend.live_bytes()), memory.total()) << path;
      }
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

// Prefill and decode of every layer by one model and the other: check(output, expected, what).
template <typename Check>
void CompareLayers(Backend& backend, const LoadedModel& model, const LoadedModel& other, const std::string& recording,
                   const Check& check) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto io, SafetensorsFile::Open(recording));
  ASSERT_EQ(model.layers().size(), other.layers().size());
  for (const auto& [layer, weights] : model.layers()) {
    const std::string prefix = StrCat("layer.", layer);
    GDN_ASSERT_OK_AND_ASSIGN(const auto prompt, io.Floats(prefix + ".prefill.in"));
    GDN_ASSERT_OK_AND_ASSIGN(const auto token, io.Floats(prefix + ".decode.0.in"));
    const auto sequences = static_cast<int32_t>(io.Tensor(prefix + ".prefill.in")->shape[0]);
    GDN_ASSERT_OK_AND_ASSIGN(auto one, LayerSessions::Make(backend, weights, sequences));
    GDN_ASSERT_OK_AND_ASSIGN(auto two, LayerSessions::Make(backend, other.layers().at(layer), sequences));
    GDN_ASSERT_OK_AND_ASSIGN(const auto prefill, one.Prefill(prompt));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected_prefill, two.Prefill(prompt));
    check(prefill, expected_prefill, prefix + ".prefill");
    GDN_ASSERT_OK_AND_ASSIGN(const auto decode, one.Decode(token));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected_decode, two.Decode(token));
    check(decode, expected_decode, prefix + ".decode.0");
  }
}

std::vector<float> Difference(const std::vector<float>& left, const std::vector<float>& right) {
  std::vector<float> difference(left.size());
  std::transform(left.begin(), left.end(), right.begin(), difference.begin(), std::minus<>());
  return difference;
}

// How far a file's answers are from the float checkpoint's is the quantisation's own: what the two recordings, in
// float64 of the same weights, differ by.
TEST(QuantizedModel, AGgufFileAndASafetensorsFolderAnswerAlike) {
  static constexpr double kTolerance = 1e-5;  // relative to an output
  const std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/0);
  const std::string folder = GoldenFolder("qwen3_5_1");
  GDN_ASSERT_OK_AND_ASSIGN(const auto floats, LoadModel(*backend, "m", folder));
  GDN_ASSERT_OK_AND_ASSIGN(const auto f32, LoadModel(*backend, "m", GoldenFolder("gguf_qwen35_1/f32.gguf")));
  GDN_ASSERT_OK_AND_ASSIGN(const auto q8, LoadModel(*backend, "m", GoldenFolder("gguf_qwen35_1/q8_0.gguf")));
  EXPECT_NE(q8.fingerprint(), floats.fingerprint());
  GDN_ASSERT_OK_AND_ASSIGN(const auto of_f32, SafetensorsFile::Open(GoldenFolder("gguf_qwen35_1/f32.io.safetensors")));
  GDN_ASSERT_OK_AND_ASSIGN(const auto of_q8, SafetensorsFile::Open(GoldenFolder("gguf_qwen35_1/q8_0.io.safetensors")));
  const std::string recording = folder + "/io.safetensors";
  CompareLayers(*backend, f32, floats, recording,
                [](const std::vector<float>& output, const std::vector<float>& expected, const std::string& what) {
                  EXPECT_LE(RelativeNormError(output, expected), kTolerance) << what;
                });
  CompareLayers(*backend, q8, floats, recording,
                [&](const std::vector<float>& output, const std::vector<float>& expected, const std::string& what) {
                  GDN_ASSERT_OK_AND_ASSIGN(const auto exact, of_f32.Floats(what + ".out"));
                  GDN_ASSERT_OK_AND_ASSIGN(const auto quantised, of_q8.Floats(what + ".out"));
                  const std::vector<float> own = Difference(quantised, exact);
                  const std::vector<float> beside = Difference(Difference(output, expected), own);
                  EXPECT_LE(RelativeNormError(Difference(exact, beside), exact), kTolerance) << what;
                  EXPECT_GT(RelativeNormError(Difference(exact, own), exact), 1e-3) << what;  // and it is there
                });
}

class QuantizedHere : public testing::TestWithParam<const char*> {};

// The checkpoint whose large projections have the values that their Q8_0 has.
TestCheckpoint Rounded(const std::string& set) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden(set);
  checkpoint.ConvertTo(DType::kF32);
  for (auto& [name, tensor] : checkpoint.tensors) {
    const bool is_large = absl::StrContains(name, "in_proj_qkv") || absl::StrContains(name, "in_proj_z") ||
                          absl::StrContains(name, "out_proj");
    if (!is_large) continue;
    const auto count = static_cast<int64_t>(tensor.data.size() / sizeof(float));
    auto* values = reinterpret_cast<float*>(tensor.data.data());
    std::string blocks(static_cast<size_t>(RowBytes(WeightFormat::kQ8_0, count)), '\0');
    EXPECT_TRUE(QuantizeQ8_0(values, count, blocks.data()));
    DequantizeBlocks(WeightFormat::kQ8_0, blocks.data(), count / 32, values);
  }
  return checkpoint;
}

TEST_P(QuantizedHere, HasTheBitsOfTheRoundedWeightsInFloat32) {
  const std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/0);
  if (!backend->info().TakesWeights(WeightFormat::kQ8_0)) GTEST_SKIP() << "takes no Q8_0";
  const std::string path = GoldenFolder(GetParam());
  TempFolder folder;
  Rounded(GetParam()).Write(folder.path());
  GDN_ASSERT_OK_AND_ASSIGN(const auto quantised, LoadModel(*backend, "m", path, {.quantize_q8_0 = true}));
  GDN_ASSERT_OK_AND_ASSIGN(const auto rounded, LoadModel(*backend, "m", folder.path()));
  GDN_ASSERT_OK_AND_ASSIGN(const auto floats, LoadModel(*backend, "m", path));
  EXPECT_NE(quantised.fingerprint(), floats.fingerprint());
  EXPECT_NE(quantised.fingerprint(), rounded.fingerprint());
  EXPECT_EQ(quantised.memory().Formats().front(), "Q8_0");
  const std::string recording = path + "/io.safetensors";
  CompareLayers(*backend, quantised, rounded, recording,
                [](const std::vector<float>& output, const std::vector<float>& expected, const std::string& what) {
                  EXPECT_TRUE(BitEqual(output, expected)) << what;
                });
  // Rounding moves the outputs, by more than any float32 sum.
  CompareLayers(*backend, quantised, floats, recording,
                [](const std::vector<float>& output, const std::vector<float>& expected, const std::string& what) {
                  EXPECT_GT(RelativeNormError(output, expected), 1e-4) << what;
                });
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
  const float too_large = 1e30f;  // for a factor of float16
  out.data.replace(4 * 70, sizeof(too_large), reinterpret_cast<const char*>(&too_large), sizeof(too_large));
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true, kAllWeights);
  const auto refused = LoadModel(backend, "m", folder.path(), {.quantize_q8_0 = true}).status();
  ExpectError(refused, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
  EXPECT_THAT(std::string(refused.message()), testing::AllOf(HasSubstr("layer 1"), HasSubstr("matrix out")));
}

}  // namespace
}  // namespace gdn::quantized_model_test
