// Some of a model's layers (LoadOptions::layers): which ranges are taken, what is loaded, and the fingerprint.
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/loaded_model.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/host_memory_backend.h"
#include "tests/support/refusal.h"

namespace gdn::some_layers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LayerRanges, AreReadAndWrittenAlike) {
  for (const std::string text : {"0", "0-23", "0-23,30", "1,3,5-7", "4095"}) {
    GDN_ASSERT_OK_AND_ASSIGN(const LayerRanges ranges, ParseLayerRanges(text));
    EXPECT_EQ(LayerRangesToString(ranges), text);
  }
  EXPECT_EQ(*ParseLayerRanges("7-7"), (LayerRanges{{.first = 7, .last = 7}}));
  EXPECT_EQ(LayerRangesToString({}), "");
}

TEST(LayerRanges, OfAnotherFormAreRefused) {
  for (const std::string text : {"", "-", "a", "1-", "-1", "3-1", "0-3,2", "5,0", "1,1", "0,", ",0", " 1", "+1", "1 ",
                                 "0-4096", "99999999999", "1-2-3", "0--1"}) {
    EXPECT_THAT(ParseLayerRanges(text).status(), IsInvalid("such as 0-23,30")) << "'" << text << "'";
  }
}

ModelConfig Config() {
  ModelConfig config;
  config.num_layers = 8;
  config.gdn_layers = {0, 1, 2, 4, 5, 6};
  return config;
}

TEST(LayerRanges, StandForTheGdnLayersInThem) {
  const auto layers = [](const std::string& text) { return GdnLayersIn(*ParseLayerRanges(text), Config()); };
  EXPECT_EQ(*GdnLayersIn({}, Config()), Config().gdn_layers);
  EXPECT_THAT(*layers("0-3"), ElementsAre(0, 1, 2));
  EXPECT_THAT(*layers("2-4,6-7"), ElementsAre(2, 4, 6));
  EXPECT_EQ(*layers("0-7"), Config().gdn_layers);
}

TEST(LayerRanges, WithoutAGdnLayerOrBeyondTheModelAreRefusedWithWhatToDo) {
  const auto refused = [](const std::string& text) { return GdnLayersIn(*ParseLayerRanges(text), Config()).status(); };
  const absl::Status none = refused("0-2,3");
  EXPECT_THAT(none, IsInvalid("layers 3 have no Gated DeltaNet layer; the model's are 0-2,4-6"));
  EXPECT_THAT(none, IsInvalid("choose --layers with at least one of these in each range"));
  EXPECT_EQ(ErrorMetadata(none)["field"], "layers");
  EXPECT_THAT(refused("6-8"), IsInvalid("layers 6-8 are not all in the model, which has the layers 0 to 7"));
}

TEST(SomeLayers, AreLoadedAloneUnderTheWholeModelsFingerprint) {
  const std::string path = GoldenFolder("qwen3_5_1");
  HostMemoryBackend backend(/*unified_memory=*/false);
  GDN_ASSERT_OK_AND_ASSIGN(const auto whole, LoadModel(backend, "m", path));
  const size_t whole_bytes = backend.live_bytes();
  GDN_ASSERT_OK_AND_ASSIGN(const auto some, LoadModel(backend, "m", path, {.layers = {{1, 1}}}));
  ASSERT_EQ(some.layers().size(), 1u);
  EXPECT_TRUE(some.layers().contains(1));
  EXPECT_EQ(3 * (backend.live_bytes() - whole_bytes), whole_bytes);
  EXPECT_EQ(3 * some.memory().total(), whole.memory().total());
  EXPECT_EQ(3 * some.memory().in_files, whole.memory().in_files);
  EXPECT_EQ(some.fingerprint(), whole.fingerprint());
  EXPECT_THAT(some.config().gdn_layers, ElementsAre(0, 1, 2));
  EXPECT_THAT(some.digests().layers, ElementsAre(whole.digests().layers[1]));
}

// Another server has the other layers, so their weights still say which model this one has a part of.
TEST(SomeLayers, HaveAnotherFingerprintIfALayerThatIsNotServedChanges) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  checkpoint.tensors.at("model.layers.0.linear_attn.A_log").data.back() ^= 1;
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  const LoadOptions options{.layers = {{1, 2}}};
  GDN_ASSERT_OK_AND_ASSIGN(const auto changed, LoadModel(backend, "m", folder.path(), options));
  GDN_ASSERT_OK_AND_ASSIGN(const auto original, LoadModel(backend, "m", GoldenFolder("qwen3_5_1"), options));
  EXPECT_NE(changed.fingerprint(), original.fingerprint());
  EXPECT_EQ(changed.digests().layers, original.digests().layers);
}

TEST(SomeLayers, HaveTheFingerprintOfTheModelInEveryForm) {
  for (const char* path : {"fp8_qwen3_next_1", "gguf_qwen35_1/q8_0.gguf", "qwen3_next_5", "kimi_linear_1"}) {
    for (const bool quantize : {false, true}) {
      HostMemoryBackend backend(/*unified_memory=*/true, kAllWeights);
      LoadOptions options{.quantize_q8_0 = quantize};
      GDN_ASSERT_OK_AND_ASSIGN(const auto whole, LoadModel(backend, "m", GoldenFolder(path), options));
      options.layers = {{0, 0}};
      GDN_ASSERT_OK_AND_ASSIGN(const auto some, LoadModel(backend, "m", GoldenFolder(path), options));
      EXPECT_EQ(some.fingerprint(), whole.fingerprint()) << path << " " << quantize;
      EXPECT_EQ(some.layers().size(), 1u);
    }
  }
}

// The file has the served layer quantised and the others in float32, so only the server of all layers quantises.
TEST(SomeLayers, CountAsQuantisedIfTheModelIs) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  for (auto& [name, tensor] : checkpoint.tensors) {
    const bool matrix = name.starts_with("model.layers.1.linear_attn.") && tensor.shape.size() == 2;
    if (matrix)
      tensor = {.shape = tensor.shape, .data = std::string(tensor.data.size() / 4, '\3'), .other_dtype = "I8"};
  }
  for (const char* name : {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}) {
    const std::string weight = std::string("model.layers.1.linear_attn.") + name + ".weight";
    checkpoint.tensors[weight + "_scale"] =
        TestTensor::Filled(DType::kBF16, {checkpoint.tensors.at(weight).shape[0], 1}, 0.25f);
  }
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true, kAllWeights);
  GDN_ASSERT_OK_AND_ASSIGN(const auto plain, LoadModel(backend, "m", folder.path()));
  GDN_ASSERT_OK_AND_ASSIGN(const auto whole, LoadModel(backend, "m", folder.path(), {.quantize_q8_0 = true}));
  GDN_ASSERT_OK_AND_ASSIGN(const auto some,
                           LoadModel(backend, "m", folder.path(), {.layers = {{1, 1}}, .quantize_q8_0 = true}));
  EXPECT_NE(whole.fingerprint(), plain.fingerprint());
  EXPECT_EQ(some.fingerprint(), whole.fingerprint());
}

TEST(SomeLayers, MayBeSlicedByHeadsToo) {
  const std::string path = GoldenFolder("qwen3_next_1");
  HostMemoryBackend backend(/*unified_memory=*/true);
  const HeadSlice heads{.first = 2, .count = 2, .total = 4};
  GDN_ASSERT_OK_AND_ASSIGN(const auto whole, LoadModel(backend, "m", path));
  GDN_ASSERT_OK_AND_ASSIGN(const auto sliced, LoadModel(backend, "m", path, {.heads = heads}));
  GDN_ASSERT_OK_AND_ASSIGN(const auto both, LoadModel(backend, "m", path, {.heads = heads, .layers = {{2, 3}}}));
  EXPECT_EQ(both.layers().size(), 1u);
  EXPECT_EQ(both.fingerprint(), sliced.fingerprint());
  EXPECT_EQ(both.whole_fingerprint(), whole.fingerprint());
}

// The layer that is not finite is another server's.
TEST(SomeLayers, AreServedIfAnotherLayerIsNotFinite) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  checkpoint.tensors["model.layers.0.linear_attn.norm.weight"] =
      TestTensor::Filled(DType::kF32, {32}, std::numeric_limits<float>::quiet_NaN());
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  EXPECT_THAT(LoadModel(backend, "m", folder.path()).status(), IsInvalid("layer 0, tensor 'norm.weight'"));
  EXPECT_TRUE(LoadModel(backend, "m", folder.path(), {.layers = {{1, 2}}}).ok());
}

TEST(SomeLayers, OfAModelThatLacksThemAreAnErrorThatNamesTheModel) {
  HostMemoryBackend backend(/*unified_memory=*/true);
  const auto model = LoadModel(backend, "m", GoldenFolder("qwen3_5_1"), {.layers = {{3, 3}}});
  EXPECT_THAT(model.status(), IsInvalid("model 'm': layers 3 have no Gated DeltaNet layer; the model's are 0-2"));
  EXPECT_EQ(backend.total_allocations(), 0);
}

}  // namespace
}  // namespace gdn::some_layers_test
