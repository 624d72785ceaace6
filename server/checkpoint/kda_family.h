// Reads the configs of Kimi Delta Attention (KDA) families, for model_family.cc's table.
//
// In all of these families H = HV and K = V, and q, k, v and their convolutions are stored in separate tensors. If a
// config has a value twice, as in linear_attn_config and in a flat field, the two must agree.
// Thread safety: free functions.
//
//   GDN_RETURN_IF_ERROR(ReadKimiLinear(fields, spec));
//   GDN_ASSIGN_OR_RETURN(ModelFamily::Layers layers, ReadKimiLayers(fields, num_layers));
#pragma once

#include "absl/status/statusor.h"
#include "server/checkpoint/model_family.h"

namespace gdn {

// Checks that hidden_act is "silu", the only activation that the convolutions of these layers have. INVALID_ARGUMENT
// (INVALID_SPEC) for any other value, and if the field is missing.
absl::Status CheckHiddenAct(const ConfigFields& fields);

absl::Status ReadKimiLinear(const ConfigFields& fields, LayerSpec& spec);
absl::Status ReadKimiK3(const ConfigFields& fields, LayerSpec& spec);
absl::Status ReadGlm5Next(const ConfigFields& fields, LayerSpec& spec);
absl::Status ReadBailingHybrid(const ConfigFields& fields, LayerSpec& spec);

// Returns the KDA layers (from 0, ascending) by linear_attn_config's kda_layers and full_attn_layers, which count from
// 1; nullopt if there are neither but layer_types. With one list, all other layers belong to the other; with both, each
// layer must be in one. Else INVALID_ARGUMENT (INVALID_SPEC), also if all three are missing or no layer is KDA.
absl::StatusOr<ModelFamily::Layers> ReadKimiLayers(const ConfigFields& fields, int32_t num_layers);
// Returns the KDA layers (from 0, ascending) by linear_attn_config's kda_layers and full_attn_layers, which count from
// 0 here; nullopt if there are neither. With one list, all other layers belong to the other; with both, each layer
// must be in one. Else INVALID_ARGUMENT (INVALID_SPEC), also if no layer is KDA.
absl::StatusOr<ModelFamily::Layers> ReadGlmLayers(const ConfigFields& fields, int32_t num_layers);
// Returns the KDA layers (from 0, ascending): all except the last of each layer_group_size layers. layer_types decides
// about layers after the last whole group. nullopt if the config has layer_types and no layer_group_size.
// INVALID_ARGUMENT (INVALID_SPEC) if both are missing, if the size is not 2 to `num_layers`, or if layer_types is
// missing and the last group is not whole.
absl::StatusOr<ModelFamily::Layers> ReadBailingLayers(const ConfigFields& fields, int32_t num_layers);

}  // namespace gdn
