// Some changes of a checkpoint or an option change a model's fingerprint, and others do not.
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/loaded_model.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/host_memory_backend.h"

namespace gdn::model_fingerprint_test {
namespace {

std::string Fingerprint(const std::string& folder, bool unified_memory = true) {
  HostMemoryBackend backend(unified_memory);
  const auto model = LoadModel(backend, "m", folder);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? model->fingerprint() : "";
}

std::string Fingerprint(const TestCheckpoint& checkpoint) {
  TempFolder folder;
  checkpoint.Write(folder.path());
  return Fingerprint(folder.path());
}

TEST(ModelFingerprint, IsTheSameHoweverTheCheckpointIsStored) {
  const TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_5");
  const std::string expected = Fingerprint(GoldenFolder("qwen3_5_5"));
  EXPECT_EQ(Fingerprint(GoldenFolder("qwen3_5_5")), expected);
  EXPECT_EQ(Fingerprint(GoldenFolder("qwen3_5_5"), /*unified_memory=*/false), expected);
  EXPECT_EQ(Fingerprint(checkpoint), expected);
  for (const int shards : {1, 2, 5}) {
    TempFolder folder;
    checkpoint.WriteSharded(folder.path(), shards);
    EXPECT_EQ(Fingerprint(folder.path()), expected) << shards;
  }
}

TEST(ModelFingerprint, DoesNotDependOnWhatLayersDoNotUse) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  const std::string expected = Fingerprint(checkpoint);
  checkpoint.tensors.at("lm_head.weight").data[0] ^= 1;
  checkpoint.tensors["mtp.fc.weight"] = TestTensor::Filled(DType::kF32, {1}, 0.0f);
  checkpoint.config["vocab_size"] = 7;
  EXPECT_EQ(Fingerprint(checkpoint), expected);
}

TEST(ModelFingerprint, ChangesWithEveryTensorAndConfigField) {
  const TestCheckpoint original = TestCheckpoint::Golden("qwen3_5_1");
  std::set<std::string> seen = {Fingerprint(original)};
  for (const auto& [name, tensor] : original.tensors) {
    if (name.find(".linear_attn.") == std::string::npos) continue;
    TestCheckpoint changed = original;
    changed.tensors.at(name).data.back() ^= 1;  // one bit of the last element
    EXPECT_TRUE(seen.insert(Fingerprint(changed)).second) << name;
  }
  TestCheckpoint epsilon = original;
  epsilon.config["rms_norm_eps"] = 1e-5;
  EXPECT_TRUE(seen.insert(Fingerprint(epsilon)).second);

  TestCheckpoint swapped = original;
  std::swap(swapped.tensors.at("model.layers.0.linear_attn.A_log"),
            swapped.tensors.at("model.layers.1.linear_attn.A_log"));
  EXPECT_TRUE(seen.insert(Fingerprint(swapped)).second);

  TestCheckpoint half = original;
  half.ConvertTo(DType::kBF16);
  EXPECT_TRUE(seen.insert(Fingerprint(half)).second);
}

// State files, tiers and engines know a model by it: another release of the server must find the same.
TEST(ModelFingerprint, OfFirstFamiliesIsThatOfEarlierReleases) {
  EXPECT_EQ(Fingerprint(GoldenFolder("qwen3_next_1")), "f566a9a55215641d9ac3d70af0a3288f");
  EXPECT_EQ(Fingerprint(GoldenFolder("qwen3_next_5")), "8662d388033300d66b1916373a48b4fe");
  EXPECT_EQ(Fingerprint(GoldenFolder("qwen3_5_1")), "f43ab0f559367e576cb5a5238d3a3615");
  EXPECT_EQ(Fingerprint(GoldenFolder("qwen3_5_5")), "861285111ce485f0c1a68ef01fba16e5");
}

TEST(ModelFingerprint, ChangesWithEveryFp8CodeAndScale) {
  const TestCheckpoint original = TestCheckpoint::Golden("fp8_qwen3_5_1");
  std::set<std::string> seen = {Fingerprint(original)};
  for (const char* tensor : {"in_proj_z.weight", "in_proj_z.weight_scale_inv", "out_proj.weight_scale_inv"}) {
    TestCheckpoint changed = original;
    changed.tensors.at(std::string("model.layers.1.linear_attn.") + tensor).data.back() ^= 1;
    EXPECT_TRUE(seen.insert(Fingerprint(changed)).second) << tensor;
  }
}

TEST(ModelFingerprint, OfLaterFamiliesIsThatOfEarlierReleases) {
  EXPECT_EQ(Fingerprint(GoldenFolder("qwen4_exp_1")), "b9b9ceefdf08a785496cab3a2fbced15");
  EXPECT_EQ(Fingerprint(GoldenFolder("olmo_hybrid_1")), "43aed65c612be175dfac107b71e7027c");
}

TEST(ModelFingerprint, ChangesWithTheDecaysGate) {
  const TestCheckpoint original = TestCheckpoint::Golden("glm5_next_1");
  std::set<std::string> seen = {Fingerprint(original)};
  TestCheckpoint bound = original;
  bound.config["text_config"]["linear_attn_config"]["gate_lower_bound"] = -4.0;
  EXPECT_TRUE(seen.insert(Fingerprint(bound)).second);
  TestCheckpoint softplus = original;
  softplus.config["text_config"]["linear_attn_config"]["gate_lower_bound"] = nullptr;
  softplus.config["text_config"]["linear_attn_config"]["safe_gate"] = false;
  EXPECT_TRUE(seen.insert(Fingerprint(softplus)).second);
  // The same numbers in another form are the same model.
  TestCheckpoint kimi = TestCheckpoint::Golden("kimi_linear_1");
  const std::string expected = Fingerprint(kimi);
  kimi.config = nlohmann::json::parse(ReadFile(GoldenFolder("kimi_linear_1") + "/config.transformers.json"));
  kimi.tensors.at("model.layers.0.self_attn.A_log").shape = {3};
  kimi.tensors.at("model.layers.1.self_attn.k_conv1d.weight").shape = {96, 4};
  EXPECT_EQ(Fingerprint(kimi), expected);
}

// A folder with a pair for one projection of a golden model's layer.
void WriteAdapter(const std::string& folder, const std::string& module, double alpha, float a = 0.5f) {
  TestCheckpoint adapter;
  adapter.config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", alpha}};
  adapter.tensors["base_model.model.model.layers." + module + ".lora_A.weight"] =
      TestTensor::Filled(DType::kF32, {2, 128}, a);
  adapter.tensors["base_model.model.model.layers." + module + ".lora_B.weight"] =
      TestTensor::Filled(DType::kF32, {64, 2}, 0.25f);
  adapter.Write(folder);
  WriteFile(folder + "/adapter_config.json", adapter.config.dump());
  WriteFile(folder + "/adapter_model.safetensors", ReadFile(folder + "/model.safetensors"));
}

TEST(ModelFingerprint, ChangesWithAnAdapterThatChangesALayer) {
  HostMemoryBackend backend(/*unified_memory=*/true);
  const std::string path = GoldenFolder("qwen3_5_1");
  std::set<std::string> seen = {Fingerprint(path)};
  TempFolder folder;
  for (const double alpha : {2.0, 4.0}) {
    WriteAdapter(folder.path(), "1.linear_attn.out_proj", alpha);
    const auto model = LoadModel(backend, "m", path, {.adapter = folder.path()});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(seen.insert(model->fingerprint()).second) << alpha;
    // It is served merged: alpha / 2 times 2 * 0.25 * 0.5 is added to each weight.
    const WeightMatrix& out = model->layers().at(1).out;
    const std::vector<float> base =
        TestCheckpoint::Golden("qwen3_5_1").tensors.at("model.layers.1.linear_attn.out_proj.weight").Floats();
    ASSERT_EQ(out.format, WeightFormat::kF32);
    EXPECT_FLOAT_EQ(static_cast<const float*>(out.data)[70], static_cast<float>(base[70] + alpha / 2 * 0.25));
  }
  WriteAdapter(folder.path(), "1.mlp.down_proj", 2.0);
  const auto model = LoadModel(backend, "m", path, {.adapter = folder.path()});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->fingerprint(), Fingerprint(path));
}

TEST(Adapter, WhoseSumOverflowsFloat32IsRefused) {
  HostMemoryBackend backend(/*unified_memory=*/true);
  TempFolder folder;
  WriteAdapter(folder.path(), "1.linear_attn.out_proj", /*alpha=*/100.0, /*a=*/3e38f);
  const auto model = LoadModel(backend, "m", GoldenFolder("qwen3_5_1"), {.adapter = folder.path()});
  ASSERT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(model.status().message(), ::testing::HasSubstr("layer 1, tensor 'out_proj.weight': element [0, 0]"));
}

TEST(ModelFingerprint, ChangesWithTheScaleOfPackedWeights) {
  TestCheckpoint packed = TestCheckpoint::Golden("qwen3_5_1");
  const std::string name = "model.layers.1.linear_attn.out_proj.weight";
  packed.tensors.at(name) = {.shape = {64, 128}, .data = std::string(64 * 128, '\3'), .other_dtype = "I8"};
  std::set<std::string> seen = {Fingerprint(GoldenFolder("qwen3_5_1"))};
  for (const float scale : {0.25f, 0.5f}) {
    packed.tensors[name + "_scale"] = TestTensor::Filled(DType::kBF16, {64, 1}, scale);
    EXPECT_TRUE(seen.insert(Fingerprint(packed)).second) << scale;
  }
}

TEST(ModelFingerprint, TellsTheGoldenCheckpointsApart) {
  std::set<std::string> seen;
  for (const char* name : {"qwen3_next_1", "qwen3_next_5", "qwen3_5_1", "qwen3_5_5", "qwen4_exp_1", "olmo_hybrid_1",
                           "kimi_linear_1", "glm5_next_1", "bailing_hybrid_1", "fp8_qwen3_5_1", "fp8_qwen3_next_1"}) {
    EXPECT_TRUE(seen.insert(Fingerprint(GoldenFolder(name))).second) << name;
  }
}

}  // namespace
}  // namespace gdn::model_fingerprint_test
