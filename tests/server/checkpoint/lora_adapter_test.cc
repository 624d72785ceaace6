// LoRA adapters: merged weights are those of W + scale B A in double, and adapters that are no such pairs are refused
// by name.
#include "server/checkpoint/lora_adapter.h"

#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/random.h"

namespace gdn::lora_adapter_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRank = 3;
constexpr char kLayer[] = "base_model.model.model.layers.1.linear_attn.";
constexpr double kOneRounding = 1.0 / (1 << 24);  // of float32, relative

// An adapter in memory, and the model that it is for.
struct TestAdapter {
  TestCheckpoint model = TestCheckpoint::Golden("qwen3_5_1");
  TestCheckpoint adapter;  // its config is adapter_config.json
  Random random{5};

  TestAdapter() {
    adapter.config = {{"peft_type", "LORA"},
                      {"r", kRank},
                      {"lora_alpha", 12},
                      {"target_modules", {"in_proj_qkv", "out_proj", "q_proj"}},
                      {"bias", "none"},
                      {"fan_in_fan_out", false},
                      {"use_dora", false},
                      {"use_rslora", false},
                      {"alpha_pattern", nlohmann::json::object()},
                      {"modules_to_save", {"lm_head"}}};
    Add("in_proj_qkv", 256, 64);
    Add("out_proj", 64, 128);
    // These parts are not served.
    adapter.tensors["base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"] = Matrix({kRank, 64});
    adapter.tensors["base_model.model.model.layers.1.mlp.gate_proj.lora_B.weight"] = Matrix({128, kRank});
    adapter.tensors["base_model.model.lm_head.weight"] = Matrix({8, 64});
  }
  TestTensor Matrix(std::vector<int64_t> shape) {
    const std::vector<float> values = random.Normal(shape[0] * shape[1], 0.1f);
    return {.dtype = DType::kF32,
            .shape = std::move(shape),
            .data = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}};
  }
  void Add(const std::string& projection, int64_t out, int64_t in, int64_t rank = kRank) {
    (*this)[projection + ".lora_A.weight"] = Matrix({rank, in});
    (*this)[projection + ".lora_B.weight"] = Matrix({out, rank});
  }
  TestTensor& operator[](const std::string& tensor) { return adapter.tensors[kLayer + tensor]; }
  std::vector<float> Of(const std::string& tensor) { return (*this)[tensor].Floats(); }

  void Write(const std::string& folder) const {
    adapter.Write(folder);
    WriteFile(folder + "/adapter_config.json", adapter.config.dump());
    WriteFile(folder + "/adapter_model.safetensors", ReadFile(folder + "/model.safetensors"));
  }
};

// A model's second layer with the adapter in it.
struct Merged {
  Checkpoint checkpoint;
  MadeLayer layer;
  std::map<LayerTensor, std::vector<float>> values;
};

absl::StatusOr<Merged> Merge(const TestAdapter& test) {
  TempFolder model, adapter;
  test.model.Write(model.path());
  test.Write(adapter.path());
  auto checkpoint = OpenCheckpoint(model.path());
  if (!checkpoint.ok()) return checkpoint.status();
  Merged merged;
  merged.checkpoint = *std::move(checkpoint);
  const auto opened = OpenLoraAdapter(adapter.path(), merged.checkpoint.config);
  if (!opened.ok()) return opened.status();
  merged.layer = MergeAdapter(*opened, merged.checkpoint.layers.at(1));
  for (const auto& [tensor, stored] : merged.layer.tensors.tensors) {
    std::vector<float>& values = merged.values[tensor];
    values.resize(static_cast<size_t>(stored.ElementCount()));
    DecodeTensor(stored, values.data());
  }
  return merged;
}

void ExpectSum(const std::vector<float>& merged, const std::vector<float>& base, const std::vector<float>& a,
               const std::vector<float>& b, double scale, int64_t rank = kRank) {
  const auto rows = static_cast<int64_t>(b.size()) / rank;
  const auto cols = static_cast<int64_t>(a.size()) / rank;
  ASSERT_EQ(merged.size(), base.size());
  ASSERT_EQ(static_cast<int64_t>(base.size()), rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    double sum = 0.0;
    for (int64_t k = 0; k < rank; ++k) {
      sum += static_cast<double>(b[static_cast<size_t>(i / cols * rank + k)]) *
             a[static_cast<size_t>(k * cols + i % cols)];
    }
    const double expected = base[static_cast<size_t>(i)] + scale * sum;
    ASSERT_NEAR(merged[static_cast<size_t>(i)], expected, kOneRounding * std::abs(expected) + 1e-15) << i;
  }
}

TEST(LoraAdapter, IsMergedIntoItsProjectionsAndIntoNoOthers) {
  TestAdapter test;
  GDN_ASSERT_OK_AND_ASSIGN(const Merged merged, Merge(test));
  const auto base = [&](const std::string& name) {
    return test.model.tensors.at("model.layers.1.linear_attn." + name).Floats();
  };
  ExpectSum(merged.values.at(LayerTensor::kInQkv), base("in_proj_qkv.weight"), test.Of("in_proj_qkv.lora_A.weight"),
            test.Of("in_proj_qkv.lora_B.weight"), 12.0 / kRank);
  ExpectSum(merged.values.at(LayerTensor::kOut), base("out_proj.weight"), test.Of("out_proj.lora_A.weight"),
            test.Of("out_proj.lora_B.weight"), 12.0 / kRank);
  EXPECT_EQ(merged.values.at(LayerTensor::kInZ), base("in_proj_z.weight"));
  EXPECT_EQ(merged.values.at(LayerTensor::kALog), base("A_log"));
  EXPECT_EQ(merged.layer.made.size(), 2u);
  EXPECT_FALSE(merged.layer.tensors.tensors.at(LayerTensor::kOut).widened);
}

TEST(LoraAdapter, RsLoraDividesByTheRootOfTheRank) {
  TestAdapter test;
  test.adapter.config["use_rslora"] = true;
  GDN_ASSERT_OK_AND_ASSIGN(const Merged merged, Merge(test));
  ExpectSum(merged.values.at(LayerTensor::kOut),
            test.model.tensors.at("model.layers.1.linear_attn.out_proj.weight").Floats(),
            test.Of("out_proj.lora_A.weight"), test.Of("out_proj.lora_B.weight"), 12.0 / std::sqrt(kRank));
}

TEST(LoraAdapter, ARankPatternGivesAPairAnotherRank) {
  TestAdapter test;
  test.Add("out_proj", 64, 128, /*rank=*/5);
  EXPECT_THAT(std::string(Merge(test).status().message()), HasSubstr("expected [3, 128]"));
  test.adapter.config["rank_pattern"] = {{"out_proj", 5}};
  GDN_ASSERT_OK_AND_ASSIGN(const Merged merged, Merge(test));
  ExpectSum(merged.values.at(LayerTensor::kOut),
            test.model.tensors.at("model.layers.1.linear_attn.out_proj.weight").Floats(),
            test.Of("out_proj.lora_A.weight"), test.Of("out_proj.lora_B.weight"), 12.0 / 5, 5);
}

TEST(LoraAdapter, QuantisedWeightsAreWidenedForIt) {
  TestAdapter test;
  test.model = TestCheckpoint::Golden("fp8_qwen3_5_1");
  test.adapter.tensors.clear();
  test.Add("out_proj", 192, 256);
  GDN_ASSERT_OK_AND_ASSIGN(const Merged merged, Merge(test));
  const StoredTensor& stored = merged.checkpoint.layers.at(1).tensors.at(LayerTensor::kOut);
  std::vector<float> base(static_cast<size_t>(stored.ElementCount()));
  DecodeTensor(stored, base.data());
  ExpectSum(merged.values.at(LayerTensor::kOut), base, test.Of("out_proj.lora_A.weight"),
            test.Of("out_proj.lora_B.weight"), 12.0 / kRank);
  EXPECT_TRUE(merged.layer.tensors.tensors.at(LayerTensor::kOut).widened);
  EXPECT_EQ(merged.layer.tensors.tensors.at(LayerTensor::kInZ).encoding, WeightFormat::kF8E4M3);
}

TEST(LoraAdapter, NamesOfAModelBelowALanguageModelAreTaken) {
  TestAdapter test;
  test.adapter.RenamePrefix("base_model.model.model.layers.", "base_model.model.model.language_model.layers.");
  GDN_ASSERT_OK_AND_ASSIGN(const Merged merged, Merge(test));
  EXPECT_EQ(merged.layer.made.size(), 2u);
}

TEST(LoraAdapter, WhatCannotBeMergedIsRefusedByName) {
  struct Case {
    std::string what;
    std::function<void(TestAdapter&)> change;
    std::vector<std::string> message;
  };
  const auto config = [](const char* field, nlohmann::json value) {
    return [field, value](TestAdapter& t) { t.adapter.config[field] = value; };
  };
  const Case cases[] = {
      {"another kind", config("peft_type", "IA3"), {"adapter_config.json", "peft_type", "IA3", "\"LORA\""}},
      {"DoRA", config("use_dora", true), {"use_dora", "merge this one into its model with PEFT"}},
      {"transposed", config("fan_in_fan_out", true), {"fan_in_fan_out"}},
      {"alphas of modules", config("alpha_pattern", {{"out_proj", 5}}), {"alpha_pattern"}},
      {"aLoRA", config("alora_invocation_tokens", {1, 2}), {"alora_invocation_tokens"}},
      {"biases", config("bias", "lora_only"), {"bias", "\"none\""}},
      {"PiSSA", config("init_lora_weights", "pissa_niter_4"), {"init_lora_weights", "pissa_niter_4"}},
      {"no rank", config("r", 0), {"'r'", "0"}},
      {"no alpha", config("lora_alpha", nullptr), {"lora_alpha"}},
      {"a convolution",
       [](TestAdapter& t) {
         t["conv1d.lora_A.weight"] = t.Matrix({kRank, 4});
       },
       {"adapter_model.safetensors", "conv1d.lora_A.weight'", "in- and out-projections alone"}},
      {"a saved module",
       [](TestAdapter& t) {
         t["A_log"] = t.Matrix({1, 4});
       },
       {"linear_attn.A_log'", "PEFT"}},
      {"a magnitude",
       [](TestAdapter& t) {
         t["out_proj.lora_magnitude_vector"] = t.Matrix({1, 64});
       },
       {"out_proj.lora_magnitude_vector'"}},
      {"a projection of another family",
       [](TestAdapter& t) { t.Add("in_proj_qkvz", 384, 64); },
       {"in_proj_qkvz.lora_A.weight'", "qwen3_5"}},
      {"half a pair",
       [](TestAdapter& t) { t.adapter.tensors.erase(std::string(kLayer) + "out_proj.lora_B.weight"); },
       {"out_proj.lora_A.weight'", "other half"}},
      {"another shape",
       [](TestAdapter& t) {
         t["out_proj.lora_B.weight"] = t.Matrix({65, kRank});
       },
       {"out_proj.lora_B.weight'", "[65, 3]", "expected [64, 3]"}},
      {"a layer of attention",
       [](TestAdapter& t) {
         t.adapter.tensors["base_model.model.model.layers.3.linear_attn.out_proj.lora_A.weight"] = t.Matrix({3, 128});
       },
       {"layers.3.linear_attn", "layer 3"}},
      {"no number",
       [](TestAdapter& t) {
         t["out_proj.lora_A.weight"] = TestTensor::Filled(DType::kF32, {3, 128}, NAN);
       },
       {"out_proj.lora_A.weight'", "no number"}},
  };
  for (const Case& c : cases) {
    TestAdapter test;
    c.change(test);
    const absl::Status status = Merge(test).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what << ": " << status;
    for (const std::string& part : c.message) EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << c.what;
  }
}

TEST(LoraAdapter, AFolderWithoutItsFilesIsRefusedByPath) {
  GDN_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, OpenCheckpoint(GoldenFolder("qwen3_5_1")));
  TempFolder folder;
  const absl::Status status = OpenLoraAdapter(folder.path(), checkpoint.config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path() + "/adapter_config.json"));
}

}  // namespace
}  // namespace gdn::lora_adapter_test
