// Reads the part of a Hugging Face config.json that Gated DeltaNet layers need.
//
// Thread safety: plain values and a free function.
//
//   GDN_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(json_text));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/layer_spec.h"
#include "server/checkpoint/model_family.h"
#include "server/checkpoint/quantization_config.h"

namespace gdn {

struct ModelConfig {
  std::string model_type;               // as it is at the top level; for GGUF, general.architecture
  const ModelFamily* family = nullptr;  // the model's family: a constant, never null once read
  LayerSpec spec = {};                  // spec of every Gated DeltaNet layer
  int32_t num_layers = 0;
  std::vector<int32_t> gdn_layers = {};  // indices from 0 of the Gated DeltaNet layers, ascending, not empty
  bool head_dim_by_norm = false;         // K and V in spec.dims are a guess; the norm weight's length is right
  QuantizationConfig quantization = {};
};

// Reads a config.json. Fields may be at the top level or in "text_config". The Gated DeltaNet layers are those of
// layer_types; else of the family's own fields, which must agree with layer_types; else all but full_attention_layers;
// else all but each full_attention_interval-th, counted from 1. INVALID_ARGUMENT (INVALID_SPEC) names the field, its
// value and what was expected. It is returned for text that is not JSON and for a value that the family cannot have. A
// field about the layers that the family does not know is refused too, because no such field may be ignored.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

}  // namespace gdn
