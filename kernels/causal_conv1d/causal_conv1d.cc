#include "kernels/causal_conv1d/causal_conv1d.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

// The channels of the sequence's token `t`, counted from the call's first; negative tokens are in the ring. `count` is
// the number of tokens before the call.
const float* TokenRow(const CausalConv1dParams& params, int32_t sequence, int64_t count, int64_t t) {
  const StateLayout& layout = params.pool.layout;
  const int64_t channels = layout.dims().conv_channels();
  if (t >= 0) return params.x + (params.batch.cu_seqlens[sequence] + t) * channels;
  return params.pool.slot(params.batch.slots[sequence]) + layout.conv_offset() +
         layout.conv_column(count + t) * channels;
}

}  // namespace

absl::Status ValidateCausalConv1d(const CausalConv1dParams& params) {
  constexpr char kOp[] = "CausalConv1d";
  GDN_RETURN_IF_ERROR(ValidatePackedBatch(params.batch, params.pool.slot_count));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "conv_width", params.pool.layout.dims().conv_width, 2, kMaxConvWidth));
  if (params.batch.tokens() == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers(
      kOp, {{"pool.data", params.pool.data}, {"x", params.x}, {"weight", params.weight}, {"y", params.y}}));
  return ValidateTokenCounts(kOp, params.batch, params.token_counts);
}

void CausalConv1dReference(const CausalConv1dParams& params) {
  const StateLayout& layout = params.pool.layout;
  const int64_t channels = layout.dims().conv_channels();
  const int32_t width = layout.dims().conv_width;
  ZeroPaddingRows(params.batch, channels, params.y);
  for (int32_t sequence = 0; sequence < params.batch.sequences; ++sequence) {
    if (params.batch.slots[sequence] < 0) continue;
    const int64_t length = params.batch.length(sequence);
    float* y = params.y + params.batch.cu_seqlens[sequence] * channels;
    const int64_t count = params.token_counts[sequence];
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0.0;
        for (int32_t w = 0; w < width; ++w) {
          const float* row = TokenRow(params, sequence, count, t - width + 1 + w);
          sum += double{params.weight[c * width + w]} * double{row[c]};
        }
        y[t * channels + c] = static_cast<float>(Silu(sum));
      }
    }
    float* ring = params.pool.slot(params.batch.slots[sequence]) + layout.conv_offset();
    for (int64_t t = std::max<int64_t>(0, length - layout.conv_columns()); t < length; ++t) {
      std::copy_n(TokenRow(params, sequence, count, t), channels, ring + layout.conv_column(count + t) * channels);
    }
  }
}

}  // namespace gdn
