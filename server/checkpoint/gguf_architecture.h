// Reads what a GGUF file's keys say about its linear layers, as a ModelConfig. Lists the architectures that are
// supported.
//
// qwen3next, qwen35, qwen35moe and qwen4exp are Gated DeltaNet. kimi-linear, kimi-k3, glm5-next and bailingmoe3 are
// KDA; their linear blocks are those without attention heads for keys and values.
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
  ModelFamily family;       // here model_types are architectures, and tensor_names are names below "blk.N."
  bool tiled = false;       // value heads are tiled if a key head has several, unless ssm.v_head_reordered is false
  bool positive_a = false;  // ssm_a is exp(A_log); otherwise it is -exp(A_log)
  // Says if files of this architecture have the key kda.gate_lower_bound, which means the bounded gate. For KDA only.
  enum class LowerBound : uint8_t { kNever, kMaybe, kAlways };
  bool kda = false;
  LowerBound lower_bound = LowerBound::kNever;
};

struct GgufConfig {
  ModelConfig config;
  const GgufArchitecture* architecture = nullptr;
};

// Reads the config of the linear layers from the file's keys and the names of its tensors. `architecture` in the result
// is a constant, never null. Errors are INVALID_ARGUMENT or NOT_FOUND. They name the key, what was found and what was
// expected.
absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFile& file);

// Makes an INVALID_ARGUMENT (`reason`) about a key or a tensor: `what` is "key" or "tensor". The message has `name`
// before `message`. The metadata has the name as "tensor", or for a key as "field".
absl::Status InvalidGguf(std::string_view what, const std::string& name, std::string_view reason,
                         std::string_view message);

// Returns the tensor's name, such as "blk.3.ssm_a". The family must have the tensor.
std::string GgufTensorName(const ModelFamily& family, int32_t layer, LayerTensor tensor);

// Returns "blk.3.ssm_dt", the name of ssm_dt.bias in older files of Ollama.
std::string ShortDtBiasName(int32_t layer);

}  // namespace gdn
