// The part of a Hugging Face config.json that Gated DeltaNet layers need.
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
#include "base/layer_dims.h"
#include "kernels/layer/layer_weights.h"

namespace gdn {

struct ModelConfig {
  std::string family;  // model_type as written at the top level
  LayerDims dims;
  int32_t num_layers = 0;
  std::vector<int32_t> gdn_layers;                    // ascending, not empty
  float norm_epsilon = 1e-6f;                         // rms_norm_eps
  ProjectionLayout layout = ProjectionLayout::kFlat;  // kInterleaved for qwen3_next
};

// Fields may stand at the top level or in "text_config". Where layer_types is absent, every full_attention_interval-th
// layer (counted from 1) is a full-attention layer. INVALID_ARGUMENT (INVALID_SPEC) naming the field, its value and
// what was expected; a hidden_act other than "silu" is refused.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

}  // namespace gdn
