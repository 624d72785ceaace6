#include "tools/gdn_parity/conv_rows.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/transpose/transpose.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/dump.h"

namespace gdn::parity {
namespace {

constexpr int32_t kMaxDraft = 8;

// The newest columns of every slot, [sequences, C, W - 1].
template <typename Read>
absl::StatusOr<std::vector<float>> Columns(const std::vector<int64_t>& counts, Read&& read) {
  std::vector<float> columns;
  for (size_t i = 0; i < counts.size(); ++i) {
    GDN_ASSIGN_OR_RETURN(const SlotImage image, read(static_cast<int32_t>(i), counts[i]));
    columns.insert(columns.end(), image.conv.begin(), image.conv.end());
  }
  return columns;
}

// Token-major rows on the device. Channel-major input is uploaded as it comes and transposed there.
absl::StatusOr<const float*> UploadRows(const ConvProblem& problem, const std::vector<float>& x, BackendData& data) {
  if (!problem.channel_major) return data.Upload(x);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(data.backend()));
  const int64_t channels = problem.channels;
  GDN_ASSIGN_OR_RETURN(float* rows, data.Poisoned(static_cast<int64_t>(x.size())));
  int64_t first = 0;
  for (const int32_t length : problem.lengths) {
    std::vector<float> by_channel(length * channels);
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = 0; c < channels; ++c) by_channel[c * length + t] = x[(first + t) * channels + c];
    }
    GDN_ASSIGN_OR_RETURN(const float* uploaded, data.Upload(by_channel));
    GDN_RETURN_IF_ERROR(TransposeGpu(
        {.batch = 1, .rows = channels, .cols = length, .x = uploaded, .y = rows + first * channels}, stream));
    first += length;
  }
  return rows;
}

}  // namespace

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

absl::StatusOr<Difference> CompareConv(const ConvProblem& problem, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  const LayerDims dims = ConvDims(problem.channels, problem.width);
  const int64_t channels = dims.conv_channels();
  const OwnedBatch batch(problem.lengths);
  const int32_t sequences = batch.view().sequences;
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, dims, sequences, kMaxDraft));
  std::vector<int64_t> counts(sequences, 0);
  for (int32_t i = 0; i < sequences && !problem.fresh; ++i) {
    counts[i] = 5 + 3 * i;
    SlotImage image;
    image.base.resize(dims.state_elements());
    image.conv = random.Normal(channels * (problem.width - 1));
    GDN_RETURN_IF_ERROR(state.Write(i, counts[i], image));
  }
  const std::vector<float> weight = random.Normal(channels * problem.width);
  GDN_ASSIGN_OR_RETURN(const float* device_weight, data.Upload(weight));
  const auto host_columns = [&] {
    return Columns(counts, [&](int32_t i, int64_t n) { return ReadHostSlot(state.host(), i, /*log_length=*/0, n); });
  };
  const auto device_columns = [&] {
    return Columns(counts,
                   [&](int32_t i, int64_t n) { return backend.ReadSlot(state.device(), i, /*log_length=*/0, n); });
  };
  OutputPair outputs;
  Difference difference;
  for (int call = 0; call < problem.calls; ++call) {
    const std::vector<float> x = random.Normal(batch.tokens() * channels);
    std::vector<float> expected(x.size());
    GDN_ASSIGN_OR_RETURN(const std::vector<float> before, host_columns());
    CausalConv1dParams params{.pool = state.host(),
                              .batch = batch.view(),
                              .token_counts = counts.data(),
                              .x = x.data(),
                              .weight = weight.data(),
                              .y = expected.data()};
    CausalConv1dReference(params);
    params.pool = state.device();
    params.weight = device_weight;
    GDN_ASSIGN_OR_RETURN(params.x, UploadRows(problem, x, data));
    GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(static_cast<int64_t>(x.size())));
    GDN_RETURN_IF_ERROR(backend.CausalConv1d(params));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> actual, data.Download(params.y, static_cast<int64_t>(x.size())));
    outputs.Append(actual, expected);
    for (int32_t i = 0; i < sequences; ++i) counts[i] += problem.lengths[i];
    GDN_ASSIGN_OR_RETURN(const std::vector<float> columns, device_columns());
    GDN_ASSIGN_OR_RETURN(const std::vector<float> expected_columns, host_columns());
    difference.Merge(Compare(columns, expected_columns));
    const std::vector<int64_t> state_shape{sequences, channels, problem.width - 1};
    GDN_RETURN_IF_ERROR(Dump("causal_conv1d", {},
                             {{"in.cu_seqlens", {sequences + 1}, {batch.cu_seqlens.begin(), batch.cu_seqlens.end()}},
                              {"in.x", {batch.tokens(), channels}, x},
                              {"in.weight", {channels, problem.width}, weight},
                              {"in.columns", state_shape, before},
                              {"out.y", {batch.tokens(), channels}, actual},
                              {"out.columns", state_shape, columns}}));
  }
  difference.Merge(Compare(outputs.actual, outputs.expected));
  return difference;
}

}  // namespace gdn::parity
