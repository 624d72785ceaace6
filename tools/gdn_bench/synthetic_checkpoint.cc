#include "tools/gdn_bench/synthetic_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <list>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/files/output_file.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace gdn::bench {
namespace {

constexpr uint32_t kWeightSeed = 20240607;
constexpr size_t kDrawnAtOnce = size_t{1} << 20;  // numbers drawn; larger tensors repeat them
constexpr float kSmallRange = 0.5f;

std::string ConfigJson(const LayerDims& dims, int layers) {
  return nlohmann::json{{"model_type", "qwen3_5_text"},
                        {"dtype", "bfloat16"},
                        {"hidden_act", "silu"},
                        {"hidden_size", dims.hidden_size},
                        {"num_hidden_layers", layers},
                        {"layer_types", std::vector<std::string>(static_cast<size_t>(layers), "linear_attention")},
                        {"linear_conv_kernel_dim", dims.conv_width},
                        {"linear_key_head_dim", dims.key_dim},
                        {"linear_value_head_dim", dims.value_dim},
                        {"linear_num_key_heads", dims.key_heads},
                        {"linear_num_value_heads", dims.value_heads},
                        {"rms_norm_eps", 1e-6}}
      .dump(2);
}

// `count` BF16 numbers in [-range, range).
std::string RandomWeights(size_t count, float range, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<float> numbers(std::min(count, kDrawnAtOnce));
  for (float& x : numbers) x = uniform(random);
  std::string bytes(count * sizeof(uint16_t), '\0');
  for (size_t at = 0; at < count; at += numbers.size()) {
    ConvertFromFloat(numbers.data(), std::min(numbers.size(), count - at), DType::kBF16,
                     bytes.data() + at * sizeof(uint16_t));
  }
  return bytes;
}

}  // namespace

absl::Status WriteSyntheticCheckpoint(const LayerDims& dims, int layers, const std::string& folder) {
  const int64_t hidden = dims.hidden_size;
  const int64_t heads = dims.value_heads;
  // Of numbers with a variance of one, a projection makes such numbers again.
  const auto unit = [](int64_t inputs) { return std::sqrt(3.0f / static_cast<float>(inputs)); };
  struct Weight {
    const char* name;
    std::vector<int64_t> shape;
    float range;
  };
  const Weight weights[] = {
      {"in_proj_qkv.weight", {dims.conv_channels(), hidden}, unit(hidden)},
      {"in_proj_z.weight", {dims.value_features(), hidden}, unit(hidden)},
      {"in_proj_b.weight", {heads, hidden}, unit(hidden)},
      {"in_proj_a.weight", {heads, hidden}, unit(hidden)},
      {"conv1d.weight", {dims.conv_channels(), 1, dims.conv_width}, kSmallRange},
      {"A_log", {heads}, kSmallRange},
      {"dt_bias", {heads}, kSmallRange},
      {"norm.weight", {dims.value_dim}, kSmallRange},
      {"out_proj.weight", {hidden, dims.value_features()}, unit(dims.value_features())},
  };
  std::mt19937 random(kWeightSeed);
  std::list<std::string> bytes;  // stay where they are
  std::vector<NamedTensor> tensors;
  for (int layer = 0; layer < layers; ++layer) {
    for (const Weight& weight : weights) {
      GDN_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(weight.shape));
      bytes.push_back(RandomWeights(static_cast<size_t>(count), weight.range, random));
      tensors.push_back({absl::StrCat("model.layers.", layer, ".linear_attn.", weight.name),
                         {DType::kBF16, weight.shape, bytes.back()}});
    }
  }
  GDN_ASSIGN_OR_RETURN(const std::string file, SerializeSafetensors(tensors, {{"format", "pt"}}));
  GDN_RETURN_IF_ERROR(WriteOutputFile(folder + "/model.safetensors", file));
  return WriteOutputFile(folder + "/config.json", ConfigJson(dims, layers));
}

}  // namespace gdn::bench
