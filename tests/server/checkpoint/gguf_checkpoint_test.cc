#include "server/checkpoint/gguf_checkpoint.h"

#include <functional>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/gguf_writer.h"

namespace gdn::gguf_checkpoint_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of one linear block and one that is not, of the smallest dimensions; a test changes what is put in it.
struct SmallModel {
  struct Tensor {
    std::vector<int64_t> shape;
    GgmlType type = GgmlType::kF32;
    float value = -0.5f;
  };
  std::string architecture = "qwen35";
  std::map<std::string, uint32_t> ints = {{"block_count", 2},     {"embedding_length", 32},  {"ssm.state_size", 8},
                                          {"ssm.group_count", 2}, {"ssm.time_step_rank", 4}, {"ssm.inner_size", 48},
                                          {"ssm.conv_kernel", 4}};
  std::map<std::string, Tensor> tensors = {
      {"blk.0.attn_qkv.weight", {.shape = {80, 32}}},  {"blk.0.attn_gate.weight", {.shape = {48, 32}}},
      {"blk.0.ssm_alpha.weight", {.shape = {4, 32}}},  {"blk.0.ssm_beta.weight", {.shape = {4, 32}}},
      {"blk.0.ssm_conv1d.weight", {.shape = {80, 4}}}, {"blk.0.ssm_a", {.shape = {4}}},
      {"blk.0.ssm_dt.bias", {.shape = {4}}},           {"blk.0.ssm_norm.weight", {.shape = {12}}},
      {"blk.0.ssm_out.weight", {.shape = {32, 48}}},   {"blk.1.attn_q.weight", {.shape = {32, 32}}}};
  std::vector<bool> linear = {true, false};
  std::vector<int32_t> heads_kv;

  absl::StatusOr<Checkpoint> Read() {
    GgufWriter writer;
    writer.Text("general.architecture", architecture);
    for (const auto& [key, value] : ints) writer.Int(architecture + "." + key, value);
    writer.Float(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
    if (!linear.empty()) writer.Bools(architecture + ".attention.recurrent_layers", linear);
    if (!heads_kv.empty()) writer.Ints(architecture + ".attention.head_count_kv", heads_kv);
    for (const auto& [name, tensor] : tensors) {
      int64_t count = 1;
      for (const int64_t dim : tensor.shape) count *= dim;
      const std::vector<float> values(static_cast<size_t>(count), tensor.value);
      std::string data(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      const GgmlBlock block = *GgmlBlockOf(tensor.type);
      data.resize(static_cast<size_t>(count / block.elements * block.bytes), '\1');
      writer.Tensor(name, tensor.shape, tensor.type, data);
    }
    bytes = writer.Bytes();
    auto file = GgufFile::Parse(bytes);
    if (!file.ok()) return file.status();
    return ReadGguf(*std::move(file));
  }
  std::string bytes;
};

TEST(GgufCheckpoint, ReadsAQwen35Model) {
  SmallModel model;
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, model.Read());
  const LayerSpec& spec = checkpoint.config.spec;
  EXPECT_EQ(checkpoint.config.model_type, "qwen35");
  EXPECT_EQ(
      spec.dims,
      (LayerDims{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 12, .conv_width = 4, .hidden_size = 32}));
  EXPECT_EQ(spec.projections, ProjectionLayout::kFlat);
  EXPECT_EQ(spec.a_log, ALogConvention::kNegativeExp);
  EXPECT_EQ(spec.value_heads, ValueHeadOrder::kTiled);
  EXPECT_THAT(checkpoint.config.gdn_layers, ElementsAre(0));
  EXPECT_EQ(checkpoint.config.num_layers, 2);
}

// Its files are as qwen35's, and say nothing of the output gate.
TEST(GgufCheckpoint, Qwen4ExpHasASigmoidAndTiledHeadsAndIsNotVerified) {
  SmallModel model;
  model.architecture = "qwen4exp";
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, model.Read());
  EXPECT_EQ(checkpoint.config.spec.output_gate, GateActivation::kSigmoid);
  EXPECT_EQ(checkpoint.config.spec.value_heads, ValueHeadOrder::kTiled);
  EXPECT_FALSE(checkpoint.config.family->verified);
}

TEST(GgufCheckpoint, WithOneValueHeadAKeyHeadNothingIsTiled) {
  SmallModel model;
  model.ints["ssm.group_count"] = 4;
  model.tensors["blk.0.attn_qkv.weight"].shape = {112, 32};
  model.tensors["blk.0.ssm_conv1d.weight"].shape = {112, 4};
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, model.Read());
  EXPECT_EQ(checkpoint.config.spec.value_heads, ValueHeadOrder::kGrouped);
}

TEST(GgufCheckpoint, LayersFollowTheIntervalAndPredictionBlocksAreNone) {
  SmallModel model;
  model.linear = {};
  model.ints["full_attention_interval"] = 2;
  model.ints["block_count"] = 3;
  model.ints["nextn_predict_layers"] = 1;
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, model.Read());
  EXPECT_THAT(checkpoint.config.gdn_layers, ElementsAre(0));
  EXPECT_EQ(checkpoint.config.num_layers, 2);
}

TEST(GgufCheckpoint, ReadsBothFormsOfQwen3Next) {
  SmallModel model;
  model.architecture = "qwen3next";
  model.tensors.erase("blk.0.ssm_alpha.weight");
  model.tensors.erase("blk.0.ssm_beta.weight");
  model.tensors["blk.0.ssm_ba.weight"].shape = {8, 32};
  GDN_ASSERT_OK_AND_ASSIGN(const auto split, model.Read());
  EXPECT_EQ(split.config.spec.projections, ProjectionLayout::kFlatGroupedBa);
  EXPECT_EQ(split.config.spec.value_heads, ValueHeadOrder::kGrouped);

  model.tensors.erase("blk.0.attn_qkv.weight");
  model.tensors.erase("blk.0.attn_gate.weight");
  model.tensors["blk.0.ssm_in.weight"].shape = {128, 32};
  GDN_ASSERT_OK_AND_ASSIGN(const auto unsplit, model.Read());
  EXPECT_EQ(unsplit.config.spec.projections, ProjectionLayout::kInterleaved);
}

TEST(GgufCheckpoint, OllamasShortNameOfDtBiasIsReadForTheLongOne) {
  SmallModel model;
  model.tensors.erase("blk.0.ssm_dt.bias");
  model.tensors["blk.0.ssm_dt"].shape = {4};
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, model.Read());
  EXPECT_EQ(checkpoint.layers[0].tensors.at(LayerTensor::kDtBias).shape, (std::vector<int64_t>{4}));

  model.tensors["blk.0.ssm_dt"].shape = {5};
  const absl::Status shape = model.Read().status();
  ExpectError(shape, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape);
  EXPECT_THAT(std::string(shape.message()), AllOf(HasSubstr("'blk.0.ssm_dt'"), HasSubstr("expected [4]")));
}

// Files of Ollama's list the heads of the model's own blocks, not those of the blocks that predict tokens.
TEST(GgufCheckpoint, AListOfHeadsMayEndBeforeThePredictionBlocks) {
  SmallModel model;
  model.linear = {};
  model.heads_kv = {0, 2};
  model.ints["block_count"] = 3;
  model.ints["nextn_predict_layers"] = 1;
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, model.Read());
  EXPECT_THAT(checkpoint.config.gdn_layers, ElementsAre(0));
  model.heads_kv = {0};
  EXPECT_THAT(std::string(model.Read().status().message()),
              AllOf(HasSubstr("attention.head_count_kv"), HasSubstr("has 1 values"), HasSubstr("3 blocks")));
}

TEST(GgufCheckpoint, ATypeIsATensorsOwn) {
  SmallModel model;
  model.tensors["blk.0.attn_qkv.weight"].type = GgmlType::kQ8_0;
  model.tensors["blk.0.attn_gate.weight"].type = GgmlType::kQ4_0;
  model.tensors["blk.0.ssm_beta.weight"].type = GgmlType::kBF16;
  model.tensors["blk.0.ssm_dt.bias"].type = GgmlType::kF16;
  GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, model.Read());
  const auto& tensors = checkpoint.layers[0].tensors;
  EXPECT_EQ(tensors.at(LayerTensor::kInQkv).encoding, WeightFormat::kQ8_0);
  EXPECT_EQ(tensors.at(LayerTensor::kInZ).encoding, WeightFormat::kQ4_0);
  EXPECT_EQ(tensors.at(LayerTensor::kInB).encoding, WeightFormat::kBF16);
  EXPECT_EQ(tensors.at(LayerTensor::kDtBias).encoding, WeightFormat::kF16);
}

TEST(GgufCheckpoint, WhatCannotBeServedIsRefusedByName) {
  struct Case {
    std::function<void(SmallModel&)> change;
    std::vector<std::string> message;
  };
  const Case cases[] = {
      {[](SmallModel& m) { m.architecture = "llama"; }, {"general.architecture", "'llama'", "qwen35moe"}},
      {[](SmallModel& m) { m.architecture = "kimi-k2"; }, {"general.architecture", "'kimi-k2'"}},
      {[](SmallModel& m) { m.ints.erase("ssm.state_size"); }, {"'qwen35.ssm.state_size' is missing"}},
      {[](SmallModel& m) { m.ints["ssm.state_size"] = 0; }, {"qwen35.ssm.state_size", "is 0"}},
      {[](SmallModel& m) { m.ints["ssm.inner_size"] = 49; }, {"ssm.inner_size", "49", "multiple"}},
      {[](SmallModel& m) { m.ints["ssm.time_step_rank"] = 3; }, {"3"}},
      {[](SmallModel& m) { m.linear = {true}; }, {"recurrent_layers", "has 1 values", "2 blocks"}},
      {[](SmallModel& m) {
         m.linear = {false, false};
       },
       {"recurrent_layers", "no Gated DeltaNet layer"}},
      {[](SmallModel& m) { m.tensors.erase("blk.0.ssm_out.weight"); },
       {"'blk.0.ssm_out.weight' is missing", "[32, 48]"}},
      {[](SmallModel& m) { m.tensors["blk.0.ssm_norm.weight"].shape = {8}; },
       {"'blk.0.ssm_norm.weight'", "[8]", "expected [12]"}},
      {[](SmallModel& m) { m.tensors["blk.0.attn_qkv.weight"].type = GgmlType::kQ8_1; },
       {"'blk.0.attn_qkv.weight'", "Q8_1", "Q8_0, Q4_0, Q4_1", "IQ4_NL, IQ4_XS or IQ3_S"}},
      // Blocks of 256 weights, in rows of 32.
      {[](SmallModel& m) { m.tensors["blk.0.attn_qkv.weight"].type = GgmlType::kIQ4_XS; },
       {"'blk.0.attn_qkv.weight'", "IQ4_XS"}},
      {[](SmallModel& m) { m.tensors["blk.0.ssm_a"].value = 0.5f; }, {"'blk.0.ssm_a'", "0.5", "-exp(A_log)"}},
      {[](SmallModel& m) { m.tensors["blk.0.ssm_conv1d.bias"].shape = {80}; }, {"'blk.0.ssm_conv1d.bias'", "qwen35"}},
      {[](SmallModel& m) {
         m.tensors["blk.0.ssm_ba.weight"].shape = {8, 32};
       },
       {"'blk.0.ssm_ba.weight'"}},
      {[](SmallModel& m) { m.tensors["blk.0.ssm_dt"].shape = {4}; }, {"'blk.0.ssm_dt'", "'blk.0.ssm_dt.bias'"}},
      {[](SmallModel& m) { m.tensors["blk.1.ssm_a"].shape = {4}; },
       {"'blk.1.ssm_a'", "by the file's keys its block is not linear"}},
  };
  for (const Case& c : cases) {
    SmallModel model;
    c.change(model);
    const absl::Status status = model.Read().status();
    EXPECT_FALSE(status.ok()) << c.message[0];
    for (const std::string& part : c.message) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace gdn::gguf_checkpoint_test
