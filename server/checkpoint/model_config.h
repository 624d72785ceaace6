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
#include "base/layer_spec.h"
#include "server/checkpoint/model_family.h"
#include "server/checkpoint/quantization_config.h"

namespace gdn {

struct ModelConfig {
  std::string model_type;               // as written at the top level
  const ModelFamily* family = nullptr;  // that it belongs to
  LayerSpec spec = {};                  // of every Gated DeltaNet layer
  int32_t num_layers = 0;
  std::vector<int32_t> gdn_layers = {};  // ascending, not empty
  bool head_dim_by_norm = false;  // spec.dims' K and V are a guess; the length of the norm's weight is what they are
  QuantizationConfig quantization = {};
};

// Fields may stand at the top level or in "text_config". Which layers are Gated DeltaNet: by layer_types, else by the
// family's own fields (which have to agree with it), else by full_attention_layers, else every layer but each
// full_attention_interval-th (counted from 1). INVALID_ARGUMENT
// (INVALID_SPEC) naming the field, its value and what was expected, for a value that the family cannot have, and for a
// field about the layer that the family does not know: none is ignored.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

}  // namespace gdn
