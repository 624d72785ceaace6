#include "server/checkpoint/model_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/files/json_fault.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kGdnLayerType = "linear_attention";
constexpr int32_t kMaxLayers = 4096;

bool Contains(absl::Span<const std::string_view> list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

absl::StatusOr<const ModelFamily*> FamilyOf(const Json* model_type) {
  if (model_type != nullptr && model_type->is_string()) {
    const ModelFamily* family = FindModelFamily(model_type->get_ref<const std::string&>());
    if (family != nullptr) return family;
  }
  std::string types;
  for (const ModelFamily& family : ModelFamilies())
    StrAppend(&types, types.empty() ? "" : ", ", JoinedNames(family.model_types));
  return InvalidConfigField("model_type", ConfigValueText(model_type), StrCat("one of ", types));
}

// Checks that the nested part is of the same family. In another family it would be another layer.
absl::Status CheckTextType(const ModelFamily& family, const Json& text) {
  const auto type = text.find("model_type");
  const auto& types = family.text_types.empty() ? family.model_types : family.text_types;
  if (type == text.end() || (type->is_string() && Contains(types, type->get_ref<const std::string&>()))) {
    return absl::OkStatus();
  }
  return InvalidConfigField("text_config.model_type", ConfigValueText(&*type),
                            StrCat("one of ", JoinedNames(types), ", as model_type says"));
}

absl::Status CheckNoOtherFields(const ModelFamily& family, const ConfigFields& fields) {
  for (const std::string& name : fields.Names()) {
    if (!IsLayerField(name) || Contains(family.layer_fields, name)) continue;
    return fields.Invalid(name, StrCat("none: layers of a ", family.name, " model are served without it (known are ",
                                       JoinedNames(family.layer_fields), ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LayersOfTypes(const ModelFamily& family, const Json& types, int32_t num_layers) {
  if (!types.is_array() || types.size() != static_cast<size_t>(num_layers)) {
    return InvalidConfigField(
        "layer_types", types.is_array() ? StrCat("a list of ", types.size(), " entries") : ConfigValueText(&types),
        StrCat("a list with one entry for each of the ", num_layers, " layers"));
  }
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    const Json& type = types[static_cast<size_t>(i)];
    if (type == kGdnLayerType) {
      layers.push_back(i);
    } else if (!type.is_string() || !Contains(family.other_layer_types, type.get_ref<const std::string&>())) {
      return InvalidConfigField(StrCat("layer_types[", i, "]"), ConfigValueText(&type),
                                StrCat("\"", kGdnLayerType, "\" or ", JoinedNames(family.other_layer_types)));
    }
  }
  if (!layers.empty()) return layers;
  return InvalidConfigField("layer_types", "without a Gated DeltaNet layer",
                            StrCat("at least one \"", kGdnLayerType, "\""));
}

// Returns all layers except those in the list `listed`, which counts from 0.
absl::StatusOr<std::vector<int32_t>> LayersNotListed(const Json& listed, int32_t num_layers) {
  constexpr std::string_view kField = "full_attention_layers";
  std::vector<bool> full(static_cast<size_t>(num_layers), false);
  bool valid = listed.is_array();
  for (size_t i = 0; valid && i < listed.size(); ++i) {
    const Json& layer = listed[i];
    valid = layer.is_number_unsigned() && layer.get<uint64_t>() < full.size() && !full[layer.get<size_t>()];
    if (valid) full[layer.get<size_t>()] = true;
  }
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    if (!full[static_cast<size_t>(i)]) layers.push_back(i);
  }
  if (valid && !layers.empty()) return layers;
  return InvalidConfigField(kField, ConfigValueText(&listed),
                            StrCat("a list of different layers of 0 to ", num_layers - 1, ", not of all"));
}

absl::StatusOr<std::vector<int32_t>> ParseGdnLayers(const ModelFamily& family, const ConfigFields& fields,
                                                    int32_t num_layers) {
  ModelFamily::Layers own;
  if (family.read_layers != nullptr) {
    GDN_ASSIGN_OR_RETURN(own, family.read_layers(fields, num_layers));
  }
  if (const Json* types = fields.Find("layer_types")) {
    GDN_ASSIGN_OR_RETURN(std::vector<int32_t> layers, LayersOfTypes(family, *types, num_layers));
    if (!own.has_value() || *own == layers) return layers;
    return fields.Invalid("layer_types", "the linear layers that the config's other fields name");
  }
  if (own.has_value()) return *std::move(own);
  if (const Json* listed = fields.Find("full_attention_layers")) return LayersNotListed(*listed, num_layers);
  int32_t interval = family.default_interval;
  if (fields.Has("full_attention_interval")) {
    // With 1, every layer would be full attention, and there would be nothing to serve.
    GDN_ASSIGN_OR_RETURN(interval, fields.Int("full_attention_interval", 2, kMaxLayers));
  }
  if (interval == 0) {
    return fields.Invalid("layer_types", StrCat("it or full_attention_layers, as a ", family.name, " model has"));
  }
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    if ((i + 1) % interval != 0) layers.push_back(i);
  }
  return layers;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json) {
  const std::string text_of_json = QuoteNonFinite(json);
  const Json root = Json::parse(text_of_json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
        StrCat("the config is not JSON: ", JsonFault(text_of_json), "; expected a Hugging Face config.json"));
  }
  if (!root.is_object()) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
        StrCat("the config is a JSON ", root.type_name(), ", not an object; expected a Hugging Face config.json"));
  }
  ModelConfig config;
  const auto model_type = root.find("model_type");
  GDN_ASSIGN_OR_RETURN(config.family, FamilyOf(model_type == root.end() ? nullptr : &*model_type));
  config.model_type = model_type->get<std::string>();

  const Json* text = nullptr;
  if (const auto it = root.find("text_config"); it != root.end() && !it->is_null()) {
    if (!it->is_object()) return InvalidConfigField("text_config", ConfigValueText(&*it), "an object");
    text = &*it;
    GDN_RETURN_IF_ERROR(CheckTextType(*config.family, *text));
  }
  const ConfigFields fields(root, text);
  GDN_RETURN_IF_ERROR(CheckNoOtherFields(*config.family, fields));
  GDN_RETURN_IF_ERROR(config.family->read_spec(fields, config.spec));
  GDN_RETURN_IF_ERROR(ValidateLayerSpec(config.spec));
  GDN_ASSIGN_OR_RETURN(config.quantization, ParseQuantizationConfig(fields));
  GDN_ASSIGN_OR_RETURN(config.num_layers, fields.Int("num_hidden_layers", 1, kMaxLayers));
  GDN_ASSIGN_OR_RETURN(config.gdn_layers, ParseGdnLayers(*config.family, fields, config.num_layers));
  const std::string_view head_dim = config.family->head_dim_field;
  config.head_dim_by_norm = !head_dim.empty() && !fields.Has(head_dim);
  return config;
}

}  // namespace gdn
