#include "server/checkpoint/gguf_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/gguf_architecture.h"

namespace gdn {
namespace {

// Returns the format of a tensor's type. Only projections may be quantised.
absl::StatusOr<WeightFormat> EncodingOf(const std::string& name, GgmlType type, bool projection) {
  const std::optional<WeightFormat> format = WeightFormatOf(type);
  if (format && (projection || IsPlain(*format))) return *format;
  return InvalidGguf(
      "tensor", name, reason::kInvalidTensorDtype,
      StrCat("is ", GgmlTypeName(type), "; expected F32, F16 or BF16",
             projection ? ", Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS or IQ3_S"
                        : " (only projections may be quantised)"));
}

// Returns the file's name for the tensor.
std::string NameIn(const GgufFile& file, const ModelConfig& config, int32_t layer, LayerTensor tensor) {
  std::string name = GgufTensorName(*config.family, layer, tensor);
  if (tensor != LayerTensor::kDtBias || file.tensors().count(name) != 0) return name;
  std::string short_name = ShortDtBiasName(layer);
  return file.tensors().count(short_name) != 0 ? short_name : name;
}

absl::StatusOr<StoredTensor> FindTensor(const GgufFile& file, const ModelConfig& config, int32_t layer,
                                        LayerTensor tensor) {
  const LayerDims& dims = config.spec.dims;
  const std::string name = NameIn(file, config, layer, tensor);
  std::vector<int64_t> shape = LayerTensorShape(tensor, config.spec);
  const bool projection = shape.size() == 2;
  if (tensor == LayerTensor::kConv) shape = {dims.conv_channels(), dims.conv_width};
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) {
    return WithMetadata(
        absl::NotFoundError(StrCat("GGUF tensor '", name, "' is missing; expected shape ", ShapeToString(shape),
                                   ", as every linear block of a ", config.model_type, " model has")),
        "tensor", name);
  }
  GDN_ASSIGN_OR_RETURN(const WeightFormat encoding, EncodingOf(name, found->second.type, projection));
  StoredTensor stored{.encoding = encoding, .shape = found->second.shape, .data = found->second.data};
  DropSpareDimensions(tensor, config.spec, /*long_a_log=*/false, stored);
  if (stored.shape != shape) {
    return InvalidGguf("tensor", name, reason::kInvalidTensorShape,
                       StrCat("has shape ", ShapeToString(found->second.shape), "; expected ", ShapeToString(shape),
                              " by the keys (", LayerDimsToString(dims), ")"));
  }
  return stored;
}

// Checks the sign of ssm_a. With the wrong sign, states would grow instead of decay. If the architecture stores
// exp(A_log), the sign is changed.
absl::Status TakeDecay(GgufFile& file, const GgufArchitecture& architecture, const std::string& name,
                       StoredTensor& tensor) {
  std::vector<float> rates(static_cast<size_t>(tensor.ElementCount()));
  DecodeTensor(tensor, rates.data());
  const bool positive = architecture.positive_a;
  for (float& rate : rates) {
    if (!std::isfinite(rate) || (positive ? rate < 0.0f : rate > 0.0f)) {
      return InvalidGguf("tensor", name, reason::kInvalidTensorData,
                         StrCat("has a value of ", rate, "; expected ",
                                positive ? "exp(A_log), which is not below 0" : "-exp(A_log), which is not above 0"));
    }
    rate = -rate;
  }
  if (!positive) return absl::OkStatus();
  const std::string_view bytes(reinterpret_cast<const char*>(rates.data()), rates.size() * sizeof(float));
  tensor = {.encoding = WeightFormat::kF32, .shape = tensor.shape, .data = file.Keep(std::string(bytes))};
  return absl::OkStatus();
}

// Beginnings of tensor names that attention blocks have too.
constexpr std::string_view kSharedNames[] = {"attn_qkv.", "attn_gate.", "attn_q.",
                                             "attn_k.",   "attn_v.",    "attn_output."};

// Refuses tensors of linear layers that this model's layers cannot have, or that are in other blocks. Ignoring them
// would change the result.
absl::Status CheckNoOtherTensors(const GgufFile& file, const ModelConfig& config) {
  for (const auto& [name, tensor] : file.tensors()) {
    const std::string_view view = name;
    const size_t dot = view.find('.', 4);
    if (!view.starts_with("blk.") || dot == std::string_view::npos) continue;
    const std::string_view below = view.substr(dot + 1);
    const bool shared = std::any_of(std::begin(kSharedNames), std::end(kSharedNames),
                                    [&](std::string_view each) { return below.starts_with(each); });
    if (!below.starts_with("ssm_") && !shared) continue;
    int32_t layer = 0;
    const bool linear = absl::SimpleAtoi(AbslView(view.substr(4, dot - 4)), &layer) &&
                        std::ranges::binary_search(config.gdn_layers, layer);
    const bool is_read = linear && std::ranges::any_of(LayerTensorsOf(config.spec), [&](LayerTensor each) {
                           return view == NameIn(file, config, layer, each);
                         });
    if (linear ? is_read : shared) continue;
    if (linear && view == ShortDtBiasName(layer)) {
      return InvalidGguf("tensor", name, reason::kInvalidSpec,
                         StrCat("is there beside '", GgufTensorName(*config.family, layer, LayerTensor::kDtBias),
                                "', which is the same by another name; expected one of the two"));
    }
    return InvalidGguf("tensor", name, reason::kInvalidSpec,
                       linear ? StrCat("is not part of a ", config.model_type, " layer as served here")
                              : "belongs to a linear layer, but by the file's keys its block is not linear; expected "
                                "keys and tensors to agree");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Checkpoint> ReadGguf(GgufFile file) {
  GDN_ASSIGN_OR_RETURN(GgufConfig read, ReadGgufConfig(file));
  Checkpoint checkpoint{.config = std::move(read.config), .layers = {}, .files = {}};
  const ModelConfig& config = checkpoint.config;
  for (const int32_t layer : config.gdn_layers) {
    LayerTensors& found = checkpoint.layers.emplace_back(LayerTensors{.layer = layer, .tensors = {}});
    for (const LayerTensor tensor : LayerTensorsOf(config.spec)) {
      GDN_ASSIGN_OR_RETURN(StoredTensor stored, FindTensor(file, config, layer, tensor));
      found.tensors.emplace(tensor, std::move(stored));
    }
    GDN_RETURN_IF_ERROR(TakeDecay(file, *read.architecture, GgufTensorName(*config.family, layer, LayerTensor::kALog),
                                  found.tensors.at(LayerTensor::kALog)));
  }
  GDN_RETURN_IF_ERROR(CheckNoOtherTensors(file, config));
  checkpoint.files = std::move(file);
  return checkpoint;
}

}  // namespace gdn
