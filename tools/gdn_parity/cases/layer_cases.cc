// Rows of the layer: whole steps through GdnLayerRunner against the composition of the references.

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "base/weight_format.h"
#include "kernels/layer/gdn_layer.h"
#include "kernels/projection/random_weights.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/gdn_layer_reference.h"

namespace gdn::parity {
namespace {

constexpr int32_t kLayerMaxDraft = 8;

struct LayerCase {
  LayerDims dims;
  ProjectionLayout layout = ProjectionLayout::kFlat;
  float beta_scale = 1.0f;
  GateActivation output_gate = GateActivation::kSilu;
  WeightFormat weights = WeightFormat::kF32;
  DType input = DType::kF32;
  InputKind kind = InputKind::kHiddenStates;
  std::vector<int32_t> prefill = {};  // tokens of each sequence
  std::vector<int32_t> decode = {};   // tokens of each sequence and decode step; empty: no decode
  int decode_steps = 0;
  // Where decays go by channel.
  float decay_lower_bound = 0.0f;  // below 0: the bounded gate
  int32_t decay_rank = 0;
  int32_t output_gate_rank = 0;
};

// The same random weights on the host and on the backend.
struct WeightPair {
  LayerWeights host;
  LayerWeights device;
  std::vector<std::vector<char>> owned;
  std::vector<RandomWeights> quantised;
};

absl::StatusOr<WeightPair> MakeWeights(const LayerCase& c, Backend& backend, BackendData& data, RandomTensor& random) {
  const LayerDims& dims = c.dims;
  const bool interleaved = c.layout == ProjectionLayout::kInterleaved;
  WeightPair pair;
  pair.host.spec =
      pair.device.spec = {.dims = dims,
                          .decay_gate = c.decay_lower_bound < 0.0f ? DecayGate::kBoundedSigmoid : DecayGate::kSoftplus,
                          .decay_lower_bound = c.decay_lower_bound,
                          .beta_scale = c.beta_scale,
                          .output_gate = c.output_gate,
                          .projections = c.layout,
                          .decay_rank = c.decay_rank,
                          .output_gate_rank = c.output_gate_rank};
  // On the host, and on the backend.
  const auto store = [&](DType dtype,
                         const std::vector<float>& values) -> absl::StatusOr<std::pair<const void*, const void*>> {
    std::vector<char>& bytes = pair.owned.emplace_back(values.size() * DTypeSize(dtype));
    ConvertFromFloat(values.data(), values.size(), dtype, bytes.data());
    GDN_ASSIGN_OR_RETURN(const void* device, data.Upload(bytes));
    return std::pair<const void*, const void*>(bytes.data(), device);
  };
  const auto matrix = [&](WeightMatrix LayerWeights::*member, int64_t rows, int64_t cols) -> absl::Status {
    if (rows == 0) return absl::OkStatus();
    if (!IsPlain(c.weights)) {
      const RandomWeights& made = pair.quantised.emplace_back(
          MakeRandomWeights(c.weights, rows, cols, static_cast<uint32_t>(pair.quantised.size() + 1)));
      pair.host.*member = made.matrix();
      (pair.host.*member).integer_halves = backend.info().IntegerHalvesFor(c.weights);
      pair.device.*member = pair.host.*member;
    } else {
      const DType dtype = WidenedDType(c.weights);
      const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
      GDN_ASSIGN_OR_RETURN(const auto stored, store(dtype, random.Normal(rows * cols, deviation)));
      pair.host.*member = pair.device.*member = PlainMatrix(dtype, stored.first, rows, cols);
      const std::vector<float> row_scales =
          backend.info().RowScalesFor(pair.host.*member, /*meets_calls=*/cols == dims.hidden_size);
      if (!row_scales.empty()) {
        GDN_ASSIGN_OR_RETURN(const auto scales, store(DType::kF32, row_scales));
        (pair.host.*member).scales = static_cast<const float*>(scales.first);
        (pair.device.*member).scales = static_cast<const float*>(scales.second);
      }
    }
    GDN_ASSIGN_OR_RETURN(char* packed, data.Poisoned<char>(backend.WeightBytes(pair.host.*member)));
    (pair.device.*member).data = packed;
    return backend.CopyWeightsIn(packed, pair.host.*member);
  };
  const auto vector = [&](const float* LayerWeights::*member, const std::vector<float>& values) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(const auto stored, store(DType::kF32, values));
    pair.host.*member = static_cast<const float*>(stored.first);
    pair.device.*member = static_cast<const float*>(stored.second);
    return absl::OkStatus();
  };
  const int64_t z = dims.value_features();
  const int64_t heads = dims.value_heads;
  GDN_RETURN_IF_ERROR(matrix(&LayerWeights::in_qkv, dims.conv_channels() + (interleaved ? z : 0), dims.hidden_size));
  const int32_t z_rank = c.output_gate_rank;
  GDN_RETURN_IF_ERROR(matrix(&LayerWeights::in_z, interleaved ? 0 : z_rank > 0 ? z_rank : z, dims.hidden_size));
  GDN_RETURN_IF_ERROR(matrix(&LayerWeights::z_up, z_rank > 0 ? z : 0, z_rank));
  GDN_RETURN_IF_ERROR(matrix(&LayerWeights::in_b, interleaved ? 2 * heads : heads, dims.hidden_size));
  const int64_t a_rows = c.decay_rank > 0 ? c.decay_rank : dims.decay_features();
  GDN_RETURN_IF_ERROR(matrix(&LayerWeights::in_a, interleaved ? 0 : a_rows, dims.hidden_size));
  GDN_RETURN_IF_ERROR(matrix(&LayerWeights::a_up, c.decay_rank > 0 ? dims.decay_features() : 0, c.decay_rank));
  GDN_RETURN_IF_ERROR(matrix(&LayerWeights::out, dims.hidden_size, z));
  GDN_RETURN_IF_ERROR(vector(&LayerWeights::conv_weight, random.Normal(dims.conv_channels() * dims.conv_width, 0.5f)));
  GDN_RETURN_IF_ERROR(vector(&LayerWeights::a_log, random.Uniform(heads, -4.0f, 1.0f)));
  GDN_RETURN_IF_ERROR(vector(&LayerWeights::dt_bias, random.Normal(dims.decay_features())));
  GDN_RETURN_IF_ERROR(vector(&LayerWeights::norm_weight, random.Normal(dims.value_dim)));
  return pair;
}

// One input tensor of a step, made on the host and uploaded.
struct StepInput {
  InputTensor LayerStep::*member;
  std::vector<float> values;
};

std::vector<StepInput> MakeInputs(const LayerCase& c, int64_t tokens, RandomTensor& random) {
  const LayerDims& dims = c.dims;
  switch (c.kind) {
    case InputKind::kProjected:
      return {{&LayerStep::mixed_qkv, random.Normal(tokens * dims.conv_channels())},
              {&LayerStep::z, random.Normal(tokens * dims.value_features())},
              {&LayerStep::b, random.Normal(tokens * dims.value_heads)},
              {&LayerStep::a, random.Normal(tokens * dims.decay_features())}};
    case InputKind::kDeltaRule:
      return {{&LayerStep::q, random.Normal(tokens * dims.key_features())},
              {&LayerStep::k, random.Normal(tokens * dims.key_features())},
              {&LayerStep::v, random.Normal(tokens * dims.value_features())},
              {&LayerStep::g, random.Uniform(tokens * dims.decay_features(), -1.0f, 0.0f)},
              {&LayerStep::beta, random.Uniform(tokens * dims.value_heads, 0.0f, 1.0f)}};
    default:
      return {{&LayerStep::hidden_states, random.Normal(tokens * dims.hidden_size)}};
  }
}

CaseResult RunLayer(const LayerCase& c, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const WeightPair weights, MakeWeights(c, backend, data, random));
  const int32_t sequences = static_cast<int32_t>(c.prefill.size());
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, c.dims, sequences, kLayerMaxDraft));
  GdnLayerRunner runner(backend);
  std::vector<int64_t> counts(sequences, 0);
  std::vector<int32_t> log_lengths(sequences, 0);
  OutputPair outputs;
  for (int call = 0; call <= c.decode_steps; ++call) {
    const std::vector<int32_t>& lengths = call == 0 ? c.prefill : c.decode;
    const OwnedBatch batch(lengths);
    const int64_t width = c.kind == InputKind::kHiddenStates ? c.dims.hidden_size : c.dims.value_features();
    std::vector<float> expected(batch.tokens() * width);
    LayerStep step;
    step.weights = &weights.host;
    step.pool = state.host();
    step.batch = batch.view();
    step.token_counts = counts.data();
    step.kind = c.kind;
    step.delta_rule.scale = 0.125f;
    step.delta_rule.use_qk_l2norm = true;
    step.delta_rule.max_beta = 1.0f;
    step.output = expected.data();
    std::vector<StepInput> inputs = MakeInputs(c, batch.tokens(), random);
    std::vector<std::vector<char>> stored;
    for (StepInput& input : inputs) {
      std::vector<char>& bytes = stored.emplace_back(input.values.size() * DTypeSize(c.input));
      ConvertFromFloat(input.values.data(), input.values.size(), c.input, bytes.data());
      ConvertToFloat(c.input, bytes.data(), input.values.size(), input.values.data());
      step.*input.member = input.values.data();
    }
    GDN_RETURN_IF_ERROR(GdnLayerReference(step, backend.info().math));

    step.weights = &weights.device;
    step.pool = state.device();
    for (size_t i = 0; i < inputs.size(); ++i) {
      GDN_ASSIGN_OR_RETURN(const char* input, data.Upload(stored[i]));
      step.*inputs[i].member = InputTensor(input, c.input);
    }
    GDN_ASSIGN_OR_RETURN(step.output, data.Poisoned(expected.size()));
    GDN_RETURN_IF_ERROR(call == 0 ? runner.Prefill(step) : runner.Decode(step, log_lengths.data()));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> actual, data.Download(step.output.floats(), expected.size()));
    outputs.Append(actual, expected);
    for (int32_t i = 0; i < sequences; ++i) counts[i] += lengths[i];
  }
  GDN_RETURN_IF_ERROR(state.FoldDevice(log_lengths));
  Difference difference = Compare(outputs.actual, outputs.expected);
  for (int32_t i = 0; i < sequences; ++i) {
    GDN_ASSIGN_OR_RETURN(const Difference of_slot, state.CompareSlot(i, counts[i]));
    difference.Merge(of_slot);
  }
  return difference;
}

void Add(const LayerCase& c, std::vector<ParityCase>& cases, const char* suite = "layer",
         double tolerance = kLayerTolerance) {
  const std::string layout = c.layout == ProjectionLayout::kFlat ? "flat" : "interleaved";
  const std::string formula = absl::StrCat(c.beta_scale == 1.0f ? "" : ", beta to 2",
                                           c.output_gate == GateActivation::kSilu ? "" : ", sigmoid gate");
  const std::string decode =
      c.decode_steps == 0 ? "" : absl::StrCat(", decode ", c.decode_steps, " x ", absl::StrJoin(c.decode, ","));
  cases.push_back({suite,
                   absl::StrCat(std::string(InputKindName(c.kind)), "_", layout, "_",
                                std::string(WeightFormatName(c.weights)), c.input == DType::kF32 ? "" : "_of_",
                                c.input == DType::kF32 ? "" : std::string(DTypeName(c.input))),
                   absl::StrCat(LayerDimsToString(c.dims), " prefill ", absl::StrJoin(c.prefill, ","), decode, formula),
                   tolerance, std::bind_front(RunLayer, c)});
  ParityCase& added = cases.back();
  if (IsPlain(c.weights) || HasHalfProducts(c.weights)) added.in_half = {kHalfLayerTolerance, kHalfLayerTolerance};
  added.integer_weights = HasIntegerWeights(c.weights);
  if (added.integer_weights) added.in_int8 = {kInt8LayerTolerance, Int8LayerMaxTolerance(c.dims.value_features())};
}

// Decays by channel: both gates, a and z of one matrix and of two, every input.
void AddChannelCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](LayerCase c) {
    c.dims.decay = DecayKind::kPerChannel;
    c.output_gate = GateActivation::kSigmoid;
    const std::string formula = absl::StrCat(
        c.decay_lower_bound < 0.0f ? absl::StrCat(", gate bounded by ", c.decay_lower_bound) : ", softplus gate",
        c.decay_rank > 0 ? absl::StrCat(", a of rank ", c.decay_rank) : "",
        c.output_gate_rank > 0 ? absl::StrCat(", z of rank ", c.output_gate_rank) : "");
    Add(c, cases, "kda");
    ParityCase& last = cases.back();
    last.test = std::string(InputKindName(c.kind));
    absl::StrAppend(&last.shape, formula, " ", std::string(WeightFormatName(c.weights)));
    last.by_channel = true;
  };
  const LayerDims square{
      .key_heads = 3, .value_heads = 3, .key_dim = 32, .value_dim = 32, .conv_width = 4, .hidden_size = 64};
  const LayerDims uneven{
      .key_heads = 1, .value_heads = 3, .key_dim = 40, .value_dim = 24, .conv_width = 3, .hidden_size = 80};
  for (const LayerDims& dims : {square, uneven}) {
    for (const float lower_bound : {0.0f, -5.0f}) {
      for (const auto& [decay_rank, gate_rank] : {std::pair{0, 0}, std::pair{32, 16}, std::pair{24, 0}}) {
        add({.dims = dims,
             .prefill = {1, 37, 130},
             .decode = {1, 1, 1},
             .decode_steps = 20,
             .decay_lower_bound = lower_bound,
             .decay_rank = decay_rank,
             .output_gate_rank = gate_rank});
      }
      for (const InputKind kind : {InputKind::kProjected, InputKind::kDeltaRule}) {
        add({.dims = dims,
             .kind = kind,
             .prefill = {5, 70, 0},
             .decode = {1, 2, 8},
             .decode_steps = 20,
             .decay_lower_bound = lower_bound});
      }
    }
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      add({.dims = dims,
           .weights = FormatOf(dtype),
           .prefill = {37, 100},
           .decode = {1, 1},
           .decode_steps = 20,
           .decay_rank = 32,
           .output_gate_rank = 32});
    }
  }
  for (const int32_t tokens : {1, 3, 31, 32, 64, 65, 130, 513}) {
    add({.dims = square,
         .prefill = {tokens},
         .decode = {1},
         .decode_steps = 20,
         .decay_lower_bound = -5.0f,
         .decay_rank = 32,
         .output_gate_rank = 32});
  }
}

}  // namespace

void AddLayerCases(std::vector<ParityCase>& cases) {
  const LayerDims grouped{
      .key_heads = 2, .value_heads = 4, .key_dim = 32, .value_dim = 32, .conv_width = 4, .hidden_size = 64};
  const LayerDims uneven{
      .key_heads = 1, .value_heads = 3, .key_dim = 48, .value_dim = 32, .conv_width = 3, .hidden_size = 80};
  for (ProjectionLayout layout : {ProjectionLayout::kInterleaved, ProjectionLayout::kFlat}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      Add({.dims = grouped,
           .layout = layout,
           .weights = FormatOf(dtype),
           .prefill = {37, 100},
           .decode = {1, 1},
           .decode_steps = 20},
          cases);
    }
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Add({.dims = grouped,
           .layout = layout,
           .weights = WeightFormat::kBF16,
           .input = dtype,
           .prefill = {37, 100},
           .decode = {1, 1},
           .decode_steps = 20},
          cases);
    }
    // Several, since the norm turns one token's cancellation in q . k into the whole head's error.
    Add({.dims = uneven, .layout = layout, .prefill = {1, 1, 1, 1, 1, 1, 1, 1}}, cases);
    for (int32_t tokens : {33, 64, 600}) Add({.dims = uneven, .layout = layout, .prefill = {tokens}}, cases);
    Add({.dims = uneven, .layout = layout, .prefill = {2, 65, 1}, .decode = {3, 1, 8}, .decode_steps = 8}, cases);
  }
  for (InputKind kind : {InputKind::kProjected, InputKind::kDeltaRule}) {
    Add({.dims = grouped, .kind = kind, .prefill = {5, 70}, .decode = {1, 2}, .decode_steps = 20}, cases);
    Add({.dims = uneven, .kind = kind, .prefill = {130, 40}, .decode = {1, 1}, .decode_steps = 20}, cases);
  }
  // What families have beside the first ones' formula: negative eigenvalues, another output gate.
  for (const LayerDims& dims : {grouped, uneven}) {
    for (const auto& [beta_scale, output_gate] :
         {std::pair{2.0f, GateActivation::kSilu}, std::pair{1.0f, GateActivation::kSigmoid}}) {
      Add({.dims = dims,
           .beta_scale = beta_scale,
           .output_gate = output_gate,
           .prefill = {1, 37, 130},
           .decode = {1, 1, 1},
           .decode_steps = 20},
          cases);
    }
  }
  AddChannelCases(cases);
  // Rows of whole blocks, of 32 and of 256.
  const LayerDims whole{
      .key_heads = 2, .value_heads = 4, .key_dim = 32, .value_dim = 64, .conv_width = 4, .hidden_size = 256};
  for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_K}) {
    for (const auto& [decay, input] :
         {std::pair(DecayKind::kPerHead, DType::kF32), std::pair(DecayKind::kPerHead, DType::kBF16),
          std::pair(DecayKind::kPerChannel, DType::kF32)}) {
      LayerCase c{
          .dims = whole, .weights = format, .input = input, .prefill = {3, 100}, .decode = {1, 1}, .decode_steps = 20};
      c.dims.decay = decay;
      const bool by_channel = decay == DecayKind::kPerChannel;
      Add(c, cases, by_channel ? "kda" : "layer");
      cases.back().by_channel = by_channel;
    }
  }
  // The token-sequential path, the chunked one, segments; what one sequence alone has been held to.
  constexpr double kAloneTolerance = 2e-6;
  const LayerDims small{
      .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .conv_width = 4, .hidden_size = 48};
  for (const auto& [layout, dtype] :
       {std::pair{ProjectionLayout::kInterleaved, DType::kF32}, std::pair{ProjectionLayout::kFlat, DType::kF32},
        std::pair{ProjectionLayout::kInterleaved, DType::kBF16}, std::pair{ProjectionLayout::kFlat, DType::kF16}}) {
    for (const int32_t tokens : {1, 3, 31, 32, 64, 65, 130, 513}) {
      Add({.dims = small,
           .layout = layout,
           .weights = FormatOf(dtype),
           .prefill = {tokens},
           .decode = {1},
           .decode_steps = 20},
          cases, "shapes", kAloneTolerance);
    }
  }
}

}  // namespace gdn::parity
