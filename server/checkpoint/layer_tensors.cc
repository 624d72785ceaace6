#include "server/checkpoint/layer_tensors.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/packed_tensors.h"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {
namespace {

// A tensor that only linear layers have. Other layers may have other tensors in a module of the same name.
constexpr std::string_view kMark = "A_log";

std::string NameOf(const ModelFamily& family, std::string_view prefix, int32_t layer, LayerTensor tensor) {
  return StrCat(prefix, layer, ".", family.module, ".", LayerTensorName(family, tensor));
}

// Returns the prefix of this checkpoint's layers. There must be exactly one.
absl::StatusOr<std::string_view> FindPrefix(const ModelFamily& family, const CheckpointFiles& files) {
  std::vector<std::string_view> found;
  std::string all;
  for (const std::string_view prefix : family.prefixes) {
    StrAppend(&all, all.empty() ? "'" : "' and '", prefix);
    const auto first = files.tensors().lower_bound(std::string(prefix));
    if (std::any_of(first, files.tensors().end(),
                    [&](const auto& entry) { return PlaceOf(entry.first, prefix, family).has_value(); })) {
      found.push_back(prefix);
    }
  }
  if (found.size() == 1) return found.front();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the checkpoint has ", family.module, " tensors below ", found.empty() ? "neither" : "both",
                          " of ", all, "'; expected them below one"));
}

bool IsGdnLayer(const ModelConfig& config, int32_t layer) {
  return std::binary_search(config.gdn_layers.begin(), config.gdn_layers.end(), layer);
}

// Stands for a number of rows that is known only as a sum over several tensors.
constexpr int64_t kAnyRows = -1;

bool Matches(const std::vector<int64_t>& shape, const std::vector<int64_t>& expected) {
  return std::equal(shape.begin(), shape.end(), expected.begin(), expected.end(),
                    [](int64_t found, int64_t rows) { return rows == kAnyRows || found == rows; });
}

// Separate convolution kernels are joined in the order q, k, v. Only the sum of their rows is checked, because
// transformers cuts the joined kernel into three equal parts when it saves a model, whatever the dimensions.
absl::Status CheckConvRows(const LayerTensors& layer, const std::string& first_name, const LayerDims& dims) {
  int64_t rows = 0;
  for (const LayerTensor tensor : {LayerTensor::kConvQ, LayerTensor::kConvK, LayerTensor::kConvV}) {
    rows += layer.tensors.at(tensor).shape[0];
  }
  if (rows == dims.conv_channels()) return absl::OkStatus();
  return InvalidTensor(reason::kInvalidTensorShape, first_name,
                       StrCat("and those of k and v have ", rows, " channels together; expected ", dims.conv_channels(),
                              " by the config (", LayerDimsToString(dims), ")"));
}

// A tensor beside a weight that reveals its quantised format, by the end of the tensor's name.
struct QuantisedFormat {
  std::string_view ending;
  std::string_view name;
};
// Formats that are supported. Such a tensor is left over if others of its matrix are missing.
constexpr QuantisedFormat kReadFormats[] = {
    {".weight_packed", "compressed-tensors INT4 or NVFP4"},
    {".weight_global_scale", "compressed-tensors NVFP4"},
    {".weight_scale_2", "ModelOpt NVFP4"},
    {".input_scale", "ModelOpt or static FP8"},
    {".weight_scale", "compressed-tensors or ModelOpt"},
    {".weight_zero_point", "compressed-tensors"},
    {".weight_shape", "compressed-tensors"},
};
constexpr QuantisedFormat kOtherFormats[] = {
    {".weight_g_idx", "compressed-tensors whose groups follow the order of activations"},
    {".pre_quant_scale", "ModelOpt AWQ"},
    {".qweight", "GPTQ or AWQ"},
    {".qzeros", "GPTQ or AWQ"},
    {".scales", "GPTQ or AWQ"},
    {".g_idx", "GPTQ"},
    {".absmax", "bitsandbytes"},
    {".quant_map", "bitsandbytes"},
};

// Refuses the formats of kOtherFormats. Must run before the weights are looked up: such a format has other names for
// them, and they would be reported as missing.
absl::Status CheckFormat(const ModelConfig& config, std::string_view prefix, const CheckpointFiles& files) {
  for (const auto& [name, file] : files.tensors()) {
    const std::optional<LayerTensorPlace> place = PlaceOf(name, prefix, *config.family);
    if (!place.has_value()) continue;
    if (config.family->module_is_shared && !IsGdnLayer(config, place->layer)) continue;
    for (const QuantisedFormat& format : kOtherFormats) {
      if (!place->tensor.ends_with(format.ending)) continue;
      return InvalidTensor(reason::kInvalidSpec, name,
                           StrCat("belongs to a format of quantised weights that is not read (", format.name,
                                  "); expected F32, F16 or BF16 weights, or FP8, INT8, INT4 or NVFP4 as "
                                  "compressed-tensors or ModelOpt write them: convert the model again"));
    }
  }
  return absl::OkStatus();
}

// Refuses tensors that the layers of this config cannot have. Ignoring them would change the result.
absl::Status CheckNoOtherTensors(const ModelConfig& config, std::string_view prefix, const CheckpointFiles& files,
                                 const std::set<std::string>& read) {
  for (const auto& [name, file] : files.tensors()) {
    const std::optional<LayerTensorPlace> place = PlaceOf(name, prefix, *config.family);
    if (!place.has_value()) continue;
    if (!IsGdnLayer(config, place->layer)) {
      if (config.family->module_is_shared && place->tensor != kMark) continue;
      return InvalidTensor(reason::kInvalidSpec, name,
                           StrCat("belongs to layer ", place->layer,
                                  ", which is not a linear_attention layer by the config; expected the config and the "
                                  "weights to agree"));
    }
    if (place->tensor == "conv1d.bias") {
      return InvalidTensor(reason::kInvalidSpec, name, "was found; expected a causal conv1d without bias");
    }
    if (read.count(name) != 0) continue;
    for (const QuantisedFormat& format : kReadFormats) {
      if (!place->tensor.ends_with(format.ending)) continue;
      return InvalidTensor(reason::kInvalidSpec, name,
                           StrCat("belongs to quantised weights (", format.name,
                                  "), and the weights beside it are not; expected all tensors of the format, or none"));
    }
    return InvalidTensor(
        reason::kInvalidSpec, name,
        StrCat("is not part of a ", config.model_type,
               " layer as served here; expected weights as transformers saves them: F32, F16, BF16, or "
               "F8_E4M3 with block scales, and no adapters"));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<LayerTensorPlace> PlaceOf(std::string_view name, std::string_view prefix, const ModelFamily& family) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view below = name.substr(dot + 1);
  if (!below.starts_with(family.module) || !below.substr(family.module.size()).starts_with('.')) return std::nullopt;
  LayerTensorPlace place{.tensor = below.substr(family.module.size() + 1)};
  if (!absl::SimpleAtoi(AbslView(name.substr(0, dot)), &place.layer)) return std::nullopt;
  return place;
}

bool MadeLayer::HasMade(const char* data) const {
  return std::ranges::any_of(made, [data](const std::string& bytes) {
    return !std::less<>()(data, bytes.data()) && std::less<>()(data, bytes.data() + bytes.size());
  });
}

std::vector<HeadRows> LayerTensorRows(LayerTensor tensor, const LayerSpec& spec) {
  using enum LayerTensor;
  const LayerDims& dims = spec.dims;
  const HeadRows keys = {HeadRows::kKeyHead, dims.key_dim};
  const HeadRows values = {HeadRows::kValueHead, dims.value_dim};
  const HeadRows decays = {HeadRows::kValueHead, dims.decay_dim()};
  switch (tensor) {
    case kInQkvz:
      return {{HeadRows::kKeyHead, 2 * int64_t{dims.key_dim} + 2 * int64_t{dims.group()} * dims.value_dim}};
    case kInBa:
      return {{HeadRows::kKeyHead, 2 * int64_t{dims.group()}}};
    case kInQkv:
    case kConv:
      return {keys, keys, values};
    case kInQ:
    case kInK:
      return {keys};
    case kInZ:  // a low-rank matrix belongs to no head
      return {spec.output_gate_rank > 0 ? HeadRows{HeadRows::kAll, spec.output_gate_rank} : values};
    case kInV:
    case kZUp:
    case kOut:
      return {values};
    case kInA:
      return {spec.decay_rank > 0 ? HeadRows{HeadRows::kAll, spec.decay_rank} : decays};
    case kAUp:
    case kDtBias:
      return {decays};
    case kInB:
    case kALog:
      return {{HeadRows::kValueHead, 1}};
    case kNorm:
      return {{HeadRows::kAll, dims.value_dim}};
    case kConvQ:
    case kConvK:
    case kConvV:
      break;
  }
  return {};
}

std::vector<int64_t> LayerTensorShape(LayerTensor tensor, const LayerSpec& spec) {
  using enum LayerTensor;
  const LayerDims& dims = spec.dims;
  // With decays by channel, q, k and v have equal length. So three equal parts of the joined kernel are those of q, k
  // and v.
  if (tensor == kConvQ || tensor == kConvK || tensor == kConvV) {
    return {dims.decays_by_channel() ? dims.key_features() : kAnyRows, 1, dims.conv_width};
  }
  const int64_t counts[] = {dims.key_heads, dims.value_heads, 1};  // by HeadRows::Per
  int64_t rows = 0;
  for (const HeadRows& some : LayerTensorRows(tensor, spec)) rows += counts[some.per] * some.each;
  if (tensor == kALog || tensor == kDtBias || tensor == kNorm) return {rows};
  if (tensor == kConv) return {rows, 1, dims.conv_width};
  if (tensor == kZUp) return {rows, spec.output_gate_rank};
  if (tensor == kAUp) return {rows, spec.decay_rank};
  if (tensor == kOut) return {dims.hidden_size, rows};
  return {rows, dims.hidden_size};
}

void DropSpareDimensions(LayerTensor tensor, const LayerSpec& spec, bool long_a_log, StoredTensor& stored) {
  if (!spec.dims.decays_by_channel() || !IsPlain(stored.encoding)) return;
  const std::vector<int64_t> expected = LayerTensorShape(tensor, spec);
  const bool kernel = expected.size() == 3;
  if (!kernel && expected.size() != 1) return;
  const auto without_ones = [](std::vector<int64_t> shape) {
    shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
    return shape;
  };
  const std::vector<int64_t> found = without_ones(stored.shape);
  if (found == without_ones(expected)) {
    stored.shape = expected;
  } else if (long_a_log && tensor == LayerTensor::kALog && found.size() == 1 && found[0] > expected[0]) {
    stored.shape = expected;
    stored.data = stored.data.substr(0, static_cast<size_t>(expected[0]) * DTypeSize(WidenedDType(stored.encoding)));
  }
}

absl::StatusOr<int32_t> HeadDimOfNorm(const ModelConfig& config, CheckpointFiles& files) {
  GDN_ASSIGN_OR_RETURN(const std::string_view prefix, FindPrefix(*config.family, files));
  const std::string name = NameOf(*config.family, prefix, config.gdn_layers.front(), LayerTensor::kNorm);
  GDN_ASSIGN_OR_RETURN(const StoredTensor norm, files.Tensor(name));
  if (norm.shape.size() == 1 && norm.shape[0] >= 1 && norm.shape[0] <= kMaxHeadDim) {
    return static_cast<int32_t>(norm.shape[0]);
  }
  return InvalidTensor(reason::kInvalidTensorShape, name,
                       StrCat("has shape ", ShapeToString(norm.shape), "; expected [K], 1 to ", kMaxHeadDim));
}

absl::StatusOr<std::vector<LayerTensors>> FindLayerTensors(const ModelConfig& config, CheckpointFiles& files) {
  const ModelFamily& family = *config.family;
  GDN_ASSIGN_OR_RETURN(const std::string_view prefix, FindPrefix(family, files));
  GDN_RETURN_IF_ERROR(CheckFormat(config, prefix, files));
  const LayerDims& dims = config.spec.dims;
  const std::vector<LayerTensor> tensors = LayerTensorsOf(config.spec);
  std::vector<LayerTensors> layers;
  std::set<std::string> read;  // names of the tensors that the layers consist of
  for (const int32_t layer : config.gdn_layers) {
    LayerTensors& found = layers.emplace_back(LayerTensors{.layer = layer, .tensors = {}});
    for (const LayerTensor tensor : tensors) {
      const std::string name = NameOf(family, prefix, layer, tensor);
      const std::vector<int64_t> shape = LayerTensorShape(tensor, config.spec);
      if (shape.size() == 2) {
        GDN_ASSIGN_OR_RETURN(auto packed, FindPackedTensor(name, shape, config.quantization, files));
        if (packed.has_value()) {
          read.insert(packed->names.begin(), packed->names.end());
          found.tensors.emplace(tensor, std::move(packed->tensor));
          continue;
        }
      }
      if (!files.Contains(name)) {
        return WithMetadata(
            absl::NotFoundError(StrCat("tensor '", name, "' is missing; expected shape ", ShapeToString(shape),
                                       ", as every linear_attention layer of a ", config.model_type, " model has")),
            "tensor", name);
      }
      GDN_ASSIGN_OR_RETURN(StoredTensor view, files.Tensor(name));
      DropSpareDimensions(tensor, config.spec, family.long_a_log, view);
      if (!Matches(view.shape, shape)) {
        return InvalidTensor(reason::kInvalidTensorShape, name,
                             StrCat("has shape ", ShapeToString(view.shape), "; expected ", ShapeToString(shape),
                                    " by the config (", LayerDimsToString(dims), ")"));
      }
      read.insert(name);
      if (view.encoding == WeightFormat::kF8E4M3) read.insert(StrCat(name, kScaleSuffix));
      found.tensors.emplace(tensor, std::move(view));
    }
    if (config.spec.convolutions == ConvLayout::kSeparate) {
      GDN_RETURN_IF_ERROR(CheckConvRows(found, NameOf(family, prefix, layer, LayerTensor::kConvQ), dims));
    }
  }
  GDN_RETURN_IF_ERROR(CheckNoOtherTensors(config, prefix, files, read));
  return layers;
}

}  // namespace gdn
