// What the configs of Kimi Delta Attention (KDA) families say of a layer, and what its tensors are called: rows of
// model_family.cc's table are made of them.
//
// In all of them H = HV, K = V, and q, k, v and their convolutions are stored apart. Where a config says a thing twice,
// as in linear_attn_config and in flat fields, the two have to agree.
// Thread safety: constants and free functions.
//
//   GDN_RETURN_IF_ERROR(ReadKimiLinear(fields, spec));
//   GDN_ASSIGN_OR_RETURN(ModelFamily::Layers layers, ReadKimiLayers(fields, num_layers));
#pragma once

#include "absl/status/statusor.h"
#include "server/checkpoint/model_family.h"

namespace gdn {

// "silu", the only activation that convolutions of these layers have.
absl::Status CheckHiddenAct(const ConfigFields& fields);

absl::Status ReadKimiLinear(const ConfigFields& fields, LayerSpec& spec);
absl::Status ReadKimiK3(const ConfigFields& fields, LayerSpec& spec);
absl::Status ReadGlm5Next(const ConfigFields& fields, LayerSpec& spec);
absl::Status ReadBailingHybrid(const ConfigFields& fields, LayerSpec& spec);

// linear_attn_config's kda_layers and full_attn_layers, which count from 1; neither them nor layer_types: refused.
absl::StatusOr<ModelFamily::Layers> ReadKimiLayers(const ConfigFields& fields, int32_t num_layers);
// The same lists, counted from 0.
absl::StatusOr<ModelFamily::Layers> ReadGlmLayers(const ConfigFields& fields, int32_t num_layers);
// All but each layer_group_size-th.
absl::StatusOr<ModelFamily::Layers> ReadBailingLayers(const ConfigFields& fields, int32_t num_layers);

absl::Span<const ModelFamily::TensorName> KimiLinearTensors();  // low-rank f and g
absl::Span<const ModelFamily::TensorName> KimiK3Tensors();      // low-rank f
absl::Span<const ModelFamily::TensorName> BailingTensors();     // neither

}  // namespace gdn
