#include "kernels/layer/gdn_layer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr int64_t kPartAlignment = 16;  // floats: 64 bytes

int64_t Aligned(int64_t floats) { return (floats + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

int64_t OutputFeatures(const LayerStep& step) {
  const LayerDims& dims = step.pool.layout.dims();
  return step.kind == InputKind::kHiddenStates ? dims.hidden_size : dims.value_features();
}

// `step` with every tensor moved on by `row` tokens; the batch is the caller's to set.
LayerStep FromRow(const LayerStep& step, int64_t row) {
  const LayerDims& dims = step.pool.layout.dims();
  const auto advance = [row](const float*& tensor, int64_t features) {
    if (tensor != nullptr) tensor += row * features;
  };
  LayerStep moved = step;
  advance(moved.hidden_states, dims.hidden_size);
  advance(moved.mixed_qkv, dims.conv_channels());
  advance(moved.z, dims.value_features());
  advance(moved.b, dims.value_heads);
  advance(moved.a, dims.value_heads);
  advance(moved.q, dims.key_features());
  advance(moved.k, dims.key_features());
  advance(moved.v, dims.value_features());
  advance(moved.g, dims.value_heads);
  advance(moved.beta, dims.value_heads);
  moved.output += row * OutputFeatures(step);
  return moved;
}

}  // namespace

// Tensors of one run, in backend memory.
struct GdnLayerRunner::Mixer {
  float* qkvz = nullptr;       // [tokens, 2 H K + 2 HV V]; null where the step brings its parts
  float* ba = nullptr;         // [tokens, 2 HV]
  float* split = nullptr;      // [tokens, C + 2 HV] scratch
  float* z = nullptr;          // [tokens, HV, V]; null as qkvz
  float* convolved = nullptr;  // [tokens, C]
  float* q = nullptr;          // [tokens, H, K]
  float* k = nullptr;          // [tokens, H, K]
  float* g = nullptr;          // [tokens, HV]
  float* beta = nullptr;       // [tokens, HV]
  float* output = nullptr;     // [tokens, HV, V]
};

absl::Status GdnLayerRunner::Prefill(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(ValidatePrefillStep(step));
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    const int32_t length = step.batch.length(i);
    if (length == 0) continue;
    if (step.batch.slots[i] < 0) {
      GDN_RETURN_IF_ERROR(ZeroOutput(step, i));
      continue;
    }
    for (int32_t begin = 0; begin < length; begin += kPrefillSegmentTokens) {
      const int32_t cu_seqlens[] = {0, std::min(kPrefillSegmentTokens, length - begin)};
      const int64_t token_count = step.token_counts == nullptr ? 0 : step.token_counts[i] + begin;
      LayerStep segment = FromRow(step, int64_t{step.batch.cu_seqlens[i]} + begin);
      segment.batch = {.sequences = 1, .cu_seqlens = cu_seqlens, .slots = &step.batch.slots[i]};
      segment.token_counts = &token_count;
      GDN_RETURN_IF_ERROR(Run(segment, /*log_lengths=*/nullptr));
    }
  }
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::Decode(const LayerStep& step, int32_t* log_lengths) {
  GDN_RETURN_IF_ERROR(ValidateDecodeStep(step, log_lengths));
  if (step.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(Run(step, log_lengths));
  // Padding rows went through the projections with the rest; whatever they held, their outputs are zero.
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    if (step.batch.slots[i] < 0) GDN_RETURN_IF_ERROR(ZeroOutput(step, i));
  }
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::Run(const LayerStep& step, int32_t* log_lengths) {
  return step.kind == InputKind::kDeltaRule ? RunDeltaRule(step, log_lengths) : RunMixer(step, log_lengths);
}

absl::Status GdnLayerRunner::RunDeltaRule(const LayerStep& step, int32_t* log_lengths) {
  const LayerDims& dims = step.pool.layout.dims();
  DeltaRuleParams rule{.pool = step.pool,
                       .batch = step.batch,
                       .q = step.q,
                       .k = step.k,
                       .v = step.v,
                       .g = step.g,
                       .beta = step.beta,
                       .q_stride = dims.key_features(),
                       .k_stride = dims.key_features(),
                       .v_stride = dims.value_features(),
                       .output = step.output};
  if (step.use_qk_l2norm || step.scale != 1.0f) {
    const int64_t tokens = step.batch.tokens();
    float* q = nullptr;
    float* k = nullptr;
    GDN_RETURN_IF_ERROR(Reserve({{&q, tokens * dims.key_features()}, {&k, tokens * dims.key_features()}}));
    GDN_RETURN_IF_ERROR(backend_.QkL2Norm({.key_heads = dims.key_heads,
                                           .key_dim = dims.key_dim,
                                           .rows = tokens,
                                           .normalize = step.use_qk_l2norm,
                                           .scale = step.scale,
                                           .q = step.q,
                                           .k = step.k,
                                           .in_stride = dims.key_features(),
                                           .q_out = q,
                                           .k_out = k}));
    rule.q = q;
    rule.k = k;
  }
  return DeltaRule(step, rule, log_lengths);
}

absl::Status GdnLayerRunner::RunMixer(const LayerStep& step, int32_t* log_lengths) {
  const LayerWeights& weights = *step.weights;
  const LayerDims& dims = weights.dims;
  const int64_t tokens = step.batch.tokens();
  const int64_t projected = step.kind == InputKind::kHiddenStates ? tokens : 0;  // rows that are projected here
  const int64_t qkvz_features = dims.conv_channels() + dims.value_features();
  const int64_t ba_features = 2 * int64_t{dims.value_heads};
  Mixer mixer;
  GDN_RETURN_IF_ERROR(Reserve({{&mixer.qkvz, projected * qkvz_features},
                               {&mixer.ba, projected * ba_features},
                               {&mixer.split, projected * (dims.conv_channels() + ba_features)},
                               {&mixer.z, projected * dims.value_features()},
                               {&mixer.convolved, tokens * dims.conv_channels()},
                               {&mixer.q, tokens * dims.key_features()},
                               {&mixer.k, tokens * dims.key_features()},
                               {&mixer.g, tokens * dims.value_heads},
                               {&mixer.beta, tokens * dims.value_heads},
                               {&mixer.output, projected * dims.value_features()}}));
  if (projected == 0) {
    mixer.output = step.output;
    return Mix(step, mixer, log_lengths);
  }

  // Prefill runs one sequence at a time, so its GEMM may look at the number of rows; a decode batch's must not.
  const ProjectionPath path = log_lengths == nullptr ? ProjectionPath::kSequenceGemm : ProjectionPath::kRowStable;
  const auto projection = [&](const float* x, const WeightMatrix& weight, float* y, int64_t y_stride) {
    return ProjectionParams{
        .path = path, .rows = tokens, .x = x, .x_stride = weight.cols, .weight = weight, .y = y, .y_stride = y_stride};
  };
  // Side by side: of the interleaved layout the first of each pair is the whole.
  const std::array<ProjectionParams, 4> inputs = {
      projection(step.hidden_states, weights.in_qkv, mixer.qkvz, qkvz_features),
      projection(step.hidden_states, weights.in_b, mixer.ba, ba_features),
      projection(step.hidden_states, weights.in_z, mixer.qkvz + weights.in_qkv.rows, qkvz_features),
      projection(step.hidden_states, weights.in_a, mixer.ba + weights.in_b.rows, ba_features)};
  const size_t count = weights.layout == ProjectionLayout::kFlat ? 4 : 2;
  GDN_RETURN_IF_ERROR(backend_.Projections(absl::MakeConstSpan(inputs).first(count)));
  GDN_RETURN_IF_ERROR(Mix(step, mixer, log_lengths));
  return backend_.Projection(projection(mixer.output, weights.out, step.output, dims.hidden_size));
}

absl::Status GdnLayerRunner::Mix(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths) {
  const LayerWeights& weights = *step.weights;
  const LayerDims& dims = weights.dims;
  const int64_t tokens = step.batch.tokens();
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims.key_dim)));
  GDN_RETURN_IF_ERROR(backend_.MixerInput({.pool = step.pool,
                                           .batch = step.batch,
                                           .token_counts = step.token_counts,
                                           .layout = weights.layout,
                                           .qkvz = mixer.qkvz,
                                           .ba = mixer.ba,
                                           .split_scratch = mixer.split,
                                           .mixed_qkv = step.mixed_qkv,
                                           .b = step.b,
                                           .a = step.a,
                                           .conv_weight = weights.conv_weight,
                                           .a_log_convention = weights.a_log_convention,
                                           .a_log = weights.a_log,
                                           .dt_bias = weights.dt_bias,
                                           .scale = scale,
                                           .convolved = mixer.convolved,
                                           .z = mixer.z,
                                           .q = mixer.q,
                                           .k = mixer.k,
                                           .g = mixer.g,
                                           .beta = mixer.beta}));
  GDN_RETURN_IF_ERROR(DeltaRule(step,
                                {.pool = step.pool,
                                 .batch = step.batch,
                                 .q = mixer.q,
                                 .k = mixer.k,
                                 .v = mixer.convolved + 2 * dims.key_features(),
                                 .g = mixer.g,
                                 .beta = mixer.beta,
                                 .q_stride = dims.key_features(),
                                 .k_stride = dims.key_features(),
                                 .v_stride = dims.conv_channels(),
                                 .output = mixer.output},
                                log_lengths));
  return backend_.GatedRmsNorm({.value_dim = dims.value_dim,
                                .rows = tokens * dims.value_heads,
                                .epsilon = weights.norm_epsilon,
                                .x = mixer.output,
                                .z = mixer.qkvz != nullptr ? mixer.z : step.z,
                                .weight = weights.norm_weight,
                                .y = mixer.output});
}

absl::Status GdnLayerRunner::DeltaRule(const LayerStep& step, const DeltaRuleParams& rule, int32_t* log_lengths) {
  if (log_lengths != nullptr) {
    return backend_.DeltaRuleDecode(
        {.rule = rule, .log_lengths = log_lengths, .base_slots = step.base_slots, .draft = step.draft});
  }
  // A prefill segment: one sequence, so this looks at nobody else's length.
  return rule.batch.tokens() >= kChunkedFromTokens ? backend_.DeltaRuleChunk(rule) : backend_.DeltaRuleScan(rule);
}

absl::Status GdnLayerRunner::ZeroOutput(const LayerStep& step, int32_t sequence) {
  // Lives on, so a backend may copy from it after the call.
  static constexpr float kZeros[4096] = {};
  const int64_t features = OutputFeatures(step);
  float* output = step.output + step.batch.cu_seqlens[sequence] * features;
  for (int64_t left = step.batch.length(sequence) * features; left > 0;) {
    const int64_t count = std::min<int64_t>(left, std::size(kZeros));
    GDN_RETURN_IF_ERROR(backend_.CopyIn(output, kZeros, count * sizeof(float)));
    output += count;
    left -= count;
  }
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::Reserve(std::initializer_list<Part> parts) {
  int64_t total = 0;
  for (const Part& part : parts) total += Aligned(part.floats);
  const size_t bytes = static_cast<size_t>(total) * sizeof(float);
  if (bytes > workspace_.bytes()) {
    GDN_RETURN_IF_ERROR(backend_.Synchronize());  // work in flight may still use the old workspace
    workspace_ = DeviceBuffer();
    GDN_ASSIGN_OR_RETURN(workspace_, DeviceBuffer::Make(backend_, bytes));
  }
  float* next = workspace_.floats();
  for (const Part& part : parts) {
    *part.data = part.floats > 0 ? next : nullptr;
    next += Aligned(part.floats);
  }
  return absl::OkStatus();
}

}  // namespace gdn
