#include "server/checkpoint/layer_tensors.h"

#include <functional>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::layer_tensors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Writes the checkpoint and looks its tensors up.
absl::Status Find(const TestCheckpoint& checkpoint) {
  TempFolder folder;
  checkpoint.Write(folder.path());
  const auto config = ParseModelConfig(checkpoint.config.dump());
  if (!config.ok()) return config.status();
  auto files = CheckpointFiles::Open(folder.path());
  if (!files.ok()) return files.status();
  return FindLayerTensors(*config, *files).status();
}

const std::vector<std::pair<std::string, std::vector<std::string>>>& TensorsOfFamilies() {
  static const auto* const kTensors = new std::vector<std::pair<std::string, std::vector<std::string>>>{
      {"qwen3_next_5",
       {"in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "A_log", "dt_bias", "norm.weight",
        "out_proj.weight"}},
      {"qwen3_5_5",
       {"in_proj_qkv.weight", "in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight", "conv1d.weight", "A_log",
        "dt_bias", "norm.weight", "out_proj.weight"}}};
  return *kTensors;
}

TEST(LayerTensors, EachMissingTensorIsNamed) {
  for (const auto& [golden, names] : TensorsOfFamilies()) {
    for (const std::string& tensor : names) {
      TestCheckpoint checkpoint = TestCheckpoint::Golden(golden);
      const std::string name = "model.layers.1.linear_attn." + tensor;
      ASSERT_EQ(checkpoint.tensors.erase(name), 1u) << name;
      const absl::Status status = Find(checkpoint);
      EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << name;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'" + name + "'"), HasSubstr("expected shape")));
      EXPECT_EQ(ErrorMetadata(status)["tensor"], name);
    }
  }
}

TEST(LayerTensors, EachWrongShapeIsNamedWithWhatWasFoundAndExpected) {
  for (const auto& [golden, names] : TensorsOfFamilies()) {
    for (const std::string& tensor : names) {
      TestCheckpoint checkpoint = TestCheckpoint::Golden(golden);
      const std::string name = "model.layers.2.linear_attn." + tensor;
      std::vector<int64_t> shape = checkpoint.tensors.at(name).shape;
      const std::string expected = ShapeToString(shape);
      shape[0] += 1;
      checkpoint.tensors[name] = TestTensor::Filled(DType::kF32, shape, 0.0f);
      const absl::Status status = Find(checkpoint);
      ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape, name);
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'" + name + "'"), HasSubstr(ShapeToString(shape)),
                                                       HasSubstr("expected " + expected)));
    }
  }
}

TEST(LayerTensors, ATransposedProjectionIsRefused) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_5");
  TestTensor& out = checkpoint.tensors.at("model.layers.0.linear_attn.out_proj.weight");
  std::swap(out.shape[0], out.shape[1]);
  EXPECT_EQ(ErrorReason(Find(checkpoint)), reason::kInvalidTensorShape);
}

TEST(LayerTensors, TheOtherFamilysLayoutIsRefused) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  checkpoint.config["model_type"] = "qwen3_next";
  const absl::Status status = Find(checkpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("in_proj_qkvz.weight"), HasSubstr("qwen3_next")));
}

TEST(LayerTensors, TensorsThatWouldChangeTheResultAreNotPassedOver) {
  for (const char* extra : {"conv1d.bias", "in_proj_qkvz.weight_scale_inv", "out_proj.bias", "q_norm.weight"}) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
    const std::string name = StrCat("model.layers.1.linear_attn.", std::string(extra));
    checkpoint.tensors[name] = TestTensor::Filled(DType::kF32, {4}, 0.0f);
    const absl::Status status = Find(checkpoint);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << extra;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + name + "'"));
  }
}

// Which tensors are quantised is seen at the tensors, whatever the config says of them.
TEST(LayerTensors, Fp8TensorsWithBlockScalesAreFound) {
  for (const char* golden : {"fp8_qwen3_next_1", "fp8_qwen3_5_1"}) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden(golden);
    EXPECT_TRUE(Find(checkpoint).ok()) << Find(checkpoint);
    checkpoint.config.erase("quantization_config");
    EXPECT_TRUE(Find(checkpoint).ok()) << Find(checkpoint);
  }
}

TEST(LayerTensors, Fp8TensorsThatAreNotWholeAreRefusedByName) {
  const std::string prefix = "model.layers.1.linear_attn.";
  struct Case {
    std::string what;
    std::function<void(TestCheckpoint&)> damage;
    std::vector<std::string> message;
  };
  const auto scale = [prefix](TestCheckpoint& c) -> TestTensor& {
    return c.tensors.at(prefix + "out_proj.weight_scale_inv");
  };
  const Case cases[] = {
      {"no scale",
       [&](TestCheckpoint& c) { c.tensors.erase(prefix + "out_proj.weight_scale_inv"); },
       {"'" + prefix + "out_proj.weight'", "F8_E4M3", "out_proj.weight_scale_inv", "[2, 2]"}},
      {"a scale of a tensor",
       [&](TestCheckpoint& c) { scale(c) = TestTensor::Filled(DType::kF32, {1}, 1.0f); },
       {"out_proj.weight_scale_inv'", "[1]", "expected [2, 2]"}},
      {"a scale a row",
       [&](TestCheckpoint& c) {
         scale(c) = TestTensor::Filled(DType::kF32, {192, 1}, 1.0f);
       },
       {"out_proj.weight_scale_inv'", "[192, 1]", "expected [2, 2]"}},
      {"scales of eight bits",
       [&](TestCheckpoint& c) {
         scale(c) = {.shape = {2, 2}, .data = std::string(4, '\x40'), .other_dtype = "F8_E8M0"};
       },
       {"out_proj.weight_scale_inv", "F8_E8M0"}},
      {"a scale beside a plain weight",
       [&](TestCheckpoint& c) {
         c.tensors.at(prefix + "out_proj.weight") = TestTensor::Filled(DType::kBF16, {192, 192}, 1.0f);
       },
       {"out_proj.weight_scale_inv'", "is not part of a qwen3_next layer"}},
      {"a quantised convolution",
       [&](TestCheckpoint& c) {
         c.tensors.at(prefix + "conv1d.weight") = {
             .shape = {320, 1, 4}, .data = std::string(1280, '\x38'), .other_dtype = "F8_E4M3"};
       },
       {"conv1d.weight'", "only matrices"}},
      {"the other eight bits",
       [&](TestCheckpoint& c) { c.tensors.at(prefix + "out_proj.weight").other_dtype = "F8_E5M2"; },
       {"out_proj.weight", "F8_E5M2"}},
  };
  for (const Case& c : cases) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden("fp8_qwen3_next_1");
    c.damage(checkpoint);
    const absl::Status status = Find(checkpoint);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what << ": " << status;
    for (const std::string& part : c.message) EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << c.what;
  }
}

TEST(LayerTensors, OtherFormatsOfQuantisedWeightsAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"out_proj.weight_packed", "NVFP4"},       {"out_proj.weight_scale", "compressed-tensors"},
      {"out_proj.input_scale", "ModelOpt"},      {"out_proj.weight_scale_2", "ModelOpt NVFP4"},
      {"out_proj.weight_global_scale", "NVFP4"}, {"out_proj.qweight", "GPTQ"},
      {"out_proj.weight.absmax", "bitsandbytes"}};
  for (const auto& [tensor, format] : cases) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
    const std::string name = StrCat("model.layers.1.linear_attn.", std::string(tensor));
    checkpoint.tensors[name] = TestTensor::Filled(DType::kF32, {1}, 1.0f);
    const absl::Status status = Find(checkpoint);
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, tensor);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'" + name + "'"), HasSubstr(format)));
  }
}

// A packed tensor stands in for the weight. The error must name its format: a missing name alone would help little.
TEST(LayerTensors, AWeightThatIsPackedIsRefusedAsMissingOrByItsFormat) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
  const std::string name = "model.layers.0.linear_attn.out_proj.weight";
  checkpoint.tensors.erase(name);
  checkpoint.tensors[name + "_packed"] = {.shape = {64, 64}, .data = std::string(4096, 'x'), .other_dtype = "U8"};
  EXPECT_THAT(std::string(Find(checkpoint).message()), HasSubstr("NVFP4"));
}

TEST(LayerTensors, ALayerThatTheConfigCallsFullAttentionMayHaveNone) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
  checkpoint.config["layer_types"][1] = "full_attention";
  const absl::Status status = Find(checkpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("model.layers.1.linear_attn."), HasSubstr("layer 1")));
}

TEST(LayerTensors, OnlyTheTwoKnownPrefixesAreAccepted) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  checkpoint.RenamePrefix("model.", "");
  const absl::Status status = Find(checkpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("neither"), HasSubstr("'model.layers.'"), HasSubstr("'model.language_model.layers.'")));
}

TEST(LayerTensors, BothPrefixesAtOnceAreRefused) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  checkpoint.tensors["model.language_model.layers.0.linear_attn.A_log"] = TestTensor::Filled(DType::kF32, {4}, 0.0f);
  EXPECT_THAT(std::string(Find(checkpoint).message()), HasSubstr("both"));
}

TEST(LayerTensors, PredictionLayersAndOtherModulesAreIgnored) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
  const TestTensor tensor = TestTensor::Filled(DType::kF32, {3}, 0.0f);
  checkpoint.tensors["mtp.layers.0.linear_attn.conv1d.bias"] = tensor;
  checkpoint.tensors["mtp.fc.weight"] = tensor;
  checkpoint.tensors["model.visual.blocks.0.attn.qkv.weight"] = tensor;
  EXPECT_TRUE(Find(checkpoint).ok()) << Find(checkpoint);
}

}  // namespace
}  // namespace gdn::layer_tensors_test
