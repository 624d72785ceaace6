// Loading whole models: the golden checkpoints, and small ones with one thing wrong.
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/loaded_model.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/host_memory_backend.h"

namespace gdn::load_model_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGolden[] = {"qwen3_next_1", "qwen3_next_5", "qwen3_5_1", "qwen3_5_5"};

// A matrix's elements as float32, whatever its format.
std::vector<float> Floats(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) WeightRow(matrix, row, values.data() + row * matrix.cols);
  return values;
}

std::vector<float> Floats(const float* data, int64_t count) { return std::vector<float>(data, data + count); }

// Every weight of every layer is the checkpoint's, bit for bit.
void ExpectWeightsOf(const TestCheckpoint& checkpoint, const std::string& prefix, const LoadedModel& model) {
  ASSERT_EQ(model.layers().size(), 3u);
  for (const auto& [index, w] : model.layers()) {
    const auto tensor = [&, layer = index](const std::string& name) {
      return checkpoint.tensors.at(StrCat(prefix, layer, ".linear_attn.", name)).Floats();
    };
    if (w.spec.projections == ProjectionLayout::kInterleaved) {
      EXPECT_EQ(Floats(w.in_qkv), tensor("in_proj_qkvz.weight"));
      EXPECT_EQ(Floats(w.in_b), tensor("in_proj_ba.weight"));
      EXPECT_EQ(w.in_z.rows, 0);
      EXPECT_EQ(w.in_a.rows, 0);
    } else {
      EXPECT_EQ(Floats(w.in_qkv), tensor("in_proj_qkv.weight"));
      EXPECT_EQ(Floats(w.in_z), tensor("in_proj_z.weight"));
      EXPECT_EQ(Floats(w.in_b), tensor("in_proj_b.weight"));
      EXPECT_EQ(Floats(w.in_a), tensor("in_proj_a.weight"));
    }
    EXPECT_EQ(Floats(w.out), tensor("out_proj.weight"));
    EXPECT_EQ(Floats(w.conv_weight, w.spec.dims.conv_channels() * w.spec.dims.conv_width), tensor("conv1d.weight"));
    EXPECT_EQ(Floats(w.a_log, w.spec.dims.value_heads), tensor("A_log"));
    EXPECT_EQ(Floats(w.dt_bias, w.spec.dims.value_heads), tensor("dt_bias"));
    EXPECT_EQ(Floats(w.norm_weight, w.spec.dims.value_dim), tensor("norm.weight"));
  }
}

TEST(LoadModel, ReadsEveryGoldenCheckpoint) {
  for (const char* name : kGolden) {
    HostMemoryBackend backend(/*unified_memory=*/true);
    GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "tiny", GoldenFolder(name)));
    EXPECT_EQ(model.name(), "tiny");
    EXPECT_EQ(model.weight_dtype(), DType::kF32);
    EXPECT_EQ(model.fingerprint().size(), 32u);
    ExpectWeightsOf(TestCheckpoint::Golden(name), "model.layers.", model);
  }
}

TEST(LoadModel, ProjectionsStayInTheMappingWhereMemoryIsUnified) {
  HostMemoryBackend unified(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto mapped, LoadModel(unified, "m", GoldenFolder("qwen3_5_5")));
  HostMemoryBackend device(/*unified_memory=*/false);
  GDN_ASSERT_OK_AND_ASSIGN(const auto copied, LoadModel(device, "m", GoldenFolder("qwen3_5_5")));
  for (const int32_t layer : {0, 1, 2}) {
    const LayerWeights& m = mapped.layers().at(layer);
    const LayerWeights& c = copied.layers().at(layer);
    for (const WeightMatrix& matrix : {m.in_qkv, m.in_z, m.in_b, m.in_a, m.out})
      EXPECT_FALSE(unified.Owns(matrix.data));
    for (const WeightMatrix& matrix : {c.in_qkv, c.in_z, c.in_b, c.in_a, c.out}) EXPECT_TRUE(device.Owns(matrix.data));
    for (const float* data : {m.conv_weight, m.a_log, m.dt_bias, m.norm_weight}) EXPECT_TRUE(unified.Owns(data));
    for (const float* data : {c.conv_weight, c.a_log, c.dt_bias, c.norm_weight}) EXPECT_TRUE(device.Owns(data));
  }
  ExpectWeightsOf(TestCheckpoint::Golden("qwen3_5_5"), "model.layers.", copied);
}

TEST(LoadModel, WeightsOutliveAMoveOfTheModel) {
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(auto model, LoadModel(backend, "m", GoldenFolder("qwen3_next_5")));
  const LoadedModel moved = std::move(model);
  ExpectWeightsOf(TestCheckpoint::Golden("qwen3_next_5"), "model.layers.", moved);
}

TEST(LoadModel, MemoryIsReturnedWithTheModel) {
  HostMemoryBackend backend(/*unified_memory=*/false);
  {
    GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", GoldenFolder("qwen3_5_1")));
    EXPECT_GT(backend.live_allocations(), 0u);
  }
  EXPECT_EQ(backend.live_allocations(), 0u);
}

TEST(LoadModel, AFailedAllocationLeavesNothingBehind) {
  HostMemoryBackend backend(/*unified_memory=*/false);
  backend.FailAfter(7);
  const auto model = LoadModel(backend, "m", GoldenFolder("qwen3_5_1"));
  EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(backend.live_allocations(), 0u);
}

TEST(LoadModel, ReadsANestedConfigAndLanguageModelPrefix) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_5");
  checkpoint.NestTextConfig("qwen3_5");
  checkpoint.RenamePrefix("model.layers.", "model.language_model.layers.");
  checkpoint.tensors["model.visual.patch_embed.weight"] = TestTensor::Filled(DType::kF32, {3}, 1.0f);
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
  EXPECT_EQ(model.config().model_type, "qwen3_5");
  ExpectWeightsOf(checkpoint, "model.language_model.layers.", model);
}

TEST(LoadModel, ReadsShardsAndOnlyThoseItNeeds) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_5");
  TempFolder folder;
  checkpoint.WriteSharded(folder.path(), 4);
  // A shard of its own for something that is not needed, and that is not even there.
  auto index = nlohmann::json::parse(ReadFile(folder.path() + "/model.safetensors.index.json"), nullptr, false);
  index["weight_map"]["model.visual.patch_embed.weight"] = "not-downloaded.safetensors";
  index["weight_map"]["mtp.layers.0.linear_attn.A_log"] = "not-downloaded.safetensors";
  WriteFile(folder.path() + "/model.safetensors.index.json", index.dump());
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
  ExpectWeightsOf(checkpoint, "model.layers.", model);
}

TEST(LoadModel, FollowsTheIntervalWithoutLayerTypes) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
  checkpoint.config.erase("layer_types");
  checkpoint.config["full_attention_interval"] = 4;
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
  ExpectWeightsOf(checkpoint, "model.layers.", model);

  checkpoint.config["full_attention_interval"] = 3;  // layer 2 has linear_attn tensors, and layer 3 none
  checkpoint.Write(folder.path());
  EXPECT_FALSE(LoadModel(backend, "m", folder.path()).ok());
}

TEST(LoadModel, KeepsSixteenBitProjectionsAndWidensVectors) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
    checkpoint.ConvertTo(dtype);
    TempFolder folder;
    checkpoint.Write(folder.path());
    HostMemoryBackend backend(/*unified_memory=*/true);
    GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
    EXPECT_EQ(model.weight_dtype(), dtype);
    EXPECT_EQ(model.layers().at(0).in_qkv.format, FormatOf(dtype));
    ExpectWeightsOf(checkpoint, "model.layers.", model);
  }
}

TEST(LoadModel, MatricesOfFp16NumbersHaveRowScalesOnADeviceThatMultipliesThem) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
    checkpoint.ConvertTo(dtype);
    TempFolder folder;
    checkpoint.Write(folder.path());
    HostMemoryBackend plain(/*unified_memory=*/false), backend(/*unified_memory=*/false);
    backend.TakeHalves();
    GDN_ASSERT_OK_AND_ASSIGN(const auto without, LoadModel(plain, "m", folder.path()));
    GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
    int64_t rows = 0;
    for (const auto& [layer, w] : model.layers()) {
      for (const WeightMatrix& matrix : {w.in_qkv, w.in_z, w.in_b, w.in_a}) {
        EXPECT_EQ(matrix.scales != nullptr, dtype != DType::kF32) << layer << ": float32 needs more bits";
        if (matrix.scales != nullptr) rows += matrix.rows;
      }
      EXPECT_EQ(w.out.scales, nullptr) << "its inputs are float32";
    }
    EXPECT_EQ(model.memory().total() - without.memory().total(), rows * int64_t{sizeof(float)});
  }
}

TEST(LoadModel, DtypesMayDifferFromTensorToTensor) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
  TestCheckpoint half = checkpoint;
  half.ConvertTo(DType::kBF16);
  for (const char* tensor : {"out_proj.weight", "conv1d.weight", "norm.weight"}) {
    for (const int layer : {0, 1, 2}) {
      const std::string name = StrCat("model.layers.", layer, ".linear_attn.", std::string(tensor));
      checkpoint.tensors[name] = half.tensors.at(name);
    }
  }
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
  EXPECT_EQ(model.weight_dtype(), DType::kBF16);
  EXPECT_EQ(model.layers().at(0).in_qkv.format, WeightFormat::kF32);
  ExpectWeightsOf(checkpoint, "model.layers.", model);
}

TEST(LoadModel, MisalignedTensorsAreCopied) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_5");
  checkpoint.tensors["a.pad"] = TestTensor::Filled(DType::kF16, {1}, 0.0f);  // puts all that follows at 2 modulo 4
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
  for (const auto& [layer, weights] : model.layers()) {
    EXPECT_TRUE(backend.Owns(weights.in_qkv.data)) << layer;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.in_qkv.data) % 4, 0u);
  }
  ExpectWeightsOf(checkpoint, "model.layers.", model);
}

// A gigachat3_5 layer, by its description, is a qwen3_next layer with (1 + w) for w and 2 sigmoid(z) for silu(z).
TEST(LoadModel, UnverifiedFamiliesAreServedOnlyToWhoAsksForThem) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
  checkpoint.config["model_type"] = "gigachat3_5";
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  const absl::Status status = LoadModel(backend, "giga", folder.path()).status();
  ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kInvalidSpec);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("'giga'"), HasSubstr("gigachat3_5"), HasSubstr("--allow-unverified-family")));
  EXPECT_EQ(backend.total_allocations(), 0);

  GDN_ASSERT_OK_AND_ASSIGN(const auto model,
                           LoadModel(backend, "giga", folder.path(), {.allow_unverified_family = true}));
  const LayerWeights& weights = model.layers().at(1);
  EXPECT_EQ(weights.spec.output_gate, GateActivation::kSigmoid);
  EXPECT_EQ(weights.spec.projections, ProjectionLayout::kInterleaved);
  std::vector<float> expected = checkpoint.tensors.at("model.layers.1.linear_attn.norm.weight").Floats();
  for (float& weight : expected) weight = 2.0f * (1.0f + weight);
  EXPECT_EQ(Floats(weights.norm_weight, weights.spec.dims.value_dim), expected);
}

TEST(LoadModel, RefusesIntegerWeightsByName) {
  TempFolder folder;
  TestCheckpoint::Golden("qwen3_next_1").Write(folder.path());
  const std::string path = folder.path() + "/model.safetensors";
  std::string bytes = ReadFile(path);
  const size_t at = bytes.find("\"F32\"", bytes.find("model.layers.1.linear_attn.dt_bias"));
  bytes.replace(at, 5, "\"I32\"");
  WriteFile(path, bytes);
  HostMemoryBackend backend(/*unified_memory=*/true);
  const absl::Status status = LoadModel(backend, "m", folder.path()).status();
  ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.layers.1.linear_attn.dt_bias"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("I32"));
}

TEST(LoadModel, RefusesWeightsThatAreNotFiniteByNameAndIndex) {
  for (const char* name : {"in_proj_qkv.weight", "in_proj_z.weight", "in_proj_a.weight", "out_proj.weight",
                           "conv1d.weight", "A_log", "dt_bias", "norm.weight"}) {
    TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
    const std::string tensor = StrCat("model.layers.1.linear_attn.", name);
    std::vector<float> values = checkpoint.tensors.at(tensor).Floats();
    values[1] = NAN;
    checkpoint.tensors.at(tensor).data.assign(reinterpret_cast<const char*>(values.data()),
                                              values.size() * sizeof(float));
    TempFolder folder;
    checkpoint.Write(folder.path());
    HostMemoryBackend backend(/*unified_memory=*/true);
    const absl::Status status = LoadModel(backend, "m", folder.path()).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
    EXPECT_THAT(std::string(status.message()), HasSubstr(StrCat("layer 1, tensor '"))) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("1] is no number"));
    EXPECT_EQ(backend.total_allocations(), 0);
  }
}

TEST(LoadModel, ARateOfNothingIsADecayOfOneAndTaken) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  TestTensor& a_log = checkpoint.tensors.at("model.layers.1.linear_attn.A_log");
  std::vector<float> values = a_log.Floats();
  values[0] = -INFINITY;
  a_log.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  TempFolder folder;
  checkpoint.Write(folder.path());
  HostMemoryBackend backend(/*unified_memory=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(backend, "m", folder.path()));
  EXPECT_EQ(model.layers().at(1).a_log[0], -INFINITY);
}

TEST(LoadModel, ErrorsComeBeforeAnyAllocation) {
  struct Case {
    std::string what;
    std::function<void(const std::string&)> damage;
    absl::StatusCode code;
    std::string message;
  };
  const Case cases[] = {
      {"no config", [](const std::string& f) { std::filesystem::remove(f + "/config.json"); },
       absl::StatusCode::kNotFound, "config.json"},
      {"config is not JSON", [](const std::string& f) { WriteFile(f + "/config.json", "{"); },
       absl::StatusCode::kInvalidArgument, "config.json"},
      {"unknown family", [](const std::string& f) { WriteFile(f + "/config.json", R"({"model_type":"mamba"})"); },
       absl::StatusCode::kInvalidArgument, "mamba"},
      {"no weights", [](const std::string& f) { std::filesystem::remove(f + "/model.safetensors"); },
       absl::StatusCode::kNotFound, "model.safetensors"},
      {"weights are cut", [](const std::string& f) { std::filesystem::resize_file(f + "/model.safetensors", 20000); },
       absl::StatusCode::kDataLoss, "model.safetensors"},
      {"weights are something else", [](const std::string& f) { WriteFile(f + "/model.safetensors", "<html>..."); },
       absl::StatusCode::kDataLoss, "model.safetensors"},
      {"weights are empty", [](const std::string& f) { WriteFile(f + "/model.safetensors", ""); },
       absl::StatusCode::kDataLoss, "model.safetensors"},
  };
  for (const Case& c : cases) {
    TempFolder folder;
    TestCheckpoint::Golden("qwen3_5_1").Write(folder.path());
    c.damage(folder.path());
    HostMemoryBackend backend(/*unified_memory=*/false);
    const absl::Status status = LoadModel(backend, "m", folder.path()).status();
    EXPECT_EQ(status.code(), c.code) << c.what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path())) << c.what;
    EXPECT_EQ(backend.total_allocations(), 0) << c.what;
  }
}

}  // namespace
}  // namespace gdn::load_model_test
