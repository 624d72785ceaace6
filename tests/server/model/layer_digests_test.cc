// Digests of layers: a client can compute them from a checkpoint's tensors, and nothing that happens to the weights
// after they were read changes them.
#include <set>

#include "base/hash.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/loaded_model.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/host_memory_backend.h"

namespace gdn::layer_digests_test {
namespace {

using ::testing::ElementsAre;

std::vector<LayerDigest> DigestsOf(const std::string& path, const LoadOptions& options = {}) {
  HostMemoryBackend backend(/*unified_memory=*/true, kAllWeights);
  const auto model = LoadModel(backend, "m", path, options);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? model->digests().layers : std::vector<LayerDigest>();
}

std::vector<LayerDigest> DigestsOf(const TestCheckpoint& checkpoint) {
  TempFolder folder;
  checkpoint.Write(folder.path());
  return DigestsOf(folder.path());
}

// Computed by a Python program with libxxhash, from the comment of LayerDigest in proto/gdn/v1/info.proto.
TEST(LayerDigests, AreThoseThatTheApiDescribes) {
  const auto digest = [](const std::string& golden, size_t layer) {
    return DigestsOf(GoldenFolder(golden)).at(layer).xxh3;
  };
  EXPECT_EQ(digest("qwen3_5_1", 0), "5a3562e978838c384a45c9a963d92d35");
  EXPECT_EQ(digest("qwen3_5_1", 1), "b46f28443ae8292c5de7498f7fdbcac3");
  EXPECT_EQ(digest("qwen3_next_1", 2), "556230d02707e12c3f77160800f1cdaa");
  EXPECT_EQ(digest("fp8_qwen3_5_1", 0), "54d81a8651ba5e994f8f993ad4fd0988");
  EXPECT_EQ(digest("kimi_linear_1", 0), "bac05cec672af77172115ad882689520");
}

TEST(LayerDigests, NameTheirTensorsInTheirOrder) {
  HostMemoryBackend backend(/*unified_memory=*/true);
  const HeadSlice heads{.first = 2, .count = 1, .total = 3};
  for (const LoadOptions& options : {LoadOptions{}, LoadOptions{.heads = heads}}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", GoldenFolder("olmo_hybrid_1"), options));
    EXPECT_THAT(model.digests().tensors,
                ElementsAre("q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight", "b_proj.weight",
                            "a_proj.weight", "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight", "A_log",
                            "dt_bias", "o_norm.weight", "o_proj.weight"));
  }
}

// A client that follows the comment, with the tensors of a checkpoint in its memory.
TEST(LayerDigests, CanBeComputedFromTensorsInMemory) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_5");
  checkpoint.ConvertTo(DType::kBF16);
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
  ASSERT_EQ(model.digests().layers.size(), 3u);
  for (const LayerDigest& digest : model.digests().layers) {
    std::string bytes;
    const auto integer = [&bytes](int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), 8); };
    const auto text = [&](std::string_view field) {
      integer(static_cast<int64_t>(field.size()));
      bytes.append(field);
    };
    integer(digest.layer);
    for (const std::string& name : model.digests().tensors) {
      const TestTensor& tensor = checkpoint.tensors.at(StrCat("model.layers.", digest.layer, ".linear_attn.", name));
      text(name);
      text(DTypeName(tensor.dtype));
      integer(static_cast<int64_t>(tensor.shape.size()));
      for (const int64_t dim : tensor.shape) integer(dim);
      text(tensor.data);
    }
    EXPECT_EQ(digest.xxh3, HashBytes(bytes).ToHex()) << digest.layer;
    EXPECT_EQ(digest.format, "BF16");
    EXPECT_EQ(digest.vector_format, "BF16");
  }
}

TEST(LayerDigests, SayTheFormatsOfTheSource) {
  const auto formats = [](const std::string& path) {
    const LayerDigest digest = DigestsOf(GoldenFolder(path)).at(0);
    return StrCat(digest.format, " / ", digest.vector_format);
  };
  EXPECT_EQ(formats("qwen3_5_1"), "F32 / F32");
  EXPECT_EQ(formats("fp8_qwen3_5_1"), "BF16+F8_E4M3 / BF16+F32");
  EXPECT_EQ(formats("gguf_qwen35_1/f32.gguf"), "GGUF F32 / GGUF F32");
  EXPECT_THAT(
      formats("gguf_qwen35_k_1/q4_k.gguf"),
      testing::AllOf(testing::StartsWith("GGUF "), testing::HasSubstr("Q4_K"), testing::EndsWith(" / GGUF F32")));
  TestCheckpoint packed = TestCheckpoint::Golden("qwen3_5_1");
  const std::string name = "model.layers.0.linear_attn.out_proj.weight";
  packed.tensors.at(name) = {.shape = {64, 128}, .data = std::string(64 * 128, '\3'), .other_dtype = "I8"};
  packed.tensors[name + "_scale"] = TestTensor::Filled(DType::kBF16, {64, 1}, 0.25f);
  EXPECT_EQ(DigestsOf(packed).at(0).format, "F32+INT8");
  EXPECT_EQ(DigestsOf(packed).at(1).format, "F32");
}

TEST(LayerDigests, ChangeWithEveryTensorOfTheirLayerAlone) {
  const TestCheckpoint original = TestCheckpoint::Golden("qwen3_5_1");
  const std::vector<LayerDigest> expected = DigestsOf(original);
  std::set<std::string> seen = {expected.at(1).xxh3};
  int changes = 0;
  for (const auto& [name, tensor] : original.tensors) {
    if (!name.starts_with("model.layers.1.linear_attn.")) continue;
    TestCheckpoint changed = original;
    changed.tensors.at(name).data.back() ^= 1;
    const std::vector<LayerDigest> found = DigestsOf(changed);
    EXPECT_TRUE(seen.insert(found.at(1).xxh3).second) << name;
    EXPECT_EQ(found.at(0), expected.at(0)) << name;
    EXPECT_EQ(found.at(2), expected.at(2)) << name;
    ++changes;
  }
  EXPECT_EQ(changes, 9);
  // Two layers with the same weights have different digests, because the index belongs to a layer.
  TestCheckpoint same = original;
  for (const auto& [name, tensor] : original.tensors) {
    const std::string prefix = "model.layers.0.linear_attn.";
    if (name.starts_with(prefix)) same.tensors["model.layers.1.linear_attn." + name.substr(prefix.size())] = tensor;
  }
  EXPECT_NE(DigestsOf(same).at(1).xxh3, expected.at(0).xxh3);
}

TEST(LayerDigests, AreTheSameForSlicedQuantisedAndMergedWeights) {
  const std::string path = GoldenFolder("qwen3_5_1");
  const std::vector<LayerDigest> expected = DigestsOf(path);
  EXPECT_EQ(DigestsOf(path, {.heads = {.first = 2, .count = 2, .total = 4}}), expected);
  EXPECT_EQ(DigestsOf(path, {.quantize_q8_0 = true}), expected);
  TempFolder folder;
  TestCheckpoint adapter;
  adapter.config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 2.0}};
  const std::string module = "base_model.model.model.layers.1.linear_attn.out_proj";
  adapter.tensors[module + ".lora_A.weight"] = TestTensor::Filled(DType::kF32, {2, 128}, 0.5f);
  adapter.tensors[module + ".lora_B.weight"] = TestTensor::Filled(DType::kF32, {64, 2}, 0.25f);
  adapter.Write(folder.path());
  WriteFile(folder.path() + "/adapter_config.json", adapter.config.dump());
  WriteFile(folder.path() + "/adapter_model.safetensors", ReadFile(folder.path() + "/model.safetensors"));
  const std::vector<LayerDigest> merged = DigestsOf(path, {.adapter = folder.path()});
  ASSERT_EQ(merged.size(), expected.size());
  for (size_t i = 0; i < merged.size(); ++i) {
    EXPECT_EQ(merged[i].xxh3, expected[i].xxh3);
    EXPECT_EQ(merged[i].has_adapter, i == 1);
  }
}

}  // namespace
}  // namespace gdn::layer_digests_test
