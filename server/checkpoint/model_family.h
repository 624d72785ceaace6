// The families of models whose Gated DeltaNet layers are served. A family is a row of one table: what its config.json
// says of a layer, and what the layer's tensors are called. All else follows from the LayerSpec.
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

// What a tensor of a layer is. Its shape follows from the spec.
enum class LayerTensor : uint8_t {
  kInQkvz,  // kInterleaved
  kInBa,    // kInterleaved and kFlatGroupedBa
  kInQkv,   // kFlat and kFlatGroupedBa
  kInQ,     // kSeparate, as the next two
  kInK,
  kInV,
  kInZ,  // all but kInterleaved
  kInB,  // kFlat and kSeparate, as the next one
  kInA,
  kZUp,    // where z is of a low rank: kInZ is then the matrix below it
  kAUp,    // and a likewise
  kConv,   // kJoint
  kConvQ,  // kSeparate, as the next two
  kConvK,
  kConvV,
  kALog,
  kDtBias,
  kNorm,
  kOut,
};

// The tensors of a layer, in the order above.
std::vector<LayerTensor> LayerTensorsOf(const LayerSpec& spec);

struct ModelFamily {
  static constexpr std::string_view kPrefixes[] = {"model.layers.", "model.language_model.layers."};

  std::string_view name;
  absl::Span<const std::string_view> model_types;      // of the config, or of its text_config
  absl::Span<const std::string_view> text_types = {};  // of text_config alone, where they are others
  // Whether layers recorded of a reference implementation have been replayed. Where not, the family is served only to
  // who asks for it.
  bool verified = false;
  // The fields that IsLayerField and that it has; another one would make it another layer, and is refused.
  absl::Span<const std::string_view> layer_fields = {};
  // What layer_types may call layers that are not Gated DeltaNet.
  absl::Span<const std::string_view> other_layer_types = {};
  // Every so many layers one is not, where the config does not say which; 0: it has to say.
  int32_t default_interval = 0;
  absl::Status (*read_spec)(const ConfigFields& fields, LayerSpec& spec) = nullptr;
  // What other fields than layer_types say of which layers they are, ascending; null, or nullopt: nothing.
  using Layers = std::optional<std::vector<int32_t>>;
  absl::StatusOr<Layers> (*read_layers)(const ConfigFields& fields, int32_t num_layers) = nullptr;
  // The field that says a head's dimension beyond doubt. Where a config lacks it, the length of the norm's weight says,
  // for another field of that meaning may be other layers'. Empty: what read_spec has read is beyond doubt.
  std::string_view head_dim_field = {};
  // What a layer's tensors are below, "layers.L.MODULE."; attention layers may use the name too. Whose layers are which
  // is then told by A_log, which only these have.
  std::string_view module = "linear_attn";
  bool module_is_shared = false;
  // What the names of layers begin with.
  absl::Span<const std::string_view> prefixes = kPrefixes;
  // A_log may have more entries than there are heads; the first ones count.
  bool long_a_log = false;
  struct TensorName {
    LayerTensor tensor;
    std::string_view name;
  };
  absl::Span<const TensorName> tensor_names;
};

absl::Span<const ModelFamily> ModelFamilies();

// Null where there is none.
const ModelFamily* FindModelFamily(std::string_view model_type);

// Whether a field of a config tells what its linear attention layers are, in the families that are known.
bool IsLayerField(std::string_view field);

// "in_proj_qkvz.weight"; empty for a tensor that the family does not have.
std::string_view LayerTensorName(const ModelFamily& family, LayerTensor tensor);

}  // namespace gdn
