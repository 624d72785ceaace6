#include "server/checkpoint/model_family.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/kda_family.h"

namespace gdn {
namespace {

using std::string_view;

// ---- Fields that families share.

absl::Status CheckDims(const LayerDims& dims) {
  if (dims.value_heads % dims.key_heads != 0) {
    return InvalidConfigField("linear_num_value_heads", StrCat(dims.value_heads),
                              StrCat("a multiple of linear_num_key_heads, which is ", dims.key_heads));
  }
  return ValidateLayerDims(dims);
}

absl::Status ReadDims(const ConfigFields& fields, LayerDims& dims) {
  GDN_ASSIGN_OR_RETURN(dims.key_heads, fields.Int("linear_num_key_heads", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(dims.value_heads, fields.Int("linear_num_value_heads", 1, kMaxHeads));
  GDN_ASSIGN_OR_RETURN(dims.key_dim, fields.Int("linear_key_head_dim", 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(dims.value_dim, fields.Int("linear_value_head_dim", 1, kMaxHeadDim));
  GDN_ASSIGN_OR_RETURN(dims.conv_width, fields.Int("linear_conv_kernel_dim", 2, kMaxConvWidth));
  GDN_ASSIGN_OR_RETURN(dims.hidden_size, fields.Int("hidden_size", 1, kMaxHiddenSize));
  return CheckDims(dims);
}

// Reads output_gate_type if it is there. It must be one of `allowed`.
absl::Status ReadOutputGate(const ConfigFields& fields, absl::Span<const GateActivation> allowed,
                            GateActivation& gate) {
  const auto* value = fields.Find("output_gate_type");
  if (value == nullptr) return absl::OkStatus();
  const bool silu = *value == "silu" || *value == "swish";  // two names of one function
  const GateActivation found = silu ? GateActivation::kSilu : GateActivation::kSigmoid;
  if ((silu || *value == "sigmoid") && std::find(allowed.begin(), allowed.end(), found) != allowed.end()) {
    gate = found;
    return absl::OkStatus();
  }
  std::string expected;
  for (const GateActivation each : allowed) {
    StrAppend(&expected, expected.empty() ? "" : " or ", each == GateActivation::kSilu ? "\"silu\"" : "\"sigmoid\"");
  }
  return fields.Invalid("output_gate_type", expected);
}

// ---- Readers of each family's config.

absl::Status ReadQwenLayer(const ConfigFields& fields, absl::Span<const GateActivation> gates, LayerSpec& spec) {
  GDN_RETURN_IF_ERROR(CheckHiddenAct(fields));
  GDN_RETURN_IF_ERROR(ReadDims(fields, spec.dims));
  GDN_ASSIGN_OR_RETURN(spec.norm_epsilon, fields.Positive("rms_norm_eps", 1.0f));
  return ReadOutputGate(fields, gates, spec.output_gate);
}

absl::Status ReadQwen35(const ConfigFields& fields, LayerSpec& spec) {
  return ReadQwenLayer(fields, {GateActivation::kSilu}, spec);
}

absl::Status ReadQwen3Next(const ConfigFields& fields, LayerSpec& spec) {
  spec.projections = ProjectionLayout::kInterleaved;
  return ReadQwenLayer(fields, {GateActivation::kSilu}, spec);
}

absl::Status ReadQwen4Exp(const ConfigFields& fields, LayerSpec& spec) {
  return ReadQwenLayer(fields, {GateActivation::kSilu, GateActivation::kSigmoid}, spec);
}

// Returns the field, or `otherwise` if it is absent, which is what transformers then takes.
absl::StatusOr<int32_t> IntOr(const ConfigFields& fields, string_view field, int32_t low, int32_t high,
                              int32_t otherwise) {
  if (!fields.Has(field)) return otherwise;
  return fields.Int(field, low, high);
}

absl::Status ReadOlmoDims(const ConfigFields& fields, LayerDims& dims) {
  GDN_ASSIGN_OR_RETURN(dims.hidden_size, fields.Int("hidden_size", 1, kMaxHiddenSize));
  const bool has_heads = fields.Has("linear_num_key_heads") && fields.Has("linear_num_value_heads");
  int32_t heads = 0;
  if (!has_heads) {
    GDN_ASSIGN_OR_RETURN(heads, fields.Int("num_attention_heads", 1, kMaxHeads));
  }
  GDN_ASSIGN_OR_RETURN(dims.key_heads, IntOr(fields, "linear_num_key_heads", 1, kMaxHeads, heads));
  GDN_ASSIGN_OR_RETURN(dims.value_heads, IntOr(fields, "linear_num_value_heads", 1, kMaxHeads, heads));
  const auto key_dim = static_cast<int32_t>(0.75 * dims.hidden_size / dims.key_heads);
  GDN_ASSIGN_OR_RETURN(dims.key_dim, IntOr(fields, "linear_key_head_dim", 1, kMaxHeadDim, key_dim));
  GDN_ASSIGN_OR_RETURN(dims.value_dim, IntOr(fields, "linear_value_head_dim", 1, kMaxHeadDim, 2 * dims.key_dim));
  GDN_ASSIGN_OR_RETURN(dims.conv_width, IntOr(fields, "linear_conv_kernel_dim", 2, kMaxConvWidth, 4));
  return CheckDims(dims);
}

absl::Status ReadOlmoHybrid(const ConfigFields& fields, LayerSpec& spec) {
  spec.projections = ProjectionLayout::kSeparate;
  spec.convolutions = ConvLayout::kSeparate;
  spec.norm_epsilon = 1e-5f;  // rms_norm_eps belongs to other norms
  GDN_ASSIGN_OR_RETURN(const bool negative_eigenvalues, fields.BoolOr("linear_allow_neg_eigval", true));
  spec.beta_scale = negative_eigenvalues ? 2.0f : 1.0f;
  GDN_RETURN_IF_ERROR(CheckHiddenAct(fields));
  return ReadOlmoDims(fields, spec.dims);
}

absl::Status ReadGigaChat(const ConfigFields& fields, LayerSpec& spec) {
  spec.projections = ProjectionLayout::kInterleaved;
  spec.norm_weight = NormWeight::kOnePlus;
  spec.output_gate = GateActivation::kSigmoid;
  spec.output_gate_scale = 2.0f;
  if (fields.Has("linear_sigmoid_gate_scale")) {
    GDN_ASSIGN_OR_RETURN(spec.output_gate_scale, fields.Positive("linear_sigmoid_gate_scale", kMaxOutputGateScale));
  }
  return ReadQwenLayer(fields, {GateActivation::kSigmoid}, spec);
}

// ---- Names of each family's tensors.

using TensorName = ModelFamily::TensorName;
using enum LayerTensor;

constexpr TensorName kQwen3NextTensors[] = {{kInQkvz, "in_proj_qkvz.weight"},
                                            {kInBa, "in_proj_ba.weight"},
                                            {kConv, "conv1d.weight"},
                                            {kALog, "A_log"},
                                            {kDtBias, "dt_bias"},
                                            {kNorm, "norm.weight"},
                                            {kOut, "out_proj.weight"}};
constexpr TensorName kQwen35Tensors[] = {
    {kInQkv, "in_proj_qkv.weight"}, {kInZ, "in_proj_z.weight"}, {kInB, "in_proj_b.weight"},
    {kInA, "in_proj_a.weight"},     {kConv, "conv1d.weight"},   {kALog, "A_log"},
    {kDtBias, "dt_bias"},           {kNorm, "norm.weight"},     {kOut, "out_proj.weight"}};
constexpr TensorName kOlmoTensors[] = {
    {kInQ, "q_proj.weight"},     {kInK, "k_proj.weight"}, {kInV, "v_proj.weight"},     {kInZ, "g_proj.weight"},
    {kInB, "b_proj.weight"},     {kInA, "a_proj.weight"}, {kConvQ, "q_conv1d.weight"}, {kConvK, "k_conv1d.weight"},
    {kConvV, "v_conv1d.weight"}, {kALog, "A_log"},        {kDtBias, "dt_bias"},        {kNorm, "o_norm.weight"},
    {kOut, "o_proj.weight"}};

// KDA with low-rank f and g.
constexpr TensorName kKimiLinearTensors[] = {
    {kInQ, "q_proj.weight"},     {kInK, "k_proj.weight"},     {kInV, "v_proj.weight"},     {kInZ, "g_a_proj.weight"},
    {kZUp, "g_b_proj.weight"},   {kInB, "b_proj.weight"},     {kInA, "f_a_proj.weight"},   {kAUp, "f_b_proj.weight"},
    {kConvQ, "q_conv1d.weight"}, {kConvK, "k_conv1d.weight"}, {kConvV, "v_conv1d.weight"}, {kALog, "A_log"},
    {kDtBias, "dt_bias"},        {kNorm, "o_norm.weight"},    {kOut, "o_proj.weight"}};
// KDA with low-rank f.
constexpr TensorName kKimiK3Tensors[] = {
    {kInQ, "q_proj.weight"},     {kInK, "k_proj.weight"},     {kInV, "v_proj.weight"},   {kInZ, "g_proj.weight"},
    {kInB, "b_proj.weight"},     {kInA, "f_a_proj.weight"},   {kAUp, "f_b_proj.weight"}, {kConvQ, "q_conv1d.weight"},
    {kConvK, "k_conv1d.weight"}, {kConvV, "v_conv1d.weight"}, {kALog, "A_log"},          {kDtBias, "dt_bias"},
    {kNorm, "o_norm.weight"},    {kOut, "o_proj.weight"}};
// KDA with neither.
constexpr TensorName kBailingTensors[] = {
    {kInQ, "q_proj.weight"},     {kInK, "k_proj.weight"}, {kInV, "v_proj.weight"},     {kInZ, "g_proj.weight"},
    {kInB, "b_proj.weight"},     {kInA, "f_proj.weight"}, {kConvQ, "q_conv1d.weight"}, {kConvK, "k_conv1d.weight"},
    {kConvV, "v_conv1d.weight"}, {kALog, "A_log"},        {kDtBias, "dt_bias"},        {kNorm, "o_norm.weight"},
    {kOut, "dense.weight"}};

// ---- The table.

constexpr string_view kQwen3NextTypes[] = {"qwen3_next"};
constexpr string_view kQwen35Types[] = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"};
constexpr string_view kQwen4ExpTypes[] = {"qwen4_exp", "qwen4_exp_text"};
constexpr string_view kOlmoHybridTypes[] = {"olmo_hybrid"};
constexpr string_view kGigaChatTypes[] = {"gigachat3_5"};
// transformers calls these layers indexed in memory, and saves that name.
constexpr string_view kFullOrIndexed[] = {"full_attention", "indexed_attention"};
constexpr string_view kQwenFields[] = {"linear_num_key_heads",  "linear_num_value_heads", "linear_key_head_dim",
                                       "linear_value_head_dim", "linear_conv_kernel_dim", "full_attention_interval",
                                       "output_gate_type"};
// linear_a_log_* and linear_dt_* only say how training begins.
constexpr string_view kOlmoFields[] = {"linear_num_key_heads",  "linear_num_value_heads", "linear_key_head_dim",
                                       "linear_value_head_dim", "linear_conv_kernel_dim", "linear_allow_neg_eigval",
                                       "linear_a_log_min",      "linear_a_log_max",       "linear_dt_min",
                                       "linear_dt_max",         "linear_dt_init_floor"};
constexpr string_view kGigaChatFields[] = {"linear_num_key_heads",  "linear_num_value_heads",   "linear_key_head_dim",
                                           "linear_value_head_dim", "linear_conv_kernel_dim",   "full_attention_layers",
                                           "output_gate_type",      "linear_sigmoid_gate_scale"};
constexpr string_view kKimiLinearTypes[] = {"kimi_linear"};
constexpr string_view kKimiK3Types[] = {"kimi_k3"};
constexpr string_view kKimiK3TextTypes[] = {"kimi_k3", "kimi_linear"};
constexpr string_view kKimiK3Prefixes[] = {"model.layers.", "language_model.model.layers."};
constexpr string_view kGlm5NextTypes[] = {"glm5_next", "glm5_next_text"};
constexpr string_view kBailingTypes[] = {"bailing_hybrid"};
constexpr string_view kFullOrSparse[] = {"full_attention", "indexed_attention", "deepseek_sparse_attention"};
constexpr string_view kKimiFields[] = {"linear_attn_config", "linear_head_dim", "linear_num_heads",
                                       "linear_conv_kernel_dim"};
constexpr string_view kGlm5NextFields[] = {"linear_attn_config", "linear_head_dim", "linear_num_heads",
                                           "linear_conv_kernel_dim", "linear_lower_bound"};
constexpr string_view kBailingFields[] = {"linear_head_dim",  "linear_num_heads", "linear_conv_kernel_dim",
                                          "linear_attention", "kda_safe_gate",    "kda_lower_bound",
                                          "no_kda_lora",      "layer_group_size", "short_conv_kernel_size"};

constexpr int32_t kInterval = 4;  // the value that transformers assumes

const std::array kFamilies = {
    ModelFamily{.name = "qwen3_next",
                .model_types = kQwen3NextTypes,
                .verified = true,
                .layer_fields = kQwenFields,
                .default_interval = kInterval,
                .read_spec = ReadQwen3Next,
                .tensor_names = kQwen3NextTensors},
    ModelFamily{.name = "qwen3_5",
                .model_types = kQwen35Types,
                .verified = true,
                .layer_fields = kQwenFields,
                .default_interval = kInterval,
                .read_spec = ReadQwen35,
                .tensor_names = kQwen35Tensors},
    ModelFamily{.name = "qwen4_exp",
                .model_types = kQwen4ExpTypes,
                .verified = true,
                .layer_fields = kQwenFields,
                .other_layer_types = kFullOrIndexed,
                .default_interval = kInterval,
                .read_spec = ReadQwen4Exp,
                .tensor_names = kQwen35Tensors},
    ModelFamily{.name = "olmo_hybrid",
                .model_types = kOlmoHybridTypes,
                .verified = true,
                .layer_fields = kOlmoFields,
                .default_interval = kInterval,
                .read_spec = ReadOlmoHybrid,
                .tensor_names = kOlmoTensors},
    ModelFamily{.name = "gigachat3_5",
                .model_types = kGigaChatTypes,
                .layer_fields = kGigaChatFields,
                .read_spec = ReadGigaChat,
                .tensor_names = kQwen3NextTensors},
    ModelFamily{.name = "kimi_linear",
                .model_types = kKimiLinearTypes,
                .verified = true,
                .layer_fields = kKimiFields,
                .read_spec = ReadKimiLinear,
                .read_layers = ReadKimiLayers,
                .module = "self_attn",
                .module_is_shared = true,
                .tensor_names = kKimiLinearTensors},
    ModelFamily{.name = "kimi_k3",
                .model_types = kKimiK3Types,
                .text_types = kKimiK3TextTypes,
                .layer_fields = kKimiFields,
                .read_spec = ReadKimiK3,
                .read_layers = ReadKimiLayers,
                .module = "self_attn",
                .module_is_shared = true,
                .prefixes = kKimiK3Prefixes,
                .long_a_log = true,
                .tensor_names = kKimiK3Tensors},
    ModelFamily{.name = "glm5_next",
                .model_types = kGlm5NextTypes,
                .verified = true,
                .layer_fields = kGlm5NextFields,
                .other_layer_types = kFullOrSparse,
                .default_interval = kInterval,
                .read_spec = ReadGlm5Next,
                .read_layers = ReadGlmLayers,
                .module = "self_attn",
                .module_is_shared = true,
                .tensor_names = kKimiLinearTensors},
    ModelFamily{.name = "bailing_hybrid",
                .model_types = kBailingTypes,
                .verified = true,
                .layer_fields = kBailingFields,
                .read_spec = ReadBailingHybrid,
                .read_layers = ReadBailingLayers,
                .head_dim_field = "linear_head_dim",
                .module = "attention",
                .module_is_shared = true,
                .tensor_names = kBailingTensors},
};

}  // namespace

std::vector<LayerTensor> LayerTensorsOf(const LayerSpec& spec) {
  // By ProjectionLayout.
  const std::vector<LayerTensor> in_projections[] = {
      {kInQkvz, kInBa}, {kInQkv, kInZ, kInB, kInA}, {kInQ, kInK, kInV, kInZ, kInB, kInA}, {kInBa, kInQkv, kInZ}};
  std::vector<LayerTensor> tensors = in_projections[static_cast<size_t>(spec.projections)];
  if (spec.output_gate_rank > 0) tensors.push_back(kZUp);
  if (spec.decay_rank > 0) tensors.push_back(kAUp);
  if (spec.convolutions == ConvLayout::kJoint) {
    tensors.push_back(kConv);
  } else {
    tensors.insert(tensors.end(), {kConvQ, kConvK, kConvV});
  }
  tensors.insert(tensors.end(), {kALog, kDtBias, kNorm, kOut});
  return tensors;
}

absl::Span<const ModelFamily> ModelFamilies() { return kFamilies; }

const ModelFamily* FindModelFamily(string_view model_type) {
  for (const ModelFamily& family : kFamilies) {
    const auto& types = family.model_types;
    if (std::find(types.begin(), types.end(), model_type) != types.end()) return &family;
  }
  return nullptr;
}

bool IsLayerField(string_view field) {
  constexpr string_view kPrefixes[] = {"linear_",      "gdn_",       "kda_",           "delta_",
                                       "gated_delta",  "deltanet_",  "recurrent_",     "ssm_",
                                       "output_gate_", "short_conv", "full_attention_"};
  // Names of the same settings in configs of flash-linear-attention.
  constexpr string_view kWhole[] = {"allow_neg_eigval", "conv_bias",       "expand_v",      "gate_lower_bound",
                                    "layer_group_size", "lower_bound",     "no_kda_lora",   "safe_gate",
                                    "use_conv_bias",    "use_output_gate", "use_short_conv"};
  return std::ranges::any_of(kPrefixes, [&](string_view prefix) { return field.starts_with(prefix); }) ||
         std::ranges::find(kWhole, field) != std::end(kWhole);
}

string_view LayerTensorName(const ModelFamily& family, LayerTensor tensor) {
  for (const TensorName& each : family.tensor_names) {
    if (each.tensor == tensor) return each.name;
  }
  return {};
}

}  // namespace gdn
