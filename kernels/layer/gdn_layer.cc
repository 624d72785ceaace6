#include "kernels/layer/gdn_layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "kernels/layer/layer_inputs.h"
#include "kernels/layer/mixer_tensors.h"
#include "kernels/layer/step_key.h"
#include "kernels/layer/tree_rounds.h"

namespace gdn {
namespace {

constexpr int64_t kPartAlignment = 16;  // floats: 64 bytes

int64_t Aligned(int64_t floats) { return (floats + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

// `step` with every tensor moved on by `row` tokens; the batch is the caller's to set.
LayerStep FromRow(const LayerStep& step, int64_t row) {
  const LayerDims& dims = step.pool.layout.dims();
  std::array<LayerField, kMaxStepFields> storage;
  LayerStep moved = step;
  for (const LayerField& field : LayerFields(step.kind, dims, storage)) {
    moved.*field.tensor = (step.*field.tensor).From(row * field.features);
  }
  moved.output = step.output.From(row * LayerOutputFeatures(step.kind, dims));
  return moved;
}

}  // namespace

// Rows [begin, begin + length) of a sequence.
struct GdnLayerRunner::Piece {
  int32_t sequence = 0;
  int32_t begin = 0;
  int32_t length = 0;
  PrefillPath path = PrefillPath::kScan;
};

GdnLayerRunner::GdnLayerRunner(Backend& backend) : backend_(backend), trees_(std::make_unique<TreeRounds>(backend)) {}
GdnLayerRunner::GdnLayerRunner(GdnLayerRunner&&) noexcept = default;
GdnLayerRunner::~GdnLayerRunner() = default;

PrefillPath PrefillPathOf(int64_t call_tokens) {
  if (call_tokens < kChunkedFromTokens) return PrefillPath::kScan;
  return call_tokens < kGemmFromTokens ? PrefillPath::kChunked : PrefillPath::kChunkedGemm;
}

int32_t PrefillMultiple(const BackendInfo& backend, InputKind kind) {
  const bool follows_rows = kind == InputKind::kHiddenStates && backend.stable_gemm_rows < kPrefillSegmentTokens;
  return follows_rows ? kPrefillSegmentTokens : kPrefillSegmentMultiple;
}

absl::Status GdnLayerRunner::Prefill(const LayerStep& step) {
  GDN_RETURN_IF_ERROR(ValidatePrefillStep(step));
  const bool merges = backend_.info().merges_sequences;
  const int32_t most = merges ? kMaxMergedTokens : kPrefillSegmentTokens;
  std::vector<Piece> pieces;  // of the next run: rows that lie side by side
  int32_t tokens = 0;         // of pieces
  const auto run = [&]() -> absl::Status {
    if (pieces.empty()) return absl::OkStatus();
    GDN_RETURN_IF_ERROR(RunPieces(step, pieces));
    pieces.clear();
    tokens = 0;
    return absl::OkStatus();
  };
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    const int32_t length = step.batch.length(i);
    if (length == 0) continue;
    if (step.batch.slots[i] < 0) {
      GDN_RETURN_IF_ERROR(run());
      GDN_RETURN_IF_ERROR(ZeroOutput(step, i));
      continue;
    }
    const PrefillPath path = PrefillPathOf(step.call_tokens == nullptr ? length : step.call_tokens[i]);
    for (int32_t begin = 0; begin < length; begin += most) {
      const int32_t count = std::min(most, length - begin);
      const bool fits = merges && begin == 0 && tokens + count <= most && !pieces.empty() && pieces[0].path == path;
      if (!fits) GDN_RETURN_IF_ERROR(run());
      pieces.push_back({.sequence = i, .begin = begin, .length = count, .path = path});
      tokens += count;
    }
  }
  return run();
}

absl::Status GdnLayerRunner::RunPieces(const LayerStep& step, absl::Span<const Piece> pieces) {
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<int32_t> slots;
  std::vector<int64_t> token_counts;
  for (const Piece& piece : pieces) {
    cu_seqlens.push_back(cu_seqlens.back() + piece.length);
    slots.push_back(step.batch.slots[piece.sequence]);
    token_counts.push_back(step.token_counts == nullptr ? 0 : step.token_counts[piece.sequence] + piece.begin);
  }
  LayerStep part = FromRow(step, int64_t{step.batch.cu_seqlens[pieces[0].sequence]} + pieces[0].begin);
  part.batch = {
      .sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  part.token_counts = token_counts.data();
  path_ = pieces[0].path;
  return Run(part, /*log_lengths=*/nullptr);
}

absl::Status GdnLayerRunner::Decode(const LayerStep& step, int32_t* log_lengths) {
  may_have_folded_ = may_have_written_ = false;
  GDN_RETURN_IF_ERROR(ValidateDecodeStep(step, log_lengths));
  if (step.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(HasTree(step) ? IssueTrees(step, log_lengths) : IssueDecode(step, log_lengths));
  // Padding rows went through the projections with the rest; whatever they held, their outputs are zero.
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    if (step.batch.slots[i] < 0) GDN_RETURN_IF_ERROR(ZeroOutput(step, i));
  }
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::RehearseDecode(const LayerStep& step, const int32_t* log_lengths) {
  GDN_RETURN_IF_ERROR(ValidateDecodeStep(step, log_lengths));
  if (step.batch.tokens() == 0) return absl::OkStatus();
  moved_lengths_.assign(log_lengths, log_lengths + step.batch.sequences);
  return HasTree(step) ? IssueTrees(step, moved_lengths_.data()) : Run(step, moved_lengths_.data());
}

absl::Status GdnLayerRunner::IssueDecode(const LayerStep& step, int32_t* log_lengths) {
  if (!backend_.info().replays_steps) {
    GDN_RETURN_IF_ERROR(PrepareFolds(step, log_lengths));
    return Run(step, log_lengths);
  }
  // A replay knows nothing of the host's lengths, and a recording may be in vain: those that operators move are a copy.
  const auto issue = [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(PrepareFolds(step, log_lengths));
    moved_lengths_.assign(log_lengths, log_lengths + step.batch.sequences);
    return Run(step, moved_lengths_.data());
  };
  may_have_folded_ = !step.draft;  // by a replay
  may_have_written_ = true;
  GDN_RETURN_IF_ERROR(backend_.IssueOrReplay({.key = StepKey(step),
                                              .batch = step.batch,
                                              .token_counts = step.token_counts,
                                              .log_lengths = log_lengths,
                                              .base_slots = step.base_slots},
                                             issue));
  AdvanceLogs(step.batch, step.draft, log_lengths);
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::PrepareFolds(const LayerStep& step, const int32_t* log_lengths) {
  bool folds = may_have_folded_ = false;
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    folds |= step.batch.slots[i] >= 0 && log_lengths[i] + step.batch.length(i) >= kLogCapacity;
  }
  if (step.draft || !folds) return absl::OkStatus();
  moved_lengths_.assign(log_lengths, log_lengths + step.batch.sequences);
  const absl::Status prepared = backend_.Prepare([&] { return Run(step, moved_lengths_.data()); });
  may_have_folded_ = may_have_written_ = false;
  return prepared;
}

absl::Status GdnLayerRunner::Run(const LayerStep& step, int32_t* log_lengths) {
  return step.kind == InputKind::kDeltaRule ? RunDeltaRule(step, log_lengths) : RunMixer(step, log_lengths);
}

absl::Status GdnLayerRunner::RunDeltaRule(const LayerStep& given, int32_t* log_lengths) {
  const LayerDims& dims = given.pool.layout.dims();
  const int64_t tokens = given.batch.tokens();
  const DeltaRuleNumbers& numbers = given.delta_rule;
  const bool norm = numbers.use_qk_l2norm || numbers.scale != 1.0f;
  float* q = nullptr;
  float* k = nullptr;
  LayerStep step = given;
  GDN_RETURN_IF_ERROR(ReserveWidened(
      {{&q, norm ? tokens * dims.key_features() : 0}, {&k, norm ? tokens * dims.key_features() : 0}}, step));
  DeltaRuleParams rule{.pool = step.pool,
                       .batch = step.batch,
                       .q = step.q.floats(),
                       .k = step.k.floats(),
                       .v = step.v.floats(),
                       .g = step.g.floats(),
                       .beta = step.beta.floats(),
                       .q_stride = dims.key_features(),
                       .k_stride = dims.key_features(),
                       .v_stride = dims.value_features(),
                       .output = step.output.floats(),
                       .max_beta = numbers.max_beta};
  if (norm) {
    GDN_RETURN_IF_ERROR(backend_.QkL2Norm({.key_heads = dims.key_heads,
                                           .key_dim = dims.key_dim,
                                           .rows = tokens,
                                           .normalize = numbers.use_qk_l2norm,
                                           .scale = numbers.scale,
                                           .q = step.q.floats(),
                                           .k = step.k.floats(),
                                           .in_stride = dims.key_features(),
                                           .q_out = q,
                                           .k_out = k}));
    rule.q = q;
    rule.k = k;
  }
  may_have_written_ = true;
  GDN_RETURN_IF_ERROR(HasTree(step) ? DeltaRuleOfTrees(step, rule)
                                    : DeltaRule(step, rule, log_lengths, /*records=*/nullptr));
  return Narrow(step, given);
}

absl::Status GdnLayerRunner::RunMixer(const LayerStep& given, int32_t* log_lengths) {
  LayerStep step = given;
  const LayerWeights& weights = *step.weights;
  const LayerDims& dims = weights.spec.dims;
  const int64_t tokens = step.batch.tokens();
  const int64_t projected = step.kind == InputKind::kHiddenStates ? tokens : 0;  // rows that are projected here
  const int64_t joint = dims.decays_by_channel() ? 0 : projected;                // side by side
  const int64_t apart = projected - joint;
  const int64_t ba_features = 2 * int64_t{dims.value_heads};
  const int64_t records = log_lengths == nullptr ? 0 : backend_.DecodeRecordFloats(step.pool.layout, step.batch);
  // A backend that does not merge sequences runs a prefill's one at a time, so its GEMM may look at the number of rows.
  const bool gemm = log_lengths == nullptr && (path_ == PrefillPath::kChunkedGemm || !backend_.info().merges_sequences);
  const ProjectionPath path = gemm ? ProjectionPath::kSequenceGemm : ProjectionPath::kRowStable;
  ProjectionParams out{.path = path,
                       .math = backend_.info().math,
                       .rows = projected,
                       .x_stride = weights.out.cols,
                       .weight = weights.out,
                       .y_stride = dims.hidden_size};
  const bool takes_terms = projected > 0 && backend_.TakesTerms(out);
  Mixer mixer;
  GDN_RETURN_IF_ERROR(
      ReserveWidened({{&mixer.in.qkvz, joint * (dims.conv_channels() + dims.value_features())},
                      {&mixer.in.ba, joint * ba_features},
                      {&mixer.split, joint * (dims.conv_channels() + ba_features)},
                      {&mixer.in.z, projected * dims.value_features()},
                      {&mixer.in.mixed_qkv, apart * dims.conv_channels()},
                      {&mixer.in.b, apart * dims.value_heads},
                      {&mixer.in.a, apart * dims.decay_features()},
                      {&mixer.in.low_a, apart * weights.spec.decay_rank},
                      {&mixer.in.low_z, apart * weights.spec.output_gate_rank},
                      {&mixer.convolved, tokens * dims.conv_channels()},
                      {&mixer.q, tokens * dims.key_features()},
                      {&mixer.k, tokens * dims.key_features()},
                      {&mixer.g, tokens * dims.decay_features()},
                      {&mixer.beta, tokens * dims.value_heads},
                      {&mixer.records, records},
                      {&mixer.output, projected * dims.value_features()},
                      {&mixer.terms, takes_terms ? (projected * dims.value_features() * 3 + 1) / 2 : 0}},
                     step));
  // Heads in another order need another place: what the convolution wrote has been read by then.
  const bool tiled = projected > 0 && weights.tiled_out && dims.key_heads > 1 && dims.group() > 1;
  mixer.normed = tiled ? mixer.convolved : mixer.output;
  if (projected == 0) {
    mixer.output = mixer.normed = step.output.floats();
    GDN_RETURN_IF_ERROR(Mix(step, mixer, log_lengths));
    return Narrow(step, given);
  }

  GDN_RETURN_IF_ERROR(ProjectLayerInputs(backend_, path, weights, step.hidden_states, tokens, mixer.in));
  if (apart > 0) {
    step.mixed_qkv = mixer.in.mixed_qkv;
    step.b = mixer.in.b;
    step.a = mixer.in.a;
  }
  GDN_RETURN_IF_ERROR(Mix(step, mixer, log_lengths));
  out.x = mixer.normed;
  out.x_terms = reinterpret_cast<const uint16_t*>(mixer.terms);
  out.y = step.output;
  return backend_.Projection(out);
}

absl::Status GdnLayerRunner::Mix(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths) {
  const LayerWeights& weights = *step.weights;
  const LayerDims& dims = weights.spec.dims;
  may_have_written_ = true;
  const bool in_order = mixer.normed == mixer.output;
  const GatedRmsNormParams norm{.gate = weights.spec.output_gate,
                                .value_dim = dims.value_dim,
                                .rows = step.batch.tokens() * dims.value_heads,
                                .epsilon = weights.spec.norm_epsilon,
                                .x = mixer.output,
                                .z = mixer.in.z != nullptr ? mixer.in.z : step.z.floats(),
                                .weight = weights.norm_weight,
                                .y = mixer.normed,
                                .terms = reinterpret_cast<uint16_t*>(mixer.terms),
                                .key_heads = in_order ? 1 : dims.key_heads,
                                .group = in_order ? 1 : dims.group()};
  if (log_lengths != nullptr && !HasTree(step)) {
    const MixedDecodeParams whole{.input = MixerInputOf(step, mixer, log_lengths),
                                  .decode = DecodeOf(step, RuleOf(step, mixer), log_lengths, mixer.records),
                                  .norm = norm};
    if (backend_.FusesMixedDecode(whole)) {
      may_have_folded_ = !step.draft;
      return backend_.MixedDecode(whole);
    }
  }
  GDN_RETURN_IF_ERROR(HasTree(step) ? MixRowsOfTrees(step, mixer) : MixRows(step, mixer, log_lengths));
  return backend_.GatedRmsNorm(norm);
}

absl::Status GdnLayerRunner::MixRows(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths) {
  GDN_RETURN_IF_ERROR(backend_.MixerInput(MixerInputOf(step, mixer, log_lengths)));
  return DeltaRule(step, RuleOf(step, mixer), log_lengths, mixer.records);
}

MixerInputParams GdnLayerRunner::MixerInputOf(const LayerStep& step, const Mixer& mixer, const int32_t* log_lengths) {
  const LayerWeights& weights = *step.weights;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(weights.spec.dims.key_dim)));
  return {.pool = step.pool,
          .batch = step.batch,
          .token_counts = step.token_counts,
          .layout = weights.spec.projections,
          .qkvz = mixer.in.qkvz,
          .ba = mixer.in.ba,
          .split_scratch = mixer.split,
          .mixed_qkv = step.mixed_qkv.floats(),
          .b = step.b.floats(),
          .a = step.a.floats(),
          .conv_weight = weights.conv_weight,
          .a_log_convention = weights.spec.a_log,
          .decay_gate = weights.spec.decay_gate,
          .decay_lower_bound = weights.spec.decay_lower_bound,
          .beta_scale = weights.spec.beta_scale,
          .a_log = weights.a_log,
          .dt_bias = weights.dt_bias,
          .scale = scale,
          .convolved = mixer.convolved,
          .z = mixer.in.z,
          .q = mixer.q,
          .k = mixer.k,
          .g = mixer.g,
          .beta = mixer.beta,
          .records = mixer.records,
          .log_lengths = log_lengths,
          .base_slots = step.base_slots};
}

DeltaRuleParams GdnLayerRunner::RuleOf(const LayerStep& step, const Mixer& mixer) {
  const LayerDims& dims = step.weights->spec.dims;
  return {.pool = step.pool,
          .batch = step.batch,
          .q = mixer.q,
          .k = mixer.k,
          .v = mixer.convolved + 2 * dims.key_features(),
          .g = mixer.g,
          .beta = mixer.beta,
          .q_stride = dims.key_features(),
          .k_stride = dims.key_features(),
          .v_stride = dims.conv_channels(),
          .output = mixer.output,
          .max_beta = step.weights->spec.beta_scale};
}

DeltaRuleDecodeParams GdnLayerRunner::DecodeOf(const LayerStep& step, const DeltaRuleParams& rule, int32_t* log_lengths,
                                               const float* records) {
  return {
      .rule = rule, .log_lengths = log_lengths, .base_slots = step.base_slots, .draft = step.draft, .records = records};
}

absl::Status GdnLayerRunner::DeltaRule(const LayerStep& step, const DeltaRuleParams& rule, int32_t* log_lengths,
                                       const float* records) {
  if (log_lengths != nullptr) {
    may_have_folded_ = !step.draft;
    return backend_.DeltaRuleDecode(DecodeOf(step, rule, log_lengths, records));
  }
  return path_ == PrefillPath::kScan ? backend_.DeltaRuleScan(rule) : backend_.DeltaRuleChunk(rule);
}

absl::Status GdnLayerRunner::ZeroOutput(const LayerStep& step, int32_t sequence) {
  // Lives on, so a backend may copy from it after the call. Zero is zero in every dtype.
  static constexpr char kZeros[16384] = {};
  const int64_t features = LayerOutputFeatures(step.kind, step.pool.layout.dims());
  const OutputTensor output = step.output.From(step.batch.cu_seqlens[sequence] * features);
  char* to = static_cast<char*>(output.data);
  for (size_t left = static_cast<size_t>(step.batch.length(sequence) * features) * DTypeSize(output.dtype); left > 0;) {
    const size_t bytes = std::min(left, sizeof(kZeros));
    GDN_RETURN_IF_ERROR(backend_.CopyIn(to, kZeros, bytes));
    to += bytes;
    left -= bytes;
  }
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::ReserveWidened(Parts parts, LayerStep& step) {
  // Projections read and write every dtype themselves.
  if (step.kind == InputKind::kHiddenStates) return Reserve(parts);
  const LayerDims& dims = step.pool.layout.dims();
  const int64_t tokens = step.batch.tokens();
  std::array<LayerField, kMaxStepFields> storage;
  std::array<float*, kMaxStepFields> wide{};
  const absl::Span<const LayerField> fields = LayerFields(step.kind, dims, storage);
  for (size_t f = 0; f < fields.size(); ++f) {
    if ((step.*fields[f].tensor).dtype != DType::kF32) parts.push_back({&wide[f], tokens * fields[f].features});
  }
  float* output = nullptr;
  if (step.output.dtype != DType::kF32) {
    parts.push_back({&output, tokens * LayerOutputFeatures(step.kind, dims)});
  }
  GDN_RETURN_IF_ERROR(Reserve(parts));
  for (size_t f = 0; f < fields.size(); ++f) {
    if (wide[f] == nullptr) continue;
    InputTensor& tensor = step.*fields[f].tensor;
    GDN_RETURN_IF_ERROR(backend_.Convert({.count = tokens * fields[f].features, .x = tensor, .y = wide[f]}));
    tensor = wide[f];
  }
  if (output != nullptr) step.output = output;
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::Narrow(const LayerStep& widened, const LayerStep& step) {
  if (step.output.dtype == DType::kF32) return absl::OkStatus();
  const int64_t features = LayerOutputFeatures(step.kind, step.pool.layout.dims());
  return backend_.Convert({.count = step.batch.tokens() * features, .x = widened.output.floats(), .y = step.output});
}

absl::Status GdnLayerRunner::ReserveIn(DeviceBuffer& workspace, absl::Span<const Part> parts) {
  int64_t total = 0;
  for (const Part& part : parts) total += Aligned(part.floats);
  const size_t bytes = static_cast<size_t>(total) * sizeof(float);
  if (bytes > workspace.bytes()) {
    GDN_RETURN_IF_ERROR(backend_.Synchronize());  // work in flight may still use the old workspace
    workspace = DeviceBuffer();
    GDN_ASSIGN_OR_RETURN(workspace, DeviceBuffer::Make(backend_, bytes));
  }
  float* next = workspace.floats();
  for (const Part& part : parts) {
    *part.data = part.floats > 0 ? next : nullptr;
    next += Aligned(part.floats);
  }
  return absl::OkStatus();
}

}  // namespace gdn
