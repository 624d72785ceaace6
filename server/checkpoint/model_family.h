// The families of models with Gated DeltaNet layers that can be served. A family is a row of one table: how to read its
// config.json, and the names of a layer's tensors. All else follows from the LayerSpec.
//
// Thread safety: constants and free functions.
//
//   const ModelFamily* family = FindModelFamily("olmo_hybrid");
//   GDN_RETURN_IF_ERROR(family->read_spec(fields, spec));
//   LayerTensorName(*family, LayerTensor::kInZ);  // "g_proj.weight"
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/layer_spec.h"
#include "server/checkpoint/config_fields.h"

namespace gdn {

// The tensors of a layer. kIn* are rows of the input projection, each with the values of spec.projections that have it.
// Shapes follow from the spec.
enum class LayerTensor : uint8_t {
  kInQkvz,  // q, k, v and z; kInterleaved
  kInBa,    // b and a; kInterleaved and kFlatGroupedBa
  kInQkv,   // q, k and v; kFlat and kFlatGroupedBa
  kInQ,     // q; kSeparate, as kInK and kInV are
  kInK,
  kInV,
  kInZ,  // z; all but kInterleaved
  kInB,  // b; kFlat and kSeparate, as kInA is
  kInA,
  kZUp,    // if z has a low rank: the second matrix; kInZ is the first
  kAUp,    // if a has a low rank: the second matrix; kInA is the first
  kConv,   // convolution kernel of q, k and v; spec.convolutions is kJoint
  kConvQ,  // convolution kernel of q; spec.convolutions is kSeparate, as for kConvK and kConvV
  kConvK,
  kConvV,
  kALog,
  kDtBias,
  kNorm,
  kOut,
};

// Returns the tensors that a layer with this spec has, in the order of LayerTensor.
std::vector<LayerTensor> LayerTensorsOf(const LayerSpec& spec);

struct ModelFamily {
  static constexpr std::string_view kPrefixes[] = {"model.layers.", "model.language_model.layers."};
  static constexpr std::string_view kFullAttention[] = {"full_attention"};

  std::string_view name;
  absl::Span<const std::string_view> model_types;      // values that the config's model_type may have
  absl::Span<const std::string_view> text_types = {};  // values of text_config.model_type; empty: as model_types
  // True if recorded layers of a reference implementation have been replayed. Otherwise the family is served only if
  // the operator allows unverified families.
  bool verified = false;
  // The config fields about linear layers (IsLayerField) that the family knows. A config with any other such field
  // describes another layer, and is refused.
  absl::Span<const std::string_view> layer_fields = {};
  // Names that layer_types may have for layers that are not Gated DeltaNet.
  absl::Span<const std::string_view> other_layer_types = kFullAttention;
  // If a config does not say which layers are Gated DeltaNet: all but each default_interval-th are, counted from 1.
  // 0: the config must say it.
  int32_t default_interval = 0;
  absl::Status (*read_spec)(const ConfigFields& fields, LayerSpec& spec) = nullptr;
  // Reads the Gated DeltaNet layers (indices from 0, ascending) from other fields than layer_types. A null function, or
  // a result of nullopt, means that there are no such fields.
  using Layers = std::optional<std::vector<int32_t>>;
  absl::StatusOr<Layers> (*read_layers)(const ConfigFields& fields, int32_t num_layers) = nullptr;
  // The field that surely has a head's dimension. If a config lacks it, the length of the norm's weight counts, because
  // another field with that meaning may belong to other layers. Empty: what read_spec reads is right.
  std::string_view head_dim_field = {};
  // The name of a layer's module in "layers.L.MODULE.". If module_is_shared, attention layers use the same name. Gated
  // DeltaNet layers are then those with an A_log.
  std::string_view module = "linear_attn";
  bool module_is_shared = false;
  // Texts that may come before the layer's number in the names of tensors. A checkpoint uses exactly one of them.
  absl::Span<const std::string_view> prefixes = kPrefixes;
  // True if A_log may have more entries than there are value heads. Only the first ones count.
  bool long_a_log = false;
  struct TensorName {
    LayerTensor tensor;
    std::string_view name;
  };
  absl::Span<const TensorName> tensor_names;
};

absl::Span<const ModelFamily> ModelFamilies();

// Returns the family whose model_types have this one, a constant; null if there is none.
const ModelFamily* FindModelFamily(std::string_view model_type);

// Returns true if a config's field with this name is about linear attention layers in any family, by its whole name or
// its beginning (linear_, gdn_, kda_ and others).
bool IsLayerField(std::string_view field);

// Returns the tensor's name below the layer's module, such as "in_proj_qkvz.weight"; empty for a tensor that the family
// does not have.
std::string_view LayerTensorName(const ModelFamily& family, LayerTensor tensor);

}  // namespace gdn
