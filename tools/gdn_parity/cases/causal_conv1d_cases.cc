// Rows of causal_conv1d: calls that carry on where the one before stopped.
//
// The llama rows have the shapes of llama.cpp's SSM_CONV, which takes [C, W-1+T] a sequence with the W-1 older inputs
// in front; ours takes token rows and keeps those inputs in the slot. Ours applies SiLU, so it stands for SSM_CONV
// followed by SILU.

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/transpose/transpose.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/dump.h"

namespace gdn::parity {
namespace {

using Lengths = std::vector<int32_t>;

struct Problem {
  LayerDims dims = {};
  std::vector<Lengths> calls = {};  // tokens of each sequence
  int32_t max_draft = 8;
  bool fresh = false;          // else the slots hold random columns
  bool channel_major = false;  // x comes as [C, T] a sequence and is transposed on the device; needs a GPU backend
};

// Dimensions of a layer with this many convolution channels, a multiple of 4.
LayerDims ConvDims(int32_t channels, int32_t width) {
  int32_t heads = 1;
  while (channels / (2 * heads) > kMaxHeadDim) heads *= 2;
  return {.key_heads = heads,
          .value_heads = heads,
          .key_dim = channels / (4 * heads),
          .value_dim = channels / (2 * heads),
          .conv_width = width,
          .hidden_size = 64};
}

// Token-major rows on the device. Channel-major input is uploaded as it comes and transposed there.
absl::StatusOr<const float*> UploadRows(const Problem& problem, const Lengths& lengths, const std::vector<float>& x,
                                        BackendData& data) {
  if (!problem.channel_major) return data.Upload(x);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(data.backend()));
  const int64_t channels = problem.dims.conv_channels();
  GDN_ASSIGN_OR_RETURN(float* rows, data.Poisoned(static_cast<int64_t>(x.size())));
  int64_t first = 0;
  for (const int32_t length : lengths) {
    std::vector<float> by_channel(length * channels);
    TransposeReference({.rows = length, .cols = channels, .x = x.data() + first * channels, .y = by_channel.data()});
    GDN_ASSIGN_OR_RETURN(const float* uploaded, data.Upload(by_channel));
    GDN_RETURN_IF_ERROR(TransposeGpu(
        {.batch = 1, .rows = channels, .cols = length, .x = uploaded, .y = rows + first * channels}, stream));
    first += length;
  }
  return rows;
}

// The newest columns of every slot, [sequences, C, W - 1]. What else is in a slot must be as it was.
absl::StatusOr<OutputPair> ReadColumns(Backend& backend, const StatePair& state, const std::vector<int64_t>& counts) {
  OutputPair columns;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int32_t slot = static_cast<int32_t>(i);
    GDN_ASSIGN_OR_RETURN(const SlotImage actual, ReadSlot(backend, state.device(), slot, /*log_length=*/0, counts[i]));
    GDN_ASSIGN_OR_RETURN(const SlotImage expected, ReadHostSlot(state.host(), slot, /*log_length=*/0, counts[i]));
    if (actual.base != expected.base) return absl::InternalError("the convolution has changed a base");
    columns.Append(actual.conv, expected.conv);
  }
  return columns;
}

// Outputs and columns against the reference's; each call is dumped as op "causal_conv1d".
CaseResult RunCausalConv1d(const Problem& problem, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  const LayerDims& dims = problem.dims;
  const int64_t channels = dims.conv_channels();
  const int32_t sequences = static_cast<int32_t>(problem.calls[0].size());
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, dims, sequences, problem.max_draft));
  std::vector<int64_t> counts(sequences, 0);
  for (int32_t i = 0; i < sequences && !problem.fresh; ++i) {
    counts[i] = 5 + 3 * i;
    SlotImage image;
    image.base.assign(dims.state_elements(), 0.25f);
    image.conv = random.Normal(channels * (dims.conv_width - 1));
    GDN_RETURN_IF_ERROR(state.Write(i, counts[i], image));
  }
  const std::vector<float> weight = random.Normal(channels * dims.conv_width);
  GDN_ASSIGN_OR_RETURN(const float* device_weight, data.Upload(weight));
  GDN_ASSIGN_OR_RETURN(OutputPair columns, ReadColumns(backend, state, counts));
  OutputPair outputs;
  Difference difference;
  for (const Lengths& lengths : problem.calls) {
    const OwnedBatch batch(lengths);
    const std::vector<float> x = random.Normal(batch.tokens() * channels);
    std::vector<float> expected(x.size());
    CausalConv1dParams params{.pool = state.host(),
                              .batch = batch.view(),
                              .token_counts = counts.data(),
                              .x = x.data(),
                              .weight = weight.data(),
                              .y = expected.data()};
    CausalConv1dReference(params);
    params.pool = state.device();
    params.weight = device_weight;
    GDN_ASSIGN_OR_RETURN(params.x, UploadRows(problem, lengths, x, data));
    GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(static_cast<int64_t>(x.size())));
    GDN_RETURN_IF_ERROR(backend.CausalConv1d(params));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> actual, data.Download(params.y, static_cast<int64_t>(x.size())));
    outputs.Append(actual, expected);
    for (int32_t i = 0; i < sequences; ++i) counts[i] += lengths[i];
    const std::vector<float> before = std::move(columns.expected);
    GDN_ASSIGN_OR_RETURN(columns, ReadColumns(backend, state, counts));
    difference.Merge(Compare(columns.actual, columns.expected));
    const std::vector<int64_t> state_shape{sequences, channels, dims.conv_width - 1};
    GDN_RETURN_IF_ERROR(Dump("causal_conv1d", {},
                             {{"in.cu_seqlens", {sequences + 1}, {batch.cu_seqlens.begin(), batch.cu_seqlens.end()}},
                              {"in.x", {batch.tokens(), channels}, x},
                              {"in.weight", {channels, dims.conv_width}, weight},
                              {"in.columns", state_shape, before},
                              {"out.y", {batch.tokens(), channels}, actual},
                              {"out.columns", state_shape, columns.actual}}));
  }
  // Columns are copies of inputs.
  if (difference.max_abs > 0.0) return absl::InternalError("columns are not the inputs to the bit");
  difference.Merge(Compare(outputs.actual, outputs.expected));
  return difference;
}

std::vector<Lengths> Repeat(const Lengths& lengths, int calls) { return std::vector<Lengths>(calls, lengths); }

// Shorter than the filter, as long, longer; with a carried state and without.
void AddOps(const auto& add) {
  for (const bool channel_major : {false, true}) {
    for (const int32_t width : {2, 3, 4, 9}) {
      for (const Lengths& lengths : {Lengths{1}, {width - 1}, {width}, {40, 1, 0, 2}}) {
        for (const bool fresh : {true, false}) {
          add("ops", channel_major ? "conv1d_channel_major" : "conv1d_token_major",
              absl::StrCat("C=96 W=", width, " T=", absl::StrJoin(lengths, ","), fresh ? " fresh" : " carried"),
              Problem{.dims = ConvDims(96, width),
                      .calls = Repeat(lengths, 2),
                      .fresh = fresh,
                      .channel_major = channel_major});
        }
      }
    }
  }
}

void AddLlama(const auto& add) {
  const auto add_shape = [&add](int32_t width, int32_t channels, int32_t tokens, int32_t sequences) {
    const auto add_channels = [&](int32_t some_channels, const std::string& note, bool large) {
      add("llama", "ssm_conv_silu",
          absl::StrCat("W=", width, " C=", some_channels, " T=", tokens, " B=", sequences, note),
          Problem{.dims = ConvDims(some_channels, width), .calls = {Lengths(sequences, tokens)}})
          .large = large;
    };
    constexpr int64_t kHostElements = 100'000;
    const bool large = int64_t{channels} * tokens * sequences > kHostElements;
    add_channels(channels, "", large);
    if (large) add_channels(256, absl::StrCat(" (of C=", channels, ")"), false);
  };
  for (const int32_t width : {3, 4, 9}) {
    for (const int32_t channels : {1024, 1536, 2048}) {
      add_shape(width, channels, 1, 1);
      add_shape(width, channels, width + 1, 1);
      add_shape(width, channels, 1, 4);
      add_shape(width, channels, 64, 1);
      add_shape(width, channels, 64, 4);
    }
  }
  for (const auto& [channels, tokens] : {std::pair{3328, 512}, std::pair{8192, 934}, std::pair{3328, 1}}) {
    add_shape(4, channels, tokens, 1);
  }
}

}  // namespace

void AddCausalConv1dCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, const char* test, const std::string& shape,
                            const Problem& problem) -> ParityCase& {
    cases.push_back({suite, test, shape, kSumTolerance, std::bind_front(RunCausalConv1d, problem)});
    cases.back().gpu_only = problem.channel_major;  // the transpose is a GPU launch
    return cases.back();
  };
  const auto add_layer_op = [&add](const char* test, int32_t width, const Lengths& lengths, int calls) {
    add("layer_ops", test, absl::StrCat("W=", width, " T=", absl::StrJoin(lengths, ","), " calls=", calls),
        {.dims = {2, 4, 33, 40, width, 64}, .calls = Repeat(lengths, calls), .max_draft = 3})
        .tolerance = kElementwiseTolerance;
  };
  for (const int32_t width : {2, 3, 4, 9}) {
    add_layer_op("causal_conv1d_prefill", width, {100}, 1);
    add_layer_op("causal_conv1d_prefill", width, {1, 2, 0, 70, 5}, 3);
    add_layer_op("causal_conv1d_decode", width, {1, 1, 1, 1, 1, 1, 1}, 20);
    add_layer_op("causal_conv1d_decode", width, {2, 1, 3}, 10);
  }
  const LayerDims dims = ConvDims(96, 4);
  add("parity", "conv1d_decode", "C=96 W=4 T=1 x5, 6 steps", {.dims = dims, .calls = Repeat({1, 1, 1, 1, 1}, 6)});
  add("parity", "conv1d_prefill", "C=96 W=4 T=70,1,0,3, 2 calls", {.dims = dims, .calls = Repeat({70, 1, 0, 3}, 2)});
  AddOps(add);
  for (const int32_t width : {2, 4, 9}) {
    add("cache", "conv1d_split", absl::StrCat("C=96 W=", width, " T=1 x12 after a first call"),
        {.dims = ConvDims(96, width), .calls = Repeat({1, 3}, 12), .fresh = true});
  }
  AddLlama(add);
  // Any width, channels in up to two blocks with odd tails, any lengths on end.
  for (const int32_t width : {2, 3, 4, 5, 9, 64}) {
    for (const LayerDims& any : {LayerDims{1, 2, 1, 11, width, 16}, LayerDims{1, 2, 9, 11, width, 16},
                                 LayerDims{1, 2, 150, 11, width, 16}, LayerDims{1, 2, 8, 12, width, 16}}) {
      add("shapes", "causal_conv1d", absl::StrCat("C=", any.conv_channels(), " W=", width, " any lengths, 8 calls"),
          {.dims = any,
           .calls = {{1, 0, 2, 70},
                     {1, 1, 1, 1},
                     {3, 200, 0, 1},
                     {0, 0, 0, 0},
                     {63, 64, 65, 2},
                     {3, 130, 0, 1},
                     {63, 64, 17, 2},
                     {1, 2, 1, 3}},
           .max_draft = 3,
           .fresh = true})
          .tolerance = kElementwiseTolerance;
    }
  }
}

}  // namespace gdn::parity
