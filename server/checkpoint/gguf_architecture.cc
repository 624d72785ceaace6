#include "server/checkpoint/gguf_architecture.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/gguf_keys.h"

namespace gdn {
namespace {

using TensorName = ModelFamily::TensorName;
using enum LayerTensor;
using LowerBound = GgufArchitecture::LowerBound;

constexpr int64_t kMaxBlocks = 4096;

// ---- Names of the architectures' tensors below "blk.N.".

// Ollama also converts Qwen3-Next to these architectures, and then leaves b and a in one tensor, ssm_ba.
constexpr TensorName kQwen35Names[] = {
    {kInQkv, "attn_qkv.weight"}, {kInZ, "attn_gate.weight"},   {kInB, "ssm_beta.weight"}, {kInA, "ssm_alpha.weight"},
    {kInBa, "ssm_ba.weight"},    {kConv, "ssm_conv1d.weight"}, {kALog, "ssm_a"},          {kDtBias, "ssm_dt.bias"},
    {kNorm, "ssm_norm.weight"},  {kOut, "ssm_out.weight"}};
constexpr TensorName kQwen4ExpNames[] = {
    {kInQkv, "attn_qkv.weight"}, {kInZ, "attn_gate.weight"},   {kInB, "ssm_beta.weight"},
    {kInA, "ssm_alpha.weight"},  {kConv, "ssm_conv1d.weight"}, {kALog, "ssm_a"},
    {kDtBias, "ssm_dt.bias"},    {kNorm, "ssm_norm.weight"},   {kOut, "ssm_out.weight"}};
// Older files have ssm_in, as Hugging Face does. Later files split it.
constexpr TensorName kQwen3NextNames[] = {
    {kInQkvz, "ssm_in.weight"}, {kInQkv, "attn_qkv.weight"},  {kInZ, "attn_gate.weight"},
    {kInBa, "ssm_ba.weight"},   {kConv, "ssm_conv1d.weight"}, {kALog, "ssm_a"},
    {kDtBias, "ssm_dt.bias"},   {kNorm, "ssm_norm.weight"},   {kOut, "ssm_out.weight"}};

// All KDA files have q, k, v and their convolution kernels in separate tensors. This architecture has two low-rank
// pairs, ssm_f and ssm_g. kimi-k3 has the pair ssm_f only, and bailingmoe3 (Ling) has none.
constexpr TensorName kKimiLinearNames[] = {
    {kInQ, "attn_q.weight"},         {kInK, "attn_k.weight"},         {kInV, "attn_v.weight"},
    {kInZ, "ssm_g_a.weight"},        {kZUp, "ssm_g_b.weight"},        {kInB, "ssm_beta.weight"},
    {kInA, "ssm_f_a.weight"},        {kAUp, "ssm_f_b.weight"},        {kConvQ, "ssm_conv1d_q.weight"},
    {kConvK, "ssm_conv1d_k.weight"}, {kConvV, "ssm_conv1d_v.weight"}, {kALog, "ssm_a"},
    {kDtBias, "ssm_dt.bias"},        {kNorm, "ssm_norm.weight"},      {kOut, "attn_output.weight"}};
constexpr TensorName kKimiK3Names[] = {{kInQ, "attn_q.weight"},
                                       {kInK, "attn_k.weight"},
                                       {kInV, "attn_v.weight"},
                                       {kInZ, "ssm_g.weight"},
                                       {kInB, "ssm_beta.weight"},
                                       {kInA, "ssm_f_a.weight"},
                                       {kAUp, "ssm_f_b.weight"},
                                       {kConvQ, "ssm_conv1d_q.weight"},
                                       {kConvK, "ssm_conv1d_k.weight"},
                                       {kConvV, "ssm_conv1d_v.weight"},
                                       {kALog, "ssm_a"},
                                       {kDtBias, "ssm_dt.bias"},
                                       {kNorm, "ssm_norm.weight"},
                                       {kOut, "attn_output.weight"}};

constexpr std::string_view kQwen35Architectures[] = {"qwen35", "qwen35moe"};
constexpr std::string_view kQwen3NextArchitectures[] = {"qwen3next"};
constexpr std::string_view kQwen4ExpArchitectures[] = {"qwen4exp"};
constexpr std::string_view kKimiLinearArchitectures[] = {"kimi-linear"};
constexpr std::string_view kKimiK3Architectures[] = {"kimi-k3"};
constexpr std::string_view kGlm5NextArchitectures[] = {"glm5-next"};
constexpr std::string_view kBailingArchitectures[] = {"bailingmoe3"};

constexpr int32_t kGgufInterval = 4;

const GgufArchitecture kArchitectures[] = {
    {.family = {.name = "qwen3next",
                .model_types = kQwen3NextArchitectures,
                .verified = true,
                .default_interval = kGgufInterval,
                .tensor_names = kQwen3NextNames}},
    {.family = {.name = "qwen35",
                .model_types = kQwen35Architectures,
                .verified = true,
                .default_interval = kGgufInterval,
                .tensor_names = kQwen35Names},
     .tiled = true},
    // Nobody has compared the layers of the following architectures' files with a reference implementation.
    {.family = {.name = "qwen4exp",
                .model_types = kQwen4ExpArchitectures,
                .default_interval = kGgufInterval,
                .tensor_names = kQwen4ExpNames},
     .tiled = true},
    {.family = {.name = "kimi-linear", .model_types = kKimiLinearArchitectures, .tensor_names = kKimiLinearNames},
     .kda = true},
    {.family = {.name = "kimi-k3", .model_types = kKimiK3Architectures, .tensor_names = kKimiK3Names},
     .kda = true,
     .lower_bound = LowerBound::kMaybe},
    {.family = {.name = "glm5-next", .model_types = kGlm5NextArchitectures, .tensor_names = kKimiLinearNames},
     .kda = true,
     .lower_bound = LowerBound::kMaybe},
    {.family = {.name = "bailingmoe3", .model_types = kBailingArchitectures, .tensor_names = kKimiLinearNames},
     .positive_a = true,
     .kda = true,
     .lower_bound = LowerBound::kAlways},
};

const GgufArchitecture* FindArchitecture(std::string_view name) {
  for (const GgufArchitecture& architecture : kArchitectures) {
    const auto& names = architecture.family.model_types;
    if (std::find(names.begin(), names.end(), name) != names.end()) return &architecture;
  }
  return nullptr;
}

std::string ArchitectureNames() {
  std::vector<std::string_view> names;
  for (const GgufArchitecture& architecture : kArchitectures) {
    const auto& types = architecture.family.model_types;
    names.insert(names.end(), types.begin(), types.end());
  }
  return JoinedNames(names);
}

// Reads a file's keys: "ARCHITECTURE.name".
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(StrCat(architecture, ".")) {}

  bool Has(std::string_view key) const { return file_.Has(StrCat(prefix_, key)); }
  bool IsArray(std::string_view key) const { return file_.IsArray(StrCat(prefix_, key)); }
  absl::StatusOr<int32_t> Int(std::string_view key, int64_t low, int64_t high) const {
    GDN_ASSIGN_OR_RETURN(const int64_t value, file_.Int(StrCat(prefix_, key)));
    if (value >= low && value <= high) return static_cast<int32_t>(value);
    return Invalid(key, StrCat("is ", value, "; expected [", low, ", ", high, "]"));
  }
  absl::StatusOr<float> Epsilon(std::string_view key) const {
    GDN_ASSIGN_OR_RETURN(const double value, file_.Float(StrCat(prefix_, key)));
    if (value > 0.0 && value < 1.0) return static_cast<float>(value);
    return Invalid(key, StrCat("is ", value, "; expected a number above 0 and below 1"));
  }
  absl::StatusOr<float> Bound(std::string_view key) const {
    GDN_ASSIGN_OR_RETURN(const double value, file_.Float(StrCat(prefix_, key)));
    if (value < 0.0 && value >= kLeastDecayLowerBound) return static_cast<float>(value);
    return Invalid(key, StrCat("is ", value, "; expected a number below 0 and at least ", kLeastDecayLowerBound));
  }
  absl::StatusOr<bool> Bool(std::string_view key) const { return file_.Bool(StrCat(prefix_, key)); }
  // Returns true for each linear block. The list must have `blocks` values.
  absl::StatusOr<std::vector<bool>> Blocks(std::string_view key, int32_t blocks) const {
    GDN_ASSIGN_OR_RETURN(std::vector<bool> values, file_.Bools(StrCat(prefix_, key)));
    GDN_RETURN_IF_ERROR(CheckCount(key, values.size(), blocks));
    return values;
  }
  // Returns true for each block without heads. Ollama lists only the first `own` blocks. The others predict tokens, and
  // are attention.
  absl::StatusOr<std::vector<bool>> Headless(std::string_view key, int32_t blocks, int32_t own) const {
    GDN_ASSIGN_OR_RETURN(const std::vector<int64_t> heads, file_.Ints(StrCat(prefix_, key)));
    if (heads.size() != static_cast<size_t>(own)) GDN_RETURN_IF_ERROR(CheckCount(key, heads.size(), blocks));
    std::vector<bool> none;
    for (const int64_t each : heads) none.push_back(each == 0);
    none.resize(static_cast<size_t>(blocks), false);
    return none;
  }
  absl::Status Invalid(std::string_view key, std::string_view message) const {
    return InvalidGguf("key", StrCat(prefix_, key), reason::kInvalidSpec, message);
  }

 private:
  absl::Status CheckCount(std::string_view key, size_t values, int32_t blocks) const {
    if (values == static_cast<size_t>(blocks)) return absl::OkStatus();
    return Invalid(key, StrCat("has ", values, " values; expected one for each of the ", blocks, " blocks"));
  }

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
    return InvalidGguf("key", "ssm.inner_size", reason::kInvalidSpec,
                       StrCat("is ", values, "; expected a multiple of ssm.time_step_rank, ", dims.value_heads));
  }
  dims.value_dim = values / dims.value_heads;
  GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
  return dims;
}

absl::StatusOr<LayerDims> ReadKdaDims(const Keys& keys) {
  LayerDims dims{.decay = DecayKind::kPerChannel};
  GDN_ASSIGN_OR_RETURN(dims.key_heads, keys.Int("attention.head_count", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(dims.key_dim, keys.Int("kda.head_dim", 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(dims.conv_width, keys.Int("ssm.conv_kernel", 2, kMaxConvWidth));
  GDN_ASSIGN_OR_RETURN(dims.hidden_size, keys.Int("embedding_length", 1, kMaxHiddenSize));
  dims.value_heads = dims.key_heads;
  dims.value_dim = dims.key_dim;
  return dims;
}

absl::Status ReadDecay(const Keys& keys, const GgufArchitecture& architecture, LayerSpec& spec) {
  constexpr std::string_view kBound = "kda.gate_lower_bound";
  constexpr std::string_view kSafe = "kda.safe_gate";
  if (keys.Has(kSafe)) {
    GDN_ASSIGN_OR_RETURN(const bool safe, keys.Bool(kSafe));
    if (!safe) return keys.Invalid(kSafe, "is false; expected true, the bounded gate");
    if (!keys.Has(kBound) && architecture.lower_bound != LowerBound::kAlways) {
      return keys.Invalid(kSafe, StrCat("is true without ", kBound, "; expected both or neither"));
    }
  }
  if (!keys.Has(kBound) && architecture.lower_bound != LowerBound::kAlways) return absl::OkStatus();
  if (architecture.lower_bound == LowerBound::kNever) {
    return keys.Invalid(kBound, StrCat("is there; expected none, as ", architecture.family.name, " has no bound"));
  }
  spec.decay_gate = DecayGate::kBoundedSigmoid;
  GDN_ASSIGN_OR_RETURN(spec.decay_lower_bound, keys.Bound(kBound));
  return absl::OkStatus();
}

absl::Status ReadKdaSpec(const Keys& keys, const GgufArchitecture& architecture, LayerSpec& spec) {
  GDN_ASSIGN_OR_RETURN(spec.dims, ReadKdaDims(keys));
  spec.projections = ProjectionLayout::kSeparate;
  spec.convolutions = ConvLayout::kSeparate;
  spec.output_gate = GateActivation::kSigmoid;
  // bailingmoe3 has ssm_f_a and ssm_g_a of full rank. kimi-k3 has ssm_g of full rank.
  const bool low_rank = architecture.family.name != "bailingmoe3";
  if (low_rank) spec.decay_rank = spec.dims.key_dim;
  if (low_rank && architecture.family.name != "kimi-k3") spec.output_gate_rank = spec.dims.value_dim;
  return ReadDecay(keys, architecture, spec);
}

// Returns true for each linear block. All KDA files and some of Ollama say so by a list of heads for keys and values,
// in which linear blocks have none. Other files have a list of bools, or else the interval counts. If there are both
// lists, they must agree. The first `own` blocks are the model's; the others predict tokens.
absl::StatusOr<std::vector<bool>> LinearBlocks(const Keys& keys, const GgufArchitecture& architecture, int32_t blocks,
                                               int32_t own) {
  constexpr std::string_view kListed = "attention.recurrent_layers";
  constexpr std::string_view kHeads = "attention.head_count_kv";
  std::optional<std::vector<bool>> headless;
  if (architecture.kda || keys.IsArray(kHeads)) {
    GDN_ASSIGN_OR_RETURN(headless, keys.Headless(kHeads, blocks, own));
    if (architecture.kda) return *std::move(headless);
    if (std::find(headless->begin(), headless->end(), true) == headless->end()) headless.reset();
  }
  if (keys.Has(kListed)) {
    GDN_ASSIGN_OR_RETURN(std::vector<bool> listed, keys.Blocks(kListed, blocks));
    if (!headless.has_value() || std::equal(listed.begin(), listed.begin() + own, headless->begin())) return listed;
    return keys.Invalid(kListed,
                        StrCat("contradicts ", kHeads, "; expected it to name exactly the blocks with 0 heads there"));
  }
  if (headless.has_value()) return *std::move(headless);
  int32_t interval = architecture.family.default_interval;
  if (keys.Has("full_attention_interval")) {
    GDN_ASSIGN_OR_RETURN(interval, keys.Int("full_attention_interval", 2, kMaxBlocks));
  }
  std::vector<bool> linear;
  for (int32_t i = 0; i < blocks; ++i) linear.push_back((i + 1) % interval != 0);
  return linear;
}

absl::Status ReadLayers(const Keys& keys, const GgufArchitecture& architecture, ModelConfig& config) {
  GDN_ASSIGN_OR_RETURN(const int32_t blocks, keys.Int("block_count", 1, kMaxBlocks));
  int32_t predicting = 0;  // blocks behind the model's own; they are attention
  if (keys.Has("nextn_predict_layers")) {
    GDN_ASSIGN_OR_RETURN(predicting, keys.Int("nextn_predict_layers", 0, blocks - 1));
  }
  config.num_layers = blocks - predicting;
  GDN_ASSIGN_OR_RETURN(const std::vector<bool> linear, LinearBlocks(keys, architecture, blocks, config.num_layers));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    if (linear[static_cast<size_t>(i)]) config.gdn_layers.push_back(i);
  }
  if (!config.gdn_layers.empty()) return absl::OkStatus();
  return keys.Invalid(architecture.kda ? "attention.head_count_kv" : "attention.recurrent_layers",
                      "names no Gated DeltaNet layer");
}

// Returns which tensors the first linear block has for its in-projection.
ProjectionLayout ProjectionsOf(const GgufFile& file, const ModelConfig& config) {
  const ModelFamily& family = *config.family;
  const auto has = [&](LayerTensor tensor) {
    return !LayerTensorName(family, tensor).empty() &&
           file.tensors().count(GgufTensorName(family, config.gdn_layers[0], tensor)) != 0;
  };
  if (has(LayerTensor::kInQkvz)) return ProjectionLayout::kInterleaved;
  const bool may_be_split = !LayerTensorName(family, LayerTensor::kInB).empty();
  if (may_be_split && (!has(LayerTensor::kInBa) || has(LayerTensor::kInB))) return ProjectionLayout::kFlat;
  return ProjectionLayout::kFlatGroupedBa;
}

constexpr std::string_view kTiled = "ssm.v_head_reordered";

// Ollama leaves ssm_ba and the order of heads as Qwen3-Next has them, and then writes no key. But an earlier converter
// wrote all rows of b before all rows of a. So only files that spell the bias "ssm_dt.bias", or that have the key, are
// known to have the rows of Qwen3-Next.
absl::Status CheckJoinedBa(const Keys& keys, const GgufFile& file, const ModelConfig& config) {
  const int32_t first = config.gdn_layers[0];
  const std::string ba = GgufTensorName(*config.family, first, LayerTensor::kInBa);
  if (keys.Has(kTiled)) {
    GDN_ASSIGN_OR_RETURN(const bool tiled, keys.Bool(kTiled));
    if (!tiled) return absl::OkStatus();
    return keys.Invalid(kTiled,
                        StrCat("is true, and '", ba,
                               "' has b and a in one tensor, whose rows no converter reorders; expected false or "
                               "no key; convert the model again, with llama.cpp for example"));
  }
  const std::string bias = GgufTensorName(*config.family, first, LayerTensor::kDtBias);
  if (file.tensors().count(bias) != 0) return absl::OkStatus();
  return InvalidGguf("tensor", ba, reason::kInvalidSpec,
                     StrCat("has b and a in one tensor, and beside '", ShortDtBiasName(first),
                            "' the order of its rows is not known; expected ssm_beta.weight and ssm_alpha.weight, '",
                            bias, "', or the key ", kTiled, "; convert the model again, with llama.cpp for example"));
}

// llama.cpp's converters tile the value heads of some architectures and write no key. Ollama's converter writes one.
absl::StatusOr<ValueHeadOrder> ReadHeadOrder(const Keys& keys, const GgufFile& file,
                                             const GgufArchitecture& architecture, const ModelConfig& config) {
  bool tiled = architecture.tiled;
  if (tiled && config.spec.projections == ProjectionLayout::kFlatGroupedBa) {
    GDN_RETURN_IF_ERROR(CheckJoinedBa(keys, file, config));
    return ValueHeadOrder::kGrouped;
  }
  if (keys.Has(kTiled)) {
    GDN_ASSIGN_OR_RETURN(tiled, keys.Bool(kTiled));
    if (tiled && !architecture.tiled) {
      return keys.Invalid(kTiled, StrCat("is true; expected false or none: value heads of ", architecture.family.name,
                                         " files are in their model's order"));
    }
  }
  return tiled && config.spec.dims.group() > 1 ? ValueHeadOrder::kTiled : ValueHeadOrder::kGrouped;
}

}  // namespace

absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFile& file) {
  GDN_ASSIGN_OR_RETURN(const std::string_view name, file.Text("general.architecture"));
  const GgufArchitecture* architecture = FindArchitecture(name);
  if (architecture == nullptr) {
    return InvalidGguf("key", "general.architecture", reason::kInvalidSpec,
                       StrCat("is '", name, "'; expected one of ", ArchitectureNames()));
  }
  GgufConfig read{.config = {.model_type = std::string(name), .family = &architecture->family},
                  .architecture = architecture};
  ModelConfig& config = read.config;
  LayerSpec& spec = config.spec;
  GDN_RETURN_IF_ERROR(CheckGgufKeys(file, name, architecture->kda));
  const Keys keys(file, name);
  if (architecture->kda) {
    GDN_RETURN_IF_ERROR(ReadKdaSpec(keys, *architecture, spec));
  } else {
    GDN_ASSIGN_OR_RETURN(spec.dims, ReadDims(keys));
  }
  GDN_ASSIGN_OR_RETURN(spec.norm_epsilon, keys.Epsilon("attention.layer_norm_rms_epsilon"));
  GDN_RETURN_IF_ERROR(ReadLayers(keys, *architecture, config));
  if (!architecture->kda) {
    spec.projections = ProjectionsOf(file, config);
    GDN_ASSIGN_OR_RETURN(spec.value_heads, ReadHeadOrder(keys, file, *architecture, config));
  }
  spec.a_log = ALogConvention::kNegativeExp;
  // The files do not say this. It is what llama.cpp computes (src/models/qwen4exp.cpp).
  if (architecture->family.name == "qwen4exp") spec.output_gate = GateActivation::kSigmoid;
  GDN_RETURN_IF_ERROR(ValidateLayerSpec(spec));
  return read;
}

absl::Status InvalidGguf(std::string_view what, const std::string& name, std::string_view reason,
                         std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, StrCat("GGUF ", what, " '", name, "' ", message),
                   {{what == "tensor" ? "tensor" : "field", name}});
}

std::string GgufTensorName(const ModelFamily& family, int32_t layer, LayerTensor tensor) {
  return StrCat("blk.", layer, ".", LayerTensorName(family, tensor));
}

std::string ShortDtBiasName(int32_t layer) { return StrCat("blk.", layer, ".ssm_dt"); }

}  // namespace gdn
