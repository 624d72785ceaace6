#include "server/checkpoint/gguf_checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/gguf_blocks.h"

namespace gdn {
namespace {

using TensorName = ModelFamily::TensorName;

constexpr int64_t kMaxBlocks = 4096;

// ---- What the architectures' tensors are called below "blk.N.".

constexpr TensorName kQwen35Names[] = {
    {LayerTensor::kInQkv, "attn_qkv.weight"},  {LayerTensor::kInZ, "attn_gate.weight"},
    {LayerTensor::kInB, "ssm_beta.weight"},    {LayerTensor::kInA, "ssm_alpha.weight"},
    {LayerTensor::kConv, "ssm_conv1d.weight"}, {LayerTensor::kALog, "ssm_a"},
    {LayerTensor::kDtBias, "ssm_dt.bias"},     {LayerTensor::kNorm, "ssm_norm.weight"},
    {LayerTensor::kOut, "ssm_out.weight"}};
// Older files have ssm_in, as Hugging Face has it; later ones split it.
constexpr TensorName kQwen3NextNames[] = {
    {LayerTensor::kInQkvz, "ssm_in.weight"},   {LayerTensor::kInQkv, "attn_qkv.weight"},
    {LayerTensor::kInZ, "attn_gate.weight"},   {LayerTensor::kInBa, "ssm_ba.weight"},
    {LayerTensor::kConv, "ssm_conv1d.weight"}, {LayerTensor::kALog, "ssm_a"},
    {LayerTensor::kDtBias, "ssm_dt.bias"},     {LayerTensor::kNorm, "ssm_norm.weight"},
    {LayerTensor::kOut, "ssm_out.weight"}};

constexpr std::string_view kQwen35Architectures[] = {"qwen35", "qwen35moe"};
constexpr std::string_view kQwen3NextArchitectures[] = {"qwen3next"};
struct Architecture {
  ModelFamily family;
  bool tiled;  // value heads, where a key head has several
};
const Architecture kArchitectures[] = {
    {{.name = "qwen3next",
      .model_types = kQwen3NextArchitectures,
      .verified = true,
      .default_interval = 4,
      .tensor_names = kQwen3NextNames},
     /*tiled=*/false},
    {{.name = "qwen35",
      .model_types = kQwen35Architectures,
      .verified = true,
      .default_interval = 4,
      .tensor_names = kQwen35Names},
     /*tiled=*/true},
};

const Architecture* FindArchitecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    const auto& names = architecture.family.model_types;
    if (std::find(names.begin(), names.end(), name) != names.end()) return &architecture;
  }
  return nullptr;
}

absl::Status Invalid(std::string_view what, const std::string& name, std::string_view reason,
                     std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, StrCat("GGUF ", what, " '", name, "' ", message),
                   {{what == "tensor" ? "tensor" : "field", name}});
}

// Reads a file's keys: "ARCHITECTURE.name".
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(StrCat(architecture, ".")) {}

  bool Has(std::string_view key) const { return file_.Has(StrCat(prefix_, key)); }
  absl::StatusOr<int32_t> Int(std::string_view key, int64_t low, int64_t high) const {
    const std::string name = StrCat(prefix_, key);
    GDN_ASSIGN_OR_RETURN(const int64_t value, file_.Int(name));
    if (value >= low && value <= high) return static_cast<int32_t>(value);
    return Invalid("key", name, reason::kInvalidSpec, StrCat("is ", value, "; expected [", low, ", ", high, "]"));
  }
  absl::StatusOr<float> Epsilon(std::string_view key) const {
    const std::string name = StrCat(prefix_, key);
    GDN_ASSIGN_OR_RETURN(const double value, file_.Float(name));
    if (value > 0.0 && value < 1.0) return static_cast<float>(value);
    return Invalid("key", name, reason::kInvalidSpec, StrCat("is ", value, "; expected a number above 0 and below 1"));
  }
  // Whether each block is linear; of as many as there are.
  absl::StatusOr<std::vector<bool>> Blocks(std::string_view key, int32_t blocks) const {
    const std::string name = StrCat(prefix_, key);
    GDN_ASSIGN_OR_RETURN(std::vector<bool> values, file_.Bools(name));
    if (values.size() == static_cast<size_t>(blocks)) return values;
    return Invalid("key", name, reason::kInvalidSpec,
                   StrCat("has ", values.size(), " values; expected one for each of the ", blocks, " blocks"));
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

absl::StatusOr<LayerDims> ReadDims(const Keys& keys) {
  LayerDims dims;
  GDN_ASSIGN_OR_RETURN(dims.key_heads, keys.Int("ssm.group_count", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(dims.value_heads, keys.Int("ssm.time_step_rank", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(dims.key_dim, keys.Int("ssm.state_size", 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(dims.conv_width, keys.Int("ssm.conv_kernel", 2, kMaxConvWidth));
  GDN_ASSIGN_OR_RETURN(dims.hidden_size, keys.Int("embedding_length", 1, kMaxHiddenSize));
  GDN_ASSIGN_OR_RETURN(const int32_t values, keys.Int("ssm.inner_size", 1, int64_t{kMaxHeads} * kMaxHeadDim));
  if (values % dims.value_heads != 0) {
    return Invalid("key", "ssm.inner_size", reason::kInvalidSpec,
                   StrCat("is ", values, "; expected a multiple of ssm.time_step_rank, ", dims.value_heads));
  }
  dims.value_dim = values / dims.value_heads;
  GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
  return dims;
}

absl::Status ReadLayers(const Keys& keys, ModelConfig& config) {
  GDN_ASSIGN_OR_RETURN(const int32_t blocks, keys.Int("block_count", 1, kMaxBlocks));
  int32_t predicting = 0;  // blocks behind the model's own, which are attention
  if (keys.Has("nextn_predict_layers")) {
    GDN_ASSIGN_OR_RETURN(predicting, keys.Int("nextn_predict_layers", 0, blocks - 1));
  }
  config.num_layers = blocks - predicting;
  std::vector<bool> linear;
  if (keys.Has("attention.recurrent_layers")) {
    GDN_ASSIGN_OR_RETURN(linear, keys.Blocks("attention.recurrent_layers", blocks));
  } else {
    int32_t interval = config.family->default_interval;
    if (keys.Has("full_attention_interval")) {
      GDN_ASSIGN_OR_RETURN(interval, keys.Int("full_attention_interval", 2, kMaxBlocks));
    }
    for (int32_t i = 0; i < blocks; ++i) linear.push_back((i + 1) % interval != 0);
  }
  for (int32_t i = 0; i < config.num_layers; ++i) {
    if (linear[static_cast<size_t>(i)]) config.gdn_layers.push_back(i);
  }
  if (!config.gdn_layers.empty()) return absl::OkStatus();
  return Invalid("key", "attention.recurrent_layers", reason::kInvalidSpec, "names no Gated DeltaNet layer");
}

std::string NameOf(const ModelFamily& family, int32_t layer, LayerTensor tensor) {
  return StrCat("blk.", layer, ".", LayerTensorName(family, tensor));
}

ProjectionLayout ProjectionsOf(const GgufFile& file, const ModelConfig& config) {
  const ModelFamily& family = *config.family;
  if (LayerTensorName(family, LayerTensor::kInBa).empty()) return ProjectionLayout::kFlat;
  const bool unsplit = file.tensors().count(NameOf(family, config.gdn_layers[0], LayerTensor::kInQkvz)) != 0;
  return unsplit ? ProjectionLayout::kInterleaved : ProjectionLayout::kFlatGroupedBa;
}

absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file) {
  GDN_ASSIGN_OR_RETURN(const std::string_view name, file.Text("general.architecture"));
  const Architecture* architecture = FindArchitecture(name);
  if (architecture == nullptr) {
    return Invalid("key", "general.architecture", reason::kInvalidSpec,
                   StrCat("is '", name, "'; expected qwen3next, qwen35 or qwen35moe"));
  }
  ModelConfig config{.model_type = std::string(name), .family = &architecture->family};
  const Keys keys(file, name);
  LayerSpec& spec = config.spec;
  GDN_ASSIGN_OR_RETURN(spec.dims, ReadDims(keys));
  GDN_ASSIGN_OR_RETURN(spec.norm_epsilon, keys.Epsilon("attention.layer_norm_rms_epsilon"));
  GDN_RETURN_IF_ERROR(ReadLayers(keys, config));
  spec.projections = ProjectionsOf(file, config);
  spec.a_log = ALogConvention::kNegativeExp;
  if (architecture->tiled && spec.dims.group() > 1) spec.value_heads = ValueHeadOrder::kTiled;
  GDN_RETURN_IF_ERROR(ValidateLayerSpec(spec));
  return config;
}

// Only projections may be quantised.
absl::StatusOr<WeightFormat> EncodingOf(const std::string& name, GgmlType type, bool projection) {
  const std::optional<WeightFormat> format = WeightFormatOf(type);
  if (format && (projection || IsPlain(*format))) return *format;
  return Invalid("tensor", name, reason::kInvalidTensorDtype,
                 StrCat("is ", GgmlTypeName(type), "; expected F32, F16 or BF16",
                        projection ? ", Q8_0, Q4_0, Q4_K, Q5_K or Q6_K" : " for what is no projection"));
}

absl::StatusOr<StoredTensor> FindTensor(const GgufFile& file, const ModelConfig& config, int32_t layer,
                                        LayerTensor tensor) {
  const LayerDims& dims = config.spec.dims;
  const std::string name = NameOf(*config.family, layer, tensor);
  std::vector<int64_t> shape = LayerTensorShape(tensor, dims);
  if (tensor == LayerTensor::kConv) shape = {dims.conv_channels(), dims.conv_width};
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) {
    return WithMetadata(
        absl::NotFoundError(StrCat("GGUF tensor '", name, "' is missing; expected shape ", ShapeToString(shape),
                                   ", as every linear block of a ", config.model_type, " model has")),
        "tensor", name);
  }
  if (found->second.shape != shape) {
    return Invalid("tensor", name, reason::kInvalidTensorShape,
                   StrCat("has shape ", ShapeToString(found->second.shape), "; expected ", ShapeToString(shape),
                          " by the keys (", LayerDimsToString(dims), ")"));
  }
  const bool projection = shape.size() == 2 && tensor != LayerTensor::kConv;
  GDN_ASSIGN_OR_RETURN(const WeightFormat encoding, EncodingOf(name, found->second.type, projection));
  return StoredTensor{.encoding = encoding, .shape = std::move(shape), .data = found->second.data};
}

// A model whose converter writes +exp(A_log) there would otherwise grow where it should decay.
absl::Status CheckDecay(const std::string& name, const StoredTensor& tensor) {
  std::vector<float> rates(static_cast<size_t>(tensor.ElementCount()));
  DecodeTensor(tensor, rates.data());
  for (const float rate : rates) {
    if (rate <= 0.0f) continue;
    return Invalid("tensor", name, reason::kInvalidTensorData,
                   StrCat("has a value of ", rate, "; expected -exp(A_log), which is not above 0"));
  }
  return absl::OkStatus();
}

// Tensors of the layers' kind that they cannot have, or that other blocks have, would change the result.
absl::Status CheckNoOtherTensors(const GgufFile& file, const ModelConfig& config) {
  for (const auto& [name, tensor] : file.tensors()) {
    const std::string_view view = name;
    const size_t dot = view.find('.', 4);
    if (!view.starts_with("blk.") || dot == std::string_view::npos) continue;
    const std::string_view below = view.substr(dot + 1);
    const bool joined = below.starts_with("attn_qkv.") || below.starts_with("attn_gate.");
    if (!below.starts_with("ssm_") && !joined) continue;
    const auto of_layer = [&](int32_t layer) { return view.substr(4, dot - 4) == StrCat(layer); };
    const bool linear = std::any_of(config.gdn_layers.begin(), config.gdn_layers.end(), of_layer);
    const std::vector<LayerTensor> tensors = LayerTensorsOf(config.spec);
    const bool known = std::any_of(tensors.begin(), tensors.end(),
                                   [&](LayerTensor each) { return below == LayerTensorName(*config.family, each); });
    if (linear ? known : joined) continue;
    return Invalid("tensor", name, reason::kInvalidSpec,
                   linear ? StrCat("is not part of a ", config.model_type, " layer as served here")
                          : "is in a block that is not linear by the keys; expected the two to agree");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Checkpoint> ReadGguf(GgufFile file) {
  Checkpoint checkpoint;
  GDN_ASSIGN_OR_RETURN(checkpoint.config, ReadConfig(file));
  const ModelConfig& config = checkpoint.config;
  for (const int32_t layer : config.gdn_layers) {
    LayerTensors& found = checkpoint.layers.emplace_back(LayerTensors{.layer = layer, .tensors = {}});
    for (const LayerTensor tensor : LayerTensorsOf(config.spec)) {
      GDN_ASSIGN_OR_RETURN(StoredTensor stored, FindTensor(file, config, layer, tensor));
      found.tensors.emplace(tensor, std::move(stored));
    }
    GDN_RETURN_IF_ERROR(
        CheckDecay(NameOf(*config.family, layer, LayerTensor::kALog), found.tensors.at(LayerTensor::kALog)));
  }
  GDN_RETURN_IF_ERROR(CheckNoOtherTensors(file, config));
  checkpoint.files = std::move(file);
  return checkpoint;
}

}  // namespace gdn
