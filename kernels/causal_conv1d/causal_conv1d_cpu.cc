// Tasks: a group of token ranges x a block of channels. A task turns its block of weights into one row a tap, then
// walks the tokens; the row of each tap is a pointer into x or into the ring, so prefill, decode and the seam between
// them are one loop.

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/common/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/causal_conv1d/causal_conv1d_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/common/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

// y = silu(sum_w taps[w] * rows[w]) for one vector of channels. `width` is a constant where the caller inlines one.
template <class D>
HWY_INLINE void ConvolveVector(D d, const float* const* rows, const float* taps, int32_t width, int64_t channels,
                               int64_t c, float* y) {
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): a convolution has a width of 2 at the least
  auto sum = hn::Mul(hn::LoadU(d, taps + c), hn::LoadU(d, rows[0] + c));
  for (int32_t w = 1; w < width; ++w) {
    sum = hn::MulAdd(hn::LoadU(d, taps + w * channels + c), hn::LoadU(d, rows[w] + c), sum);
  }
  hn::StoreU(Silu(d, sum), d, y + c);
}

HWY_INLINE void ConvolveToken(const float* const* rows, const float* taps, int32_t width, int64_t channels, float* y) {
  ForVectors(channels, [&](auto d, int64_t c) HWY_ATTR { ConvolveVector(d, rows, taps, width, channels, c, y); });
}

// Channels [channel, channel + channels) of tokens [begin, end) of a sequence, counted from the call's first; `taps` is
// [W, channels]. The range that begins at 0 also moves the ring on.
void ConvolveRange(const CausalConv1dParams& params, int32_t sequence, int64_t begin, int64_t end, int64_t channel,
                   int64_t channels, const float* taps) {
  const StateLayout& layout = params.pool.layout;
  const int32_t width = layout.dims().conv_width;
  const int64_t stride = layout.dims().conv_channels();
  const int64_t count = params.token_counts[sequence];
  const int64_t first_row = params.batch.cu_seqlens[sequence];
  const float* x = params.x + first_row * stride + channel;
  float* y = params.y + first_row * stride + channel;
  float* ring = params.pool.slot(params.batch.slots[sequence]) + layout.conv_offset() + channel;

  const float* rows[kMaxConvWidth];
  for (int64_t t = begin; t < end; ++t) {
    for (int32_t w = 0; w < width; ++w) {
      const int64_t token = t - width + 1 + w;  // negative: before the call's first, so in the ring
      rows[w] = token >= 0 ? x + token * stride : ring + layout.conv_column(count + token) * stride;
    }
    if (width == 4) {
      ConvolveToken(rows, taps, 4, channels, y + t * stride);
    } else {
      ConvolveToken(rows, taps, width, channels, y + t * stride);
    }
  }
  if (begin != 0) return;
  const int64_t length = params.batch.length(sequence);
  for (int64_t t = std::max<int64_t>(0, length - layout.conv_columns()); t < length; ++t) {
    std::memcpy(ring + layout.conv_column(count + t) * stride, x + t * stride, channels * sizeof(float));
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

constexpr int64_t kChannelsPerTask = 256;
constexpr int64_t kTokensPerTask = 64;
static_assert(kTokensPerTask >= kMaxConvWidth - 1,
              "only a sequence's first range may read the ring, for that range writes it");
constexpr int64_t kWorkPerElement = 6;  // W multiply-adds, exp, a division

// Tokens [begin, end) of one sequence, counted from the call's first.
struct TokenRange {
  int32_t sequence;
  int64_t begin;
  int64_t end;
};

// Each non-padding sequence cut at multiples of kTokensPerTask.
std::vector<TokenRange> CutIntoRanges(const PackedBatch& batch) {
  std::vector<TokenRange> ranges;
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    const int64_t length = batch.length(i);
    for (int64_t begin = 0; begin < length; begin += kTokensPerTask) {
      ranges.push_back({i, begin, std::min(length, begin + kTokensPerTask)});
    }
  }
  return ranges;
}

// Where each group of consecutive ranges starts, and the end; a group has about kTokensPerTask tokens, so that a decode
// batch of one-token sequences does not pay for its weights token by token.
std::vector<size_t> GroupRanges(const std::vector<TokenRange>& ranges) {
  std::vector<size_t> starts;
  int64_t tokens = kTokensPerTask;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (tokens >= kTokensPerTask / 4) {
      starts.push_back(i);
      tokens = 0;
    }
    tokens += ranges[i].end - ranges[i].begin;
  }
  starts.push_back(ranges.size());
  return starts;
}

}  // namespace

HWY_EXPORT(ConvolveRange);

absl::Status CausalConv1dCpu(const CausalConv1dParams& params, ThreadPool& pool) {
  const LayerDims& dims = params.pool.layout.dims();
  const int32_t width = dims.conv_width;
  const int64_t channels = dims.conv_channels();
  ZeroPaddingRows(params.batch, channels, params.y);
  const std::vector<TokenRange> ranges = CutIntoRanges(params.batch);
  if (ranges.empty()) return absl::OkStatus();
  const std::vector<size_t> groups = GroupRanges(ranges);
  const int64_t blocks = (channels + kChannelsPerTask - 1) / kChannelsPerTask;
  const int64_t tasks = static_cast<int64_t>(groups.size() - 1) * blocks;
  ParallelForWork(pool, params.batch.tokens() * channels * kWorkPerElement, tasks, [&](int64_t task, int) {
    const int64_t channel = task % blocks * kChannelsPerTask;
    const int64_t count = std::min(kChannelsPerTask, channels - channel);
    alignas(64) float taps[kMaxConvWidth * kChannelsPerTask];
    for (int32_t w = 0; w < width; ++w) {
      for (int64_t c = 0; c < count; ++c) taps[w * count + c] = params.weight[(channel + c) * width + w];
    }
    for (size_t i = groups[task / blocks]; i < groups[task / blocks + 1]; ++i) {
      const TokenRange& range = ranges[i];
      HWY_DYNAMIC_DISPATCH(ConvolveRange)(params, range.sequence, range.begin, range.end, channel, count, taps);
    }
  });
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
