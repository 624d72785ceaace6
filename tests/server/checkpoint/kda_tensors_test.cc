// The tensors of KDA layers: their names, the forms that their files have, and what attention layers beside them have.
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::kda_tensors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<Checkpoint> Opened(const TestCheckpoint& checkpoint) {
  TempFolder folder;
  checkpoint.Write(folder.path());
  return OpenCheckpoint(folder.path());
}

std::string OpenedError(const TestCheckpoint& checkpoint) {
  const auto opened = Opened(checkpoint);
  EXPECT_FALSE(opened.ok());
  return std::string(opened.status().message());
}

struct Family {
  const char* golden;
  std::string module;  // of layer 1
  std::vector<std::string> tensors;
};

const std::vector<Family>& Families() {
  static const auto* const kFamilies = new std::vector<Family>{
      {"kimi_linear_1",
       "model.layers.1.self_attn.",
       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_a_proj.weight", "g_b_proj.weight", "b_proj.weight",
        "f_a_proj.weight", "f_b_proj.weight", "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight", "A_log",
        "dt_bias", "o_norm.weight", "o_proj.weight"}},
      {"glm5_next_1",
       "model.language_model.layers.1.self_attn.",
       {"q_proj.weight", "g_a_proj.weight", "g_b_proj.weight", "f_a_proj.weight", "f_b_proj.weight", "A_log", "dt_bias",
        "o_norm.weight", "o_proj.weight"}},
      {"bailing_hybrid_1",
       "model.layers.1.attention.",
       {"q_proj.weight", "g_proj.weight", "f_proj.weight", "v_conv1d.weight", "A_log", "dt_bias", "o_norm.weight",
        "dense.weight"}}};
  return *kFamilies;
}

// [n d, D] and so on; layer 1 of 3 heads of 32.
TEST(KdaTensors, AreFoundWithTheShapesThatTheSpecHas) {
  for (const Family& family : Families()) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Opened(TestCheckpoint::Golden(family.golden)));
    ASSERT_EQ(checkpoint.layers.size(), 2u) << family.golden;
    for (const auto& [tensor, stored] : checkpoint.layers[1].tensors) {
      EXPECT_EQ(stored.shape, LayerTensorShape(tensor, checkpoint.config.spec)) << family.golden;
    }
    const LayerTensors& layer = checkpoint.layers[1];
    EXPECT_EQ(layer.tensors.at(LayerTensor::kALog).shape, std::vector<int64_t>{3});
    EXPECT_EQ(layer.tensors.at(LayerTensor::kDtBias).shape, std::vector<int64_t>{96});
    const bool low_rank = checkpoint.config.spec.decay_rank > 0;
    EXPECT_EQ(layer.tensors.count(LayerTensor::kAUp), low_rank ? 1u : 0u);
    EXPECT_EQ(layer.tensors.at(LayerTensor::kInA).shape, (std::vector<int64_t>{low_rank ? 32 : 96, 64}));
  }
}

TEST(KdaTensors, EachMissingOrMisshapenTensorIsNamed) {
  for (const Family& family : Families()) {
    for (const std::string& tensor : family.tensors) {
      const std::string name = family.module + tensor;
      TestCheckpoint checkpoint = TestCheckpoint::Golden(family.golden);
      ASSERT_EQ(checkpoint.tensors.count(name), 1u) << name;
      std::vector<int64_t> shape = checkpoint.tensors.at(name).shape;
      *std::max_element(shape.begin(), shape.end()) += 1;
      checkpoint.tensors[name] = TestTensor::Filled(DType::kF32, shape, 0.0f);
      EXPECT_THAT(OpenedError(checkpoint),
                  AllOf(HasSubstr("'" + name + "'"), HasSubstr(ShapeToString(shape)), HasSubstr("expected [")));
      checkpoint.tensors.erase(name);
      EXPECT_THAT(OpenedError(checkpoint), AllOf(HasSubstr("'" + name + "'"), HasSubstr("is missing")));
    }
  }
}

std::vector<float> Values(const Checkpoint& checkpoint, LayerTensor tensor) {
  const StoredTensor& stored = checkpoint.layers[1].tensors.at(tensor);
  std::vector<float> values(static_cast<size_t>(stored.ElementCount()));
  DecodeTensor(stored, values.data());
  return values;
}

TEST(KdaTensors, KernelsAndALogMayHaveMoreOrFewerDimensionsOfOne) {
  for (const Family& family : Families()) {
    TestCheckpoint other = TestCheckpoint::Golden(family.golden);
    GDN_ASSERT_OK_AND_ASSIGN(const auto as_it_is, Opened(other));
    for (const char* kernel : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      other.tensors.at(family.module + kernel).shape = {96, 4};
    }
    std::vector<int64_t>& a_log = other.tensors.at(family.module + "A_log").shape;
    a_log = a_log.size() == 1 ? std::vector<int64_t>{1, 1, 3, 1} : std::vector<int64_t>{3};
    GDN_ASSERT_OK_AND_ASSIGN(const auto reshaped, Opened(other));
    for (const LayerTensor tensor : {LayerTensor::kConvQ, LayerTensor::kConvV, LayerTensor::kALog}) {
      EXPECT_EQ(Values(reshaped, tensor), Values(as_it_is, tensor)) << family.golden;
      EXPECT_EQ(reshaped.layers[1].tensors.at(tensor).shape, as_it_is.layers[1].tensors.at(tensor).shape);
    }
    other.tensors.at(family.module + "q_conv1d.weight").shape = {4, 96};
    EXPECT_THAT(OpenedError(other), AllOf(HasSubstr("q_conv1d.weight"), HasSubstr("[4, 96]")));
  }
}

TEST(KdaTensors, WhatALayerDoesNotHaveIsRefused) {
  for (const Family& family : Families()) {
    for (const char* extra : {"q_proj.bias", "kv_b_proj.weight", "q_conv1d.bias", "o_proj.weight_scale"}) {
      TestCheckpoint checkpoint = TestCheckpoint::Golden(family.golden);
      checkpoint.tensors[family.module + extra] = TestTensor::Filled(DType::kF32, {4}, 0.0f);
      EXPECT_THAT(OpenedError(checkpoint), HasSubstr("'" + family.module + extra + "'"));
    }
  }
}

// Attention layers have a module of the same name: all but A_log there is theirs.
TEST(KdaTensors, AttentionLayersAreTheirOwnMatterUnlessTheyHaveADecay) {
  for (const Family& family : Families()) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden(family.golden);
    std::string module = family.module;
    module.replace(module.find(".1."), 3, ".2.");
    checkpoint.tensors[module + "indexer.weight_packed"] = TestTensor::Filled(DType::kF32, {4}, 0.0f);
    EXPECT_TRUE(Opened(checkpoint).ok()) << Opened(checkpoint).status();
    checkpoint.tensors[module + "A_log"] = TestTensor::Filled(DType::kF32, {3}, 0.0f);
    EXPECT_THAT(OpenedError(checkpoint),
                AllOf(HasSubstr("'" + module + "A_log'"), HasSubstr("not a linear_attention layer by the config")));
  }
}

TEST(KdaTensors, BailingsHeadDimIsThatOfTheNormWhereTheConfigMayMeanAnother) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("bailing_hybrid_1");
  checkpoint.config["head_dim"] = 8;  // as transformers writes it, and then without linear_head_dim
  GDN_ASSERT_OK_AND_ASSIGN(const auto opened, Opened(checkpoint));
  EXPECT_EQ(opened.config.spec.dims.key_dim, 32);
  EXPECT_EQ(opened.config.spec.dims.value_dim, 32);
  // Said beyond doubt, it is believed, and the tensors disagree.
  checkpoint.config["linear_head_dim"] = 8;
  EXPECT_THAT(OpenedError(checkpoint), AllOf(HasSubstr("[96, 64]"), HasSubstr("expected [24, 64]")));
}

// A stand-in for K3, whose form only llama.cpp's converter tells: another prefix, g of full rank, spare A_logs.
TEST(KdaTensors, KimiK3sAreFoundByItsOwnPrefixWithSpareDecays) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("kimi_linear_1");
  checkpoint.config["num_attention_heads"] = 3;
  checkpoint.config["linear_attn_config"]["gate_lower_bound"] = -5.0;
  checkpoint.config = {{"model_type", "kimi_k3"}, {"text_config", checkpoint.config}};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string module = StrCat("model.layers.", layer, ".self_attn.");
    checkpoint.tensors.erase(module + "g_a_proj.weight");
    checkpoint.tensors.erase(module + "g_b_proj.weight");
    checkpoint.tensors[module + "g_proj.weight"] = TestTensor::Filled(DType::kF32, {96, 64}, 0.5f);
    const std::vector<float> decays = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f};
    TestTensor& a_log = checkpoint.tensors.at(module + "A_log");
    a_log = TestTensor::Filled(DType::kF32, {5}, 0.0f);
    a_log.data.assign(reinterpret_cast<const char*>(decays.data()), decays.size() * sizeof(float));
  }
  checkpoint.RenamePrefix("model.", "language_model.model.");
  TempFolder folder;
  checkpoint.Write(folder.path());
  GDN_ASSERT_OK_AND_ASSIGN(const auto opened, OpenCheckpoint(folder.path()));
  EXPECT_EQ(opened.config.family->name, "kimi_k3");
  EXPECT_EQ(Values(opened, LayerTensor::kALog), (std::vector<float>{1.0f, 2.0f, 3.0f}));
  EXPECT_EQ(opened.layers[1].tensors.count(LayerTensor::kZUp), 0u);
  // No other family's A_log may be too long.
  TestCheckpoint kimi = TestCheckpoint::Golden("kimi_linear_1");
  kimi.tensors.at("model.layers.1.self_attn.A_log") = TestTensor::Filled(DType::kF32, {5}, 0.0f);
  EXPECT_THAT(OpenedError(kimi), AllOf(HasSubstr("A_log"), HasSubstr("[5]"), HasSubstr("expected [3]")));
}

}  // namespace
}  // namespace gdn::kda_tensors_test
