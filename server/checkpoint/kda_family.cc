#include "server/checkpoint/kda_family.h"

#include <algorithm>

#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using std::string_view;
using Json = nlohmann::json;

constexpr string_view kAttnConfig = "linear_attn_config";
constexpr float kUsualLowerBound = -5.0f;  // the value that transformers takes if a config has none

// Returns the field `first` of `fields`, else the field `second` of `others`. If both are there, they must be equal.
absl::StatusOr<int32_t> EitherInt(const ConfigFields& fields, string_view first, const ConfigFields& others,
                                  string_view second, int32_t low, int32_t high) {
  if (!fields.Has(first)) return others.Int(second, low, high);
  GDN_ASSIGN_OR_RETURN(const int32_t value, fields.Int(first, low, high));
  if (!others.Has(second)) return value;
  GDN_ASSIGN_OR_RETURN(const int32_t twin, others.Int(second, low, high));
  if (twin == value) return value;
  return others.Invalid(second, StrCat(value, ", as ", fields.NameOf(first), " says"));
}

// The fields of linear layers. Published files have them in linear_attn_config. transformers saves them as flat fields.
// A config may have both.
class KdaFields {
 public:
  // Every field of linear_attn_config must be one of `known`.
  static absl::StatusOr<KdaFields> Make(const ConfigFields& fields, absl::Span<const string_view> known) {
    KdaFields result(fields);
    const Json* object = fields.Find(kAttnConfig);
    if (object == nullptr) return result;
    if (!object->is_object()) return fields.Invalid(kAttnConfig, "an object");
    result.nested_.emplace(kAttnConfig, *object);
    for (const std::string& name : result.nested_->Names()) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      return result.nested_->Invalid(name,
                                     StrCat("none: layers are served without it (known are ", JoinedNames(known), ")"));
    }
    return result;
  }

  const ConfigFields* nested() const { return nested_.has_value() ? &*nested_ : nullptr; }

  // Returns the field `inside` of linear_attn_config, else the flat field `flat`. If both are there, they must be
  // equal.
  absl::StatusOr<int32_t> Int(string_view inside, string_view flat, int32_t low, int32_t high) const {
    if (!nested_.has_value()) return flat_.Int(flat, low, high);
    return EitherInt(*nested_, inside, flat_, flat, low, high);
  }

 private:
  explicit KdaFields(const ConfigFields& fields) : flat_(fields) {}

  const ConfigFields& flat_;
  std::optional<ConfigFields> nested_;
};

// Sets what all families have in common.
absl::Status ReadCommon(const ConfigFields& fields, int32_t heads, int32_t head_dim, int32_t conv_width,
                        LayerSpec& spec) {
  spec.projections = ProjectionLayout::kSeparate;
  spec.convolutions = ConvLayout::kSeparate;
  spec.output_gate = GateActivation::kSigmoid;
  spec.dims = {.key_heads = heads,
               .value_heads = heads,
               .key_dim = head_dim,
               .value_dim = head_dim,
               .conv_width = conv_width,
               .decay = DecayKind::kPerChannel};
  GDN_ASSIGN_OR_RETURN(spec.dims.hidden_size, fields.Int("hidden_size", 1, kMaxHiddenSize));
  GDN_ASSIGN_OR_RETURN(spec.norm_epsilon, fields.Positive("rms_norm_eps", 1.0f));
  return ValidateLayerDims(spec.dims);
}

absl::Status ReadLayer(const ConfigFields& fields, const KdaFields& kda, LayerSpec& spec) {
  GDN_ASSIGN_OR_RETURN(const int32_t heads, kda.Int("num_heads", "linear_num_heads", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(const int32_t head_dim, kda.Int("head_dim", "linear_head_dim", 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(const int32_t conv_width,
                       kda.Int("short_conv_kernel_size", "linear_conv_kernel_dim", 2, kMaxConvWidth));
  spec.decay_rank = head_dim;
  return ReadCommon(fields, heads, head_dim, conv_width, spec);
}

void SetBound(float bound, LayerSpec& spec) {
  spec.decay_gate = DecayGate::kBoundedSigmoid;
  spec.decay_lower_bound = bound;
}

absl::StatusOr<std::optional<float>> ReadBound(const ConfigFields& fields, string_view field) {
  return fields.OptionalNumber(field, kLeastDecayLowerBound, 0.0f);
}

constexpr string_view kKimiConfig[] = {"head_dim", "num_heads", "short_conv_kernel_size", "kda_layers",
                                       "full_attn_layers"};
constexpr string_view kBoundedConfig[] = {"head_dim",         "num_heads", "short_conv_kernel_size", "kda_layers",
                                          "full_attn_layers", "safe_gate", "gate_lower_bound"};

// ---- Lists of layers.

// Marks the layers that a list names. The list counts from `first`.
absl::Status MarkListed(const ConfigFields& fields, string_view field, int32_t first, std::vector<int>& marks,
                        int mark) {
  const Json& listed = *fields.Find(field);
  const auto invalid = [&] {
    return fields.Invalid(field,
                          StrCat("a list of layers of ", first, " to ", first + static_cast<int>(marks.size()) - 1,
                                 ", each in one of kda_layers and full_attn_layers"));
  };
  if (!listed.is_array()) return invalid();
  for (const Json& layer : listed) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() < static_cast<uint64_t>(first)) return invalid();
    const uint64_t index = layer.get<uint64_t>() - static_cast<uint64_t>(first);
    if (index >= marks.size() || marks[index] != 0) return invalid();
    marks[index] = mark;
  }
  return absl::OkStatus();
}

// Returns the linear layers of a linear_attn_config, or nothing if it has neither list. If it has one list only, all
// other layers belong to the other list.
absl::StatusOr<ModelFamily::Layers> ReadListedLayers(const ConfigFields& nested, int32_t first, int32_t num_layers) {
  constexpr int kLinear = 1;
  constexpr int kFull = 2;
  const bool has_linear = nested.Has("kda_layers");
  const bool has_full = nested.Has("full_attn_layers");
  if (!has_linear && !has_full) return ModelFamily::Layers();
  std::vector<int> marks(static_cast<size_t>(num_layers), 0);
  if (has_linear) GDN_RETURN_IF_ERROR(MarkListed(nested, "kda_layers", first, marks, kLinear));
  if (has_full) GDN_RETURN_IF_ERROR(MarkListed(nested, "full_attn_layers", first, marks, kFull));
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    int& mark = marks[static_cast<size_t>(i)];
    if (mark == 0 && has_linear && has_full) {
      return nested.Invalid("kda_layers", StrCat("it or full_attn_layers to name layer ", i + first, " of ", num_layers,
                                                 " (counted from ", first, ")"));
    }
    if (mark == kLinear || (mark == 0 && !has_linear)) layers.push_back(i);
  }
  if (!layers.empty()) return ModelFamily::Layers(std::move(layers));
  return nested.Invalid(has_linear ? "kda_layers" : "full_attn_layers",
                        "at least one layer that is not full attention");
}

}  // namespace

absl::Status CheckHiddenAct(const ConfigFields& fields) {
  const auto* value = fields.Find("hidden_act");
  if (value != nullptr && *value == "silu") return absl::OkStatus();
  return fields.Invalid("hidden_act", "\"silu\", the only activation these layers are defined with");
}

absl::Status ReadKimiLinear(const ConfigFields& fields, LayerSpec& spec) {
  GDN_RETURN_IF_ERROR(CheckHiddenAct(fields));
  GDN_ASSIGN_OR_RETURN(const KdaFields kda, KdaFields::Make(fields, kKimiConfig));
  GDN_RETURN_IF_ERROR(ReadLayer(fields, kda, spec));
  spec.output_gate_rank = spec.dims.value_dim;
  return absl::OkStatus();
}

// Ignores hidden_act, which belongs to other layers. Source: llama.cpp, conversion/kimi_k3.py and
// src/models/kimi-k3.cpp.
absl::Status ReadKimiK3(const ConfigFields& fields, LayerSpec& spec) {
  GDN_ASSIGN_OR_RETURN(const KdaFields kda, KdaFields::Make(fields, kBoundedConfig));
  GDN_RETURN_IF_ERROR(ReadLayer(fields, kda, spec));
  const int32_t heads = spec.dims.value_heads;
  if (fields.Has("num_attention_heads")) {
    GDN_ASSIGN_OR_RETURN(const int32_t all, fields.Int("num_attention_heads", 1, kMaxHeads));
    if (all != heads) {
      return fields.Invalid("num_attention_heads",
                            StrCat(heads, ", as the linear layers have: theirs are counted by it"));
    }
  }
  if (kda.nested() == nullptr) return absl::OkStatus();
  const bool bounded = kda.nested()->Has("gate_lower_bound");
  GDN_ASSIGN_OR_RETURN(const bool safe, kda.nested()->BoolOr("safe_gate", bounded));
  if (safe != bounded) {
    return kda.nested()->Invalid("safe_gate",
                                 bounded ? "true, as there is a gate_lower_bound" : "a gate_lower_bound beside it");
  }
  GDN_ASSIGN_OR_RETURN(const std::optional<float> bound, ReadBound(*kda.nested(), "gate_lower_bound"));
  if (bound.has_value()) SetBound(*bound, spec);
  return absl::OkStatus();
}

// The bound is linear_attn_config.gate_lower_bound or linear_lower_bound; if neither is there, the usual bound. There
// is no bound if linear_attn_config is absent and linear_lower_bound is null, or if safe_gate is false and one of the
// two is null and the other has no value.
absl::Status ReadGlm5Next(const ConfigFields& fields, LayerSpec& spec) {
  GDN_RETURN_IF_ERROR(CheckHiddenAct(fields));
  GDN_ASSIGN_OR_RETURN(const KdaFields kda, KdaFields::Make(fields, kBoundedConfig));
  GDN_RETURN_IF_ERROR(ReadLayer(fields, kda, spec));
  spec.output_gate_rank = spec.dims.value_dim;

  constexpr string_view kFlat = "linear_lower_bound";
  GDN_ASSIGN_OR_RETURN(const std::optional<float> flat, ReadBound(fields, kFlat));
  const ConfigFields* nested = kda.nested();
  if (nested == nullptr) {
    if (!fields.IsNull(kFlat)) SetBound(flat.value_or(kUsualLowerBound), spec);
    return absl::OkStatus();
  }
  GDN_ASSIGN_OR_RETURN(const bool safe, nested->BoolOr("safe_gate", true));
  GDN_ASSIGN_OR_RETURN(const std::optional<float> inside, ReadBound(*nested, "gate_lower_bound"));
  if (!safe) {
    if (!inside.has_value() && !flat.has_value() && (nested->IsNull("gate_lower_bound") || fields.IsNull(kFlat))) {
      return absl::OkStatus();
    }
    return nested->Invalid("safe_gate", "true, or a gate_lower_bound that is null and no linear_lower_bound");
  }
  const float bound = inside.value_or(flat.value_or(kUsualLowerBound));
  if (fields.IsNull(kFlat) || (flat.has_value() && *flat != bound)) {
    return InvalidConfigField(kFlat, flat.has_value() ? StrCat(*flat) : "null",
                              StrCat(bound, ", as ", nested->NameOf("gate_lower_bound"), " says"));
  }
  SetBound(bound, spec);
  return absl::OkStatus();
}

absl::Status ReadBailingHybrid(const ConfigFields& fields, LayerSpec& spec) {
  GDN_RETURN_IF_ERROR(CheckHiddenAct(fields));
  // Earlier models of this name have another linear attention.
  if (const Json* kind = fields.Find("linear_attention"); kind != nullptr && *kind != "kda") {
    return fields.Invalid("linear_attention", "\"kda\", or none");
  }
  if (const Json* full_rank = fields.Find("no_kda_lora"); full_rank != nullptr && *full_rank != true) {
    return fields.Invalid("no_kda_lora", "true, f_proj and g_proj of full rank");
  }
  GDN_ASSIGN_OR_RETURN(const int32_t heads,
                       EitherInt(fields, "linear_num_heads", fields, "num_attention_heads", 1, kMaxHeads));
  const string_view head_dim_field = fields.Has("linear_head_dim") ? "linear_head_dim" : "head_dim";
  GDN_ASSIGN_OR_RETURN(const int32_t head_dim, fields.Int(head_dim_field, 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(const int32_t conv_width,
                       EitherInt(fields, "linear_conv_kernel_dim", fields, "short_conv_kernel_size", 1, kMaxConvWidth));
  GDN_RETURN_IF_ERROR(ReadCommon(fields, heads, head_dim, conv_width, spec));
  GDN_ASSIGN_OR_RETURN(const bool safe, fields.BoolOr("kda_safe_gate", true));
  GDN_ASSIGN_OR_RETURN(const std::optional<float> bound, ReadBound(fields, "kda_lower_bound"));
  // Without the safe gate transformers still has a bound, but does not use it.
  if (safe) SetBound(bound.value_or(kUsualLowerBound), spec);
  return absl::OkStatus();
}

absl::StatusOr<ModelFamily::Layers> ReadKimiLayers(const ConfigFields& fields, int32_t num_layers) {
  const Json* object = fields.Find(kAttnConfig);  // read_spec has checked that it is an object
  ModelFamily::Layers layers;
  if (object != nullptr) {
    GDN_ASSIGN_OR_RETURN(layers, ReadListedLayers(ConfigFields(kAttnConfig, *object), /*first=*/1, num_layers));
  }
  if (layers.has_value() || fields.Has("layer_types")) return layers;
  return fields.Invalid("layer_types", StrCat("it or ", kAttnConfig, ".kda_layers"));
}

absl::StatusOr<ModelFamily::Layers> ReadGlmLayers(const ConfigFields& fields, int32_t num_layers) {
  const Json* object = fields.Find(kAttnConfig);
  if (object == nullptr) return ModelFamily::Layers();
  return ReadListedLayers(ConfigFields(kAttnConfig, *object), /*first=*/0, num_layers);
}

// Sources differ about the layers after the last whole group: llama.cpp takes them for full attention, transformers
// does not. So layer_types must decide about these layers.
absl::StatusOr<ModelFamily::Layers> ReadBailingLayers(const ConfigFields& fields, int32_t num_layers) {
  constexpr string_view kField = "layer_group_size";
  if (!fields.Has(kField) && fields.Has("layer_types")) return ModelFamily::Layers();
  GDN_ASSIGN_OR_RETURN(const int32_t group, fields.Int(kField, 2, num_layers));
  const Json* types = fields.Find("layer_types");
  const int32_t whole = num_layers / group * group;
  if (whole != num_layers && types == nullptr) {
    return fields.Invalid(kField, StrCat("a divisor of num_hidden_layers, ", num_layers, ", or layer_types"));
  }
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    const bool tail = i >= whole && types->is_array() && static_cast<size_t>(i) < types->size();
    if (tail ? (*types)[static_cast<size_t>(i)] == "linear_attention" : (i + 1) % group != 0) layers.push_back(i);
  }
  return ModelFamily::Layers(std::move(layers));
}

}  // namespace gdn
