#include "tools/gdn_bench/synthetic_checkpoint.h"

#include <cstdint>
#include <fstream>
#include <list>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/safetensors.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace gdn::bench {
namespace {

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write '", path, "'"));
  return absl::OkStatus();
}

std::string ConfigJson(const LayerDims& dims) {
  return nlohmann::json{{"model_type", "qwen3_5_text"},
                        {"dtype", "bfloat16"},
                        {"hidden_act", "silu"},
                        {"hidden_size", dims.hidden_size},
                        {"num_hidden_layers", 1},
                        {"layer_types", {"linear_attention"}},
                        {"linear_conv_kernel_dim", dims.conv_width},
                        {"linear_key_head_dim", dims.key_dim},
                        {"linear_value_head_dim", dims.value_dim},
                        {"linear_num_key_heads", dims.key_heads},
                        {"linear_num_value_heads", dims.value_heads},
                        {"rms_norm_eps", 1e-6}}
      .dump(2);
}

}  // namespace

absl::Status WriteSyntheticCheckpoint(const LayerDims& dims, const std::string& folder) {
  const int64_t hidden = dims.hidden_size;
  const int64_t heads = dims.value_heads;
  const std::pair<const char*, std::vector<int64_t>> shapes[] = {
      {"in_proj_qkv.weight", {dims.conv_channels(), hidden}},
      {"in_proj_z.weight", {dims.value_features(), hidden}},
      {"in_proj_b.weight", {heads, hidden}},
      {"in_proj_a.weight", {heads, hidden}},
      {"conv1d.weight", {dims.conv_channels(), 1, dims.conv_width}},
      {"A_log", {heads}},
      {"dt_bias", {heads}},
      {"norm.weight", {dims.value_dim}},
      {"out_proj.weight", {hidden, dims.value_features()}},
  };
  std::list<std::string> zeros;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, shape] : shapes) {
    GDN_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape));
    zeros.emplace_back(static_cast<size_t>(count) * sizeof(uint16_t), '\0');
    tensors.push_back({absl::StrCat("model.layers.0.linear_attn.", name), {DType::kBF16, shape, zeros.back()}});
  }
  GDN_ASSIGN_OR_RETURN(const std::string file, SerializeSafetensors(tensors, {{"format", "pt"}}));
  GDN_RETURN_IF_ERROR(WriteFile(folder + "/model.safetensors", file));
  return WriteFile(folder + "/config.json", ConfigJson(dims));
}

}  // namespace gdn::bench
