#include "server/checkpoint/lora_adapter.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/json_fault.h"
#include "base/files/mapped_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/config_fields.h"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kConfigFile = "adapter_config.json";
constexpr std::string_view kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kBase = "base_model.model.";  // PEFT puts this before the model's own names
constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";
constexpr int32_t kMaxRank = 65536;
constexpr float kMaxAlpha = 1e9f;

struct LoraConfig {
  double alpha = 0.0;
  int32_t rank = 0;
  bool any_rank = false;  // rank_pattern has other ranks for some modules
  bool by_root = false;   // scale by sqrt(r): rslora
  double ScaleOf(int64_t rank_of_pair) const {
    const auto r = static_cast<double>(rank_of_pair);
    return alpha / (by_root ? std::sqrt(r) : r);
  }
};

// If one of these fields is set, the adapter has another formula of A and B.
constexpr const char* kOtherKinds[] = {
    "use_dora",          "fan_in_fan_out", "use_qalora", "lora_bias", "alora_invocation_tokens",
    "layer_replication", "alpha_pattern",  "use_bdlora"};

bool IsSet(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  return value.is_structured() ? !value.empty() : !value.is_null();
}

absl::StatusOr<LoraConfig> ParseConfig(std::string_view text) {
  const Json root = Json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("it is not a JSON object", root.is_discarded() ? StrCat(": ", JsonFault(text)) : "",
                            "; expected PEFT's ", kConfigFile));
  }
  const ConfigFields fields(root, nullptr);
  const Json* type = fields.Find("peft_type");
  if (type == nullptr || *type != "LORA") return fields.Invalid("peft_type", "\"LORA\"");
  for (const char* field : kOtherKinds) {
    const Json* value = fields.Find(field);
    if (value == nullptr || !IsSet(*value)) continue;
    return fields.Invalid(field, "none: adapters are merged as W + scale B A; merge this one into its model with PEFT");
  }
  const Json* bias = fields.Find("bias");
  if (bias != nullptr && *bias != "none") return fields.Invalid("bias", "\"none\"");
  // These initialisations change the model's own weights, so A and B alone are not the whole difference.
  const Json* init = fields.Find("init_lora_weights");
  if (init != nullptr && init->is_string()) {
    const auto& name = init->get_ref<const std::string&>();
    for (const std::string_view changes : {"pissa", "olora", "corda"}) {
      if (!std::string_view(name).starts_with(changes)) continue;
      return fields.Invalid("init_lora_weights",
                            "true, false or another one that leaves the model's own weights as they are; convert "
                            "the adapter to plain LoRA with PEFT");
    }
  }
  LoraConfig config;
  GDN_ASSIGN_OR_RETURN(config.rank, fields.Int("r", 1, kMaxRank));
  GDN_ASSIGN_OR_RETURN(config.alpha, fields.Positive("lora_alpha", kMaxAlpha));
  GDN_ASSIGN_OR_RETURN(config.by_root, fields.BoolOr("use_rslora", false));
  const Json* ranks = fields.Find("rank_pattern");
  config.any_rank = ranks != nullptr && IsSet(*ranks);
  return config;
}

// Returns the projection "in_proj_z.weight" for "in_proj_z.lora_A.weight"; nothing if there is no such projection.
std::optional<LayerTensor> ProjectionOf(const ModelConfig& config, std::string_view tensor, std::string_view ending) {
  const std::string weight = StrCat(tensor.substr(0, tensor.size() - ending.size()), ".weight");
  for (const LayerTensor each : LayerTensorsOf(config.spec)) {
    const bool is_matrix = LayerTensorShape(each, config.spec).size() == 2;
    if (is_matrix && LayerTensorName(*config.family, each) == weight) return each;
  }
  return std::nullopt;
}

absl::StatusOr<TensorView> Factor(const SafetensorsFile& file, const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const TensorView view, file.Tensor(name));
  if (view.shape.size() != 2) {
    return InvalidTensor(reason::kInvalidTensorShape, name,
                         StrCat("has shape ", ShapeToString(view.shape), "; expected a matrix"));
  }
  if (!AnyNonFinite(view.dtype, view.data.data(), static_cast<size_t>(view.ElementCount()))) return view;
  return InvalidTensor(reason::kInvalidTensorData, name,
                       "has a value that is infinite or no number; expected finite ones: fetch the adapter anew");
}

// Returns the place in the model that an adapter's tensor is for; nothing if no layer has such a module.
std::optional<LayerTensorPlace> PlaceInModel(const ModelFamily& family, std::string_view name) {
  if (!name.starts_with(kBase)) return std::nullopt;
  name.remove_prefix(kBase.size());
  for (const std::string_view prefix : family.prefixes) {
    if (const auto place = PlaceOf(name, prefix, family); place.has_value()) return place;
  }
  return std::nullopt;
}

class AdapterReader {
 public:
  AdapterReader(const LoraConfig& lora, const ModelConfig& config, LoraAdapter& adapter)
      : lora_(lora), config_(config), adapter_(adapter) {}

  absl::Status Read() {
    for (const auto& [name, entry] : adapter_.file.entries()) {
      const auto place = PlaceInModel(*config_.family, name);
      if (!place.has_value()) continue;
      const auto& layers = config_.gdn_layers;
      if (!std::binary_search(layers.begin(), layers.end(), place->layer)) {
        if (config_.family->module_is_shared) continue;
        return InvalidTensor(reason::kInvalidSpec, name,
                             StrCat("is for layer ", place->layer,
                                    ", which is not a linear_attention layer of this model; expected an adapter that "
                                    "was trained on it"));
      }
      GDN_RETURN_IF_ERROR(Take(name, *place));
    }
    return CheckPairs();
  }

 private:
  absl::Status Take(const std::string& name, const LayerTensorPlace& place) {
    const bool is_a = place.tensor.ends_with(kA);
    const bool is_b = place.tensor.ends_with(kB);
    const auto projection = is_a || is_b ? ProjectionOf(config_, place.tensor, kA) : std::nullopt;
    if (!projection.has_value()) {
      return InvalidTensor(reason::kInvalidSpec, name,
                           StrCat("cannot be merged into a ", config_.model_type,
                                  " layer; expected lora_A.weight and lora_B.weight of in- and out-projections alone: "
                                  "train without it, or merge the adapter into its model with PEFT"));
    }
    GDN_ASSIGN_OR_RETURN(const TensorView factor, Factor(adapter_.file, name));
    const std::vector<int64_t> shape = LayerTensorShape(*projection, config_.spec);
    const int64_t rank = factor.shape[is_a ? 0 : 1];
    const bool fits = is_a ? factor.shape[1] == shape[1] : factor.shape[0] == shape[0];
    if (!fits || rank < 1 || rank > kMaxRank || (!lora_.any_rank && rank != lora_.rank)) {
      return InvalidTensor(
          reason::kInvalidTensorShape, name,
          StrCat("has shape ", ShapeToString(factor.shape), "; expected ",
                 is_a ? StrCat("[", lora_.rank, ", ", shape[1], "]") : StrCat("[", shape[0], ", ", lora_.rank, "]"),
                 " for weights of ", ShapeToString(shape)));
    }
    LoraPair& pair = adapter_.layers[place.layer][*projection];
    (is_a ? pair.a : pair.b) = factor;
    (is_a ? pair.a_name : pair.b_name) = name;
    return absl::OkStatus();
  }

  absl::Status CheckPairs() {
    for (auto& [layer, pairs] : adapter_.layers) {
      for (auto& [projection, pair] : pairs) {
        if (pair.a_name.empty() || pair.b_name.empty()) {
          return InvalidTensor(reason::kInvalidSpec, StrCat(pair.a_name, pair.b_name),
                               "is there without its other half; expected lora_A and lora_B");
        }
        if (pair.a.shape[0] != pair.b.shape[1]) {
          return InvalidTensor(reason::kInvalidTensorShape, pair.b_name,
                               StrCat("has shape ", ShapeToString(pair.b.shape), ", and its lora_A ",
                                      ShapeToString(pair.a.shape), "; expected one rank"));
        }
        pair.scale = lora_.ScaleOf(pair.a.shape[0]);
      }
    }
    return absl::OkStatus();
  }

  const LoraConfig& lora_;
  const ModelConfig& config_;
  LoraAdapter& adapter_;
};

// Adds scale B A to the weights.
void AddPair(const LoraPair& pair, float* weights) {
  const std::vector<float> a = FloatsOf(pair.a);
  const std::vector<float> b = FloatsOf(pair.b);
  const auto rank = static_cast<size_t>(pair.a.shape[0]);
  const auto cols = static_cast<size_t>(pair.a.shape[1]);
  const auto rows = static_cast<size_t>(pair.b.shape[0]);
  std::vector<double> sum(cols);
  for (size_t row = 0; row < rows; ++row, weights += cols) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (size_t k = 0; k < rank; ++k) {
      const double factor = pair.scale * b[row * rank + k];
      const float* of_a = a.data() + k * cols;
      for (size_t i = 0; i < cols; ++i) sum[i] += factor * of_a[i];
    }
    for (size_t i = 0; i < cols; ++i) weights[i] = static_cast<float>(weights[i] + sum[i]);
  }
}

}  // namespace

absl::StatusOr<LoraAdapter> OpenLoraAdapter(const std::string& folder, const ModelConfig& config) {
  if (config.spec.value_heads != ValueHeadOrder::kGrouped || config.spec.a_log != ALogConvention::kRaw) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("adapter '", folder,
                            "' is for a model in GGUF; expected a Hugging Face checkpoint, whose "
                            "projections are as the adapter was trained on"));
  }
  const std::string config_path = StrCat(folder, "/", kConfigFile);
  GDN_ASSIGN_OR_RETURN(const MappedFile config_file, MappedFile::Open(config_path));
  GDN_ASSIGN_OR_RETURN(const LoraConfig lora,
                       WithPrefix(ParseConfig(config_file.bytes()), StrCat("'", config_path, "'")));
  const std::string weights_path = StrCat(folder, "/", kWeightsFile);
  GDN_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(weights_path));
  LoraAdapter adapter{.layers = {}, .file = std::move(file)};
  GDN_RETURN_IF_ERROR(WithPrefix(AdapterReader(lora, config, adapter).Read(), StrCat("'", weights_path, "'")));
  return adapter;
}

MadeLayer MergeAdapter(const LoraAdapter& adapter, const LayerTensors& layer) {
  MadeLayer merged{.tensors = layer, .made = {}};
  const auto pairs = adapter.layers.find(layer.layer);
  if (pairs == adapter.layers.end()) return merged;
  for (const auto& [projection, pair] : pairs->second) {
    StoredTensor& stored = merged.tensors.tensors.at(projection);
    std::deque<std::string> unpacked;
    const StoredTensor base = Unpacked(stored, unpacked);
    std::string& bytes = merged.made.emplace_back(static_cast<size_t>(stored.ElementCount()) * sizeof(float), '\0');
    auto* weights = reinterpret_cast<float*>(bytes.data());
    DecodeTensor(base, weights);
    AddPair(pair, weights);
    stored = {.encoding = WeightFormat::kF32,
              .shape = base.shape,
              .data = bytes,
              .widened = base.widened || !IsPlain(base.encoding)};
  }
  return merged;
}

}  // namespace gdn
