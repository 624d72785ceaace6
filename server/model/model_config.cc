#include "server/model/model_config.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 5> kFamilies = {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe",
                                                       "qwen3_5_moe_text"};
constexpr std::string_view kGdnLayerType = "linear_attention";
constexpr std::string_view kFullLayerType = "full_attention";
constexpr int32_t kMaxLayers = 4096;
// What transformers assumes where a config has neither layer_types nor full_attention_interval.
constexpr int32_t kDefaultFullAttentionInterval = 4;
// Long values, such as a list in place of a number, are cut in messages.
constexpr size_t kMaxValueText = 80;

std::string ValueText(const Json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMaxValueText) text = text.substr(0, kMaxValueText) + "...";
  return text;
}

absl::Status InvalidConfig(std::string_view field, std::string_view found, std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("config field '", field, "' is ", found, "; expected ", expected),
                   {{"field", std::string(field)}});
}

// The fields of a config whose text part may be nested.
class Fields {
 public:
  Fields(const Json& root, const Json* text) : root_(root), text_(text) {}

  // nullptr where the field is absent or null, which transformers writes for "not set".
  const Json* Find(const std::string& field) const {
    for (const Json* scope : {text_, &root_}) {
      if (scope == nullptr) continue;
      const auto it = scope->find(field);
      if (it != scope->end() && !it->is_null()) return &*it;
    }
    return nullptr;
  }

  absl::StatusOr<int32_t> Int(const std::string& field, int32_t low, int32_t high) const {
    const std::string expected = StrCat("an integer in [", low, ", ", high, "]");
    const Json* value = Find(field);
    if (value == nullptr) return InvalidConfig(field, "missing", expected);
    const bool in_range = value->is_number_unsigned() && value->get<uint64_t>() >= static_cast<uint64_t>(low) &&
                          value->get<uint64_t>() <= static_cast<uint64_t>(high);
    if (!in_range) return InvalidConfig(field, ValueText(*value), expected);
    return value->get<int32_t>();
  }

 private:
  const Json& root_;
  const Json* text_;
};

absl::Status CheckModelType(std::string_view field, const Json* value) {
  const bool known = value != nullptr && value->is_string() &&
                     std::find(kFamilies.begin(), kFamilies.end(),
                               std::string_view(value->get_ref<const std::string&>())) != kFamilies.end();
  if (known) return absl::OkStatus();
  std::string expected;
  for (const std::string_view family : kFamilies) StrAppend(&expected, expected.empty() ? "" : ", ", family);
  return InvalidConfig(field, value == nullptr ? "missing" : ValueText(*value), StrCat("one of ", expected));
}

absl::StatusOr<LayerDims> ParseDims(const Fields& fields) {
  LayerDims dims;
  GDN_ASSIGN_OR_RETURN(dims.key_heads, fields.Int("linear_num_key_heads", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(dims.value_heads, fields.Int("linear_num_value_heads", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(dims.key_dim, fields.Int("linear_key_head_dim", 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(dims.value_dim, fields.Int("linear_value_head_dim", 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(dims.conv_width, fields.Int("linear_conv_kernel_dim", 2, kMaxConvWidth));
  GDN_ASSIGN_OR_RETURN(dims.hidden_size, fields.Int("hidden_size", 1, kMaxHiddenSize));
  if (dims.value_heads % dims.key_heads != 0) {
    return InvalidConfig("linear_num_value_heads", StrCat(dims.value_heads),
                         StrCat("a multiple of linear_num_key_heads, which is ", dims.key_heads));
  }
  GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
  return dims;
}

absl::StatusOr<float> ParseNormEpsilon(const Fields& fields) {
  constexpr std::string_view kExpected = "a number above 0 and below 1";
  const Json* value = fields.Find("rms_norm_eps");
  if (value == nullptr) return InvalidConfig("rms_norm_eps", "missing", kExpected);
  if (!value->is_number()) return InvalidConfig("rms_norm_eps", ValueText(*value), kExpected);
  const float epsilon = static_cast<float>(value->get<double>());
  if (!(epsilon > 0.0f && epsilon < 1.0f)) return InvalidConfig("rms_norm_eps", ValueText(*value), kExpected);
  return epsilon;
}

absl::Status CheckHiddenAct(const Fields& fields) {
  const Json* value = fields.Find("hidden_act");
  if (value != nullptr && *value == "silu") return absl::OkStatus();
  return InvalidConfig("hidden_act", value == nullptr ? "missing" : ValueText(*value),
                       "\"silu\", the only activation these layers are defined with");
}

absl::StatusOr<std::vector<int32_t>> LayersOfTypes(const Json& types, int32_t num_layers) {
  if (!types.is_array() || types.size() != static_cast<size_t>(num_layers)) {
    return InvalidConfig("layer_types",
                         types.is_array() ? StrCat("a list of ", types.size(), " entries") : ValueText(types),
                         StrCat("a list with one entry for each of the ", num_layers, " layers"));
  }
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    const Json& type = types[static_cast<size_t>(i)];
    if (type == kGdnLayerType) {
      layers.push_back(i);
    } else if (type != kFullLayerType) {
      return InvalidConfig(StrCat("layer_types[", i, "]"), ValueText(type),
                           StrCat("\"", kGdnLayerType, "\" or \"", kFullLayerType, "\""));
    }
  }
  return layers;
}

absl::StatusOr<std::vector<int32_t>> ParseGdnLayers(const Fields& fields, int32_t num_layers) {
  std::vector<int32_t> layers;
  if (const Json* types = fields.Find("layer_types"); types != nullptr) {
    GDN_ASSIGN_OR_RETURN(layers, LayersOfTypes(*types, num_layers));
    if (layers.empty()) {
      return InvalidConfig("layer_types", "without a Gated DeltaNet layer",
                           StrCat("at least one \"", kGdnLayerType, "\""));
    }
    return layers;
  }
  int32_t interval = kDefaultFullAttentionInterval;
  if (fields.Find("full_attention_interval") != nullptr) {
    // At 1 every layer would be full attention, and there would be nothing to serve.
    GDN_ASSIGN_OR_RETURN(interval, fields.Int("full_attention_interval", 2, kMaxLayers));
  }
  for (int32_t i = 0; i < num_layers; ++i) {
    if ((i + 1) % interval != 0) layers.push_back(i);
  }
  return layers;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json) {
  const Json root = Json::parse(json.begin(), json.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     "the config is not a JSON object; expected a Hugging Face config.json");
  }
  const auto model_type = root.find("model_type");
  GDN_RETURN_IF_ERROR(CheckModelType("model_type", model_type == root.end() ? nullptr : &*model_type));

  const Json* text = nullptr;
  if (const auto it = root.find("text_config"); it != root.end() && !it->is_null()) {
    if (!it->is_object()) return InvalidConfig("text_config", ValueText(*it), "an object");
    text = &*it;
    if (const auto type = text->find("model_type"); type != text->end()) {
      GDN_RETURN_IF_ERROR(CheckModelType("text_config.model_type", &*type));
    }
  }
  const Fields fields(root, text);

  ModelConfig config;
  config.family = model_type->get<std::string>();
  config.layout = config.family == "qwen3_next" ? ProjectionLayout::kInterleaved : ProjectionLayout::kFlat;
  GDN_RETURN_IF_ERROR(CheckHiddenAct(fields));
  GDN_ASSIGN_OR_RETURN(config.dims, ParseDims(fields));
  GDN_ASSIGN_OR_RETURN(config.norm_epsilon, ParseNormEpsilon(fields));
  GDN_ASSIGN_OR_RETURN(config.num_layers, fields.Int("num_hidden_layers", 1, kMaxLayers));
  GDN_ASSIGN_OR_RETURN(config.gdn_layers, ParseGdnLayers(fields, config.num_layers));
  return config;
}

}  // namespace gdn
