#include "server/model/layer_tensors.h"

#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::array<std::string_view, 2> kPrefixes = {"model.layers.", "model.language_model.layers."};
constexpr std::string_view kModule = ".linear_attn.";

absl::Status InvalidTensor(std::string_view reason, const std::string& name, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, StrCat("tensor '", name, "' ", message),
                   {{"tensor", name}});
}

// The parts of "{prefix}{layer}.linear_attn.{tensor}".
struct TensorName {
  int32_t layer = 0;
  std::string_view tensor;
};

bool ParseTensorName(std::string_view name, std::string_view prefix, TensorName* parsed) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || !name.substr(dot).starts_with(kModule)) return false;
  parsed->tensor = name.substr(dot + kModule.size());
  return absl::SimpleAtoi(AbslView(name.substr(0, dot)), &parsed->layer);
}

// The one prefix of this checkpoint's linear_attn tensors.
absl::StatusOr<std::string_view> FindPrefix(const CheckpointFiles& files) {
  std::vector<std::string_view> found;
  for (const std::string_view prefix : kPrefixes) {
    TensorName parsed;
    const auto first = files.tensors().lower_bound(std::string(prefix));
    if (std::any_of(first, files.tensors().end(),
                    [&](const auto& entry) { return ParseTensorName(entry.first, prefix, &parsed); })) {
      found.push_back(prefix);
    }
  }
  if (found.size() == 1) return found.front();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the checkpoint has linear_attn tensors below ", found.empty() ? "neither" : "both",
                          " of 'model.layers.' and 'model.language_model.layers.'; expected them below one"));
}

struct LayerTensorSpec {
  LayerTensor tensor;
  std::vector<int64_t> shape;
};

// What a layer of this config consists of.
std::vector<LayerTensorSpec> LayerTensorSpecs(const ModelConfig& config) {
  const LayerDims& dims = config.dims;
  const int64_t hidden = dims.hidden_size;
  std::vector<LayerTensorSpec> specs;
  if (config.layout == ProjectionLayout::kInterleaved) {
    specs = {{LayerTensor::kInQkvz, {dims.conv_channels() + dims.value_features(), hidden}},
             {LayerTensor::kInBa, {2 * int64_t{dims.value_heads}, hidden}}};
  } else {
    specs = {{LayerTensor::kInQkv, {dims.conv_channels(), hidden}},
             {LayerTensor::kInZ, {dims.value_features(), hidden}},
             {LayerTensor::kInB, {dims.value_heads, hidden}},
             {LayerTensor::kInA, {dims.value_heads, hidden}}};
  }
  specs.push_back({LayerTensor::kConv, {dims.conv_channels(), 1, dims.conv_width}});
  specs.push_back({LayerTensor::kALog, {dims.value_heads}});
  specs.push_back({LayerTensor::kDtBias, {dims.value_heads}});
  specs.push_back({LayerTensor::kNorm, {dims.value_dim}});
  specs.push_back({LayerTensor::kOut, {hidden, dims.value_features()}});
  return specs;
}

// Tensors that the layers of this config cannot have would change the result if they were passed over.
absl::Status CheckNoOtherTensors(const ModelConfig& config, std::string_view prefix, const CheckpointFiles& files,
                                 const std::vector<LayerTensorSpec>& specs) {
  for (const auto& [name, file] : files.tensors()) {
    TensorName parsed;
    if (!ParseTensorName(name, prefix, &parsed)) continue;
    if (!std::binary_search(config.gdn_layers.begin(), config.gdn_layers.end(), parsed.layer)) {
      return InvalidTensor(reason::kInvalidSpec, name,
                           StrCat("belongs to layer ", parsed.layer,
                                  ", which is not a linear_attention layer by the config; expected the config and the "
                                  "weights to agree"));
    }
    if (parsed.tensor == "conv1d.bias") {
      return InvalidTensor(reason::kInvalidSpec, name, "was found; expected a causal conv1d without bias");
    }
    const bool known = std::any_of(specs.begin(), specs.end(), [&](const LayerTensorSpec& spec) {
      return parsed.tensor == LayerTensorName(spec.tensor);
    });
    if (!known) {
      return InvalidTensor(reason::kInvalidSpec, name,
                           StrCat("is not part of a ", config.family,
                                  " layer as served here; expected F32, F16 or BF16 weights as transformers saves them "
                                  "(no quantisation scales, no adapters)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view LayerTensorName(LayerTensor tensor) {
  static constexpr std::string_view kNames[] = {"in_proj_qkvz.weight",
                                                "in_proj_ba.weight",
                                                "in_proj_qkv.weight",
                                                "in_proj_z.weight",
                                                "in_proj_b.weight",
                                                "in_proj_a.weight",
                                                "conv1d.weight",
                                                "A_log",
                                                "dt_bias",
                                                "norm.weight",
                                                "out_proj.weight"};
  return kNames[static_cast<size_t>(tensor)];
}

absl::StatusOr<std::vector<LayerTensors>> FindLayerTensors(const ModelConfig& config, CheckpointFiles& files) {
  GDN_ASSIGN_OR_RETURN(const std::string_view prefix, FindPrefix(files));
  const std::vector<LayerTensorSpec> specs = LayerTensorSpecs(config);
  std::vector<LayerTensors> layers;
  for (const int32_t layer : config.gdn_layers) {
    LayerTensors& found = layers.emplace_back(LayerTensors{.layer = layer, .tensors = {}});
    for (const LayerTensorSpec& spec : specs) {
      const std::string name = StrCat(prefix, layer, kModule, LayerTensorName(spec.tensor));
      if (!files.Contains(name)) {
        return WithMetadata(
            absl::NotFoundError(StrCat("tensor '", name, "' is missing; expected shape ", ShapeToString(spec.shape),
                                       ", as every linear_attention layer of a ", config.family, " model has")),
            "tensor", name);
      }
      GDN_ASSIGN_OR_RETURN(TensorView view, files.Tensor(name));
      if (view.shape != spec.shape) {
        return InvalidTensor(reason::kInvalidTensorShape, name,
                             StrCat("has shape ", ShapeToString(view.shape), "; expected ", ShapeToString(spec.shape),
                                    " by the config (", LayerDimsToString(config.dims), ")"));
      }
      found.tensors.emplace(spec.tensor, std::move(view));
    }
  }
  GDN_RETURN_IF_ERROR(CheckNoOtherTensors(config, prefix, files, specs));
  return layers;
}

}  // namespace gdn
