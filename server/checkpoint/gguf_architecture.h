// What a GGUF file's keys say of its linear layers: the architectures that are read, and a ModelConfig of one's keys.
//
// qwen3next, qwen35, qwen35moe and qwen4exp are Gated DeltaNet; kimi-linear, kimi-k3, glm5-next and bailingmoe3 are
// KDA, whose linear blocks are those without attention heads for keys and values.
// Thread safety: constants and free functions.
// Sources of the names and orders: llama.cpp's converters (conversion/qwen.py, kimi_linear.py, kimi_k3.py, glm.py,
// bailingmoe3.py) and models of the same names (src/models); Ollama's convert/convert_qwen3next.go and
// model/models/qwen3next.
//
//   GDN_ASSIGN_OR_RETURN(GgufConfig read, ReadGgufConfig(file));
//   read.config.spec.dims;
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/checkpoint/gguf_file.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

struct GgufArchitecture {
  ModelFamily family;       // tensor_names: below "blk.N."
  bool tiled = false;       // value heads, where a key head has several and ssm.v_head_reordered is not false
  bool positive_a = false;  // ssm_a is exp(A_log); elsewhere -exp(A_log)
  // Of KDA. lower_bound: whether a file may have kda.gate_lower_bound, and so the bounded gate.
  enum class LowerBound : uint8_t { kNever, kMaybe, kAlways };
  bool kda = false;
  LowerBound lower_bound = LowerBound::kNever;
};

struct GgufConfig {
  ModelConfig config;
  const GgufArchitecture* architecture = nullptr;
};

// INVALID_ARGUMENT or NOT_FOUND naming the key, what was found and what was expected.
absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFile& file);

// Of a key or a tensor (`what`), with `name` in the message and the metadata.
absl::Status InvalidGguf(std::string_view what, const std::string& name, std::string_view reason,
                         std::string_view message);

// "blk.3.ssm_a".
std::string GgufTensorName(const ModelFamily& family, int32_t layer, LayerTensor tensor);

// "blk.3.ssm_dt": what older files of Ollama call ssm_dt.bias.
std::string ShortDtBiasName(int32_t layer);

}  // namespace gdn
