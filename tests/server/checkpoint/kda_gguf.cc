#include "tests/server/checkpoint/kda_gguf.h"

#include <cmath>

#include "base/string_cat.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/gguf_writer.h"

namespace gdn {
namespace {

struct Names {
  std::string prefix;  // up to the layer's number
  std::string module;
  std::map<std::string, std::string> below;
};

Names NamesOf(const std::string& golden) {
  std::map<std::string, std::string> below = {{"q_proj.weight", "attn_q.weight"},
                                              {"k_proj.weight", "attn_k.weight"},
                                              {"v_proj.weight", "attn_v.weight"},
                                              {"b_proj.weight", "ssm_beta.weight"},
                                              {"q_conv1d.weight", "ssm_conv1d_q.weight"},
                                              {"k_conv1d.weight", "ssm_conv1d_k.weight"},
                                              {"v_conv1d.weight", "ssm_conv1d_v.weight"},
                                              {"A_log", "ssm_a"},
                                              {"dt_bias", "ssm_dt.bias"},
                                              {"o_norm.weight", "ssm_norm.weight"}};
  if (golden == "bailing_hybrid_1") {
    below.insert({{"f_proj.weight", "ssm_f_a.weight"},
                  {"g_proj.weight", "ssm_g_a.weight"},
                  {"dense.weight", "attn_output.weight"}});
    return {"model.layers.", ".attention.", below};
  }
  below.insert({{"f_a_proj.weight", "ssm_f_a.weight"},
                {"f_b_proj.weight", "ssm_f_b.weight"},
                {"g_a_proj.weight", "ssm_g_a.weight"},
                {"g_b_proj.weight", "ssm_g_b.weight"},
                {"o_proj.weight", "attn_output.weight"}});
  return {golden == "glm5_next_1" ? "model.language_model.layers." : "model.layers.", ".self_attn.", below};
}

// Changes a tensor as the converters to GGUF do.
void Convert(const std::string& golden, const std::string& name, KdaGguf::Tensor& tensor) {
  if (name.ends_with("_conv1d.weight")) tensor.shape = {1, tensor.shape.front(), 1, tensor.shape.back()};
  if (name != "A_log") return;
  const bool positive = golden == "bailing_hybrid_1";
  for (float& value : tensor.values) value = positive ? std::exp(value) : -std::exp(value);
  if (positive) tensor.shape = {tensor.shape[0], 1};
}

}  // namespace

KdaGguf KdaGguf::Of(const std::string& golden) {
  KdaGguf file;
  file.ints = {{"block_count", 3},
               {"embedding_length", 64},
               {"attention.head_count", 3},
               {"kda.head_dim", 32},
               {"ssm.conv_kernel", 4}};
  file.head_count_kv = {0, 0, 1};
  file.epsilon = golden == "bailing_hybrid_1" ? 1e-6f : 1e-5f;
  file.architecture = golden == "kimi_linear_1" ? "kimi-linear" : golden == "glm5_next_1" ? "glm5-next" : "bailingmoe3";
  if (golden != "kimi_linear_1") file.lower_bound = -5.0f;
  if (golden == "bailing_hybrid_1") file.safe_gate = true;
  const TestCheckpoint checkpoint = TestCheckpoint::Golden(golden);
  const Names names = NamesOf(golden);
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [of_folder, of_file] : names.below) {
      const TestTensor& from = checkpoint.tensors.at(StrCat(names.prefix, layer, names.module, of_folder));
      Tensor tensor{.shape = from.shape, .values = from.Floats()};
      Convert(golden, of_folder, tensor);
      file.tensors.emplace(StrCat("blk.", layer, ".", of_file), std::move(tensor));
    }
  }
  // An attention block has matrices of the same names.
  file.tensors["blk.2.attn_q.weight"] = {{32, 64}, std::vector<float>(size_t{32} * 64)};
  file.tensors["blk.2.attn_output.weight"] = {{64, 32}, std::vector<float>(size_t{32} * 64)};
  return file;
}

std::string KdaGguf::Bytes() const {
  GgufWriter writer;
  writer.Text("general.architecture", architecture);
  for (const auto& [key, value] : ints) writer.Int(StrCat(architecture, ".", key), value);
  writer.Float(StrCat(architecture, ".attention.layer_norm_rms_epsilon"), epsilon);
  writer.Ints(StrCat(architecture, ".attention.head_count_kv"), head_count_kv);
  if (lower_bound.has_value()) writer.Float(StrCat(architecture, ".kda.gate_lower_bound"), *lower_bound);
  if (safe_gate.has_value()) writer.Bool(StrCat(architecture, ".kda.safe_gate"), *safe_gate);
  for (const auto& [name, tensor] : tensors) {
    writer.Tensor(name, tensor.shape, GgmlType::kF32,
                  {reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float)});
  }
  return writer.Bytes();
}

}  // namespace gdn
