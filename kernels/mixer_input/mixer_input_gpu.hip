// From the in-projections to the delta rule in one launch: split, causal conv1d + SiLU, l2norm of q and k, both gates.
//
// Threads: a block has one task, by blockIdx.x, for the tiles of tokens in y and the sequences in z:
//   heads   a q or k head per kHeadLanes lanes: convolve, sum the squares over the lanes, scale
//   values  four channels of v a thread: convolve
//   z       four elements a thread: copy (from projections only)
//   gates   a (token, value head) a thread; a (value head, key channel) where the decay is by channel
// Before a decode of one token a sequence, a block's heads are two key heads' q and k; it finds the gates too, and what
// the decode takes from the logs: their keys are on their way while it convolves.
// Bits are the separate operators': the functions are theirs. The ring's columns: conv_channels-inl.h. Resources:
// registers only; heads beyond kRegisterHeadDim, widths other than 4 and odd sizes go through memory. Bound by launch
// latency for one token, by memory for many.

#include <cstdint>

#include "base/status_macros.h"
#include "kernels/causal_conv1d/conv_channels-inl.h"
#include "kernels/gpu/gate_math.h"
#include "kernels/gpu/launch.h"
#include "kernels/mixer_input/mixer_input.h"
#include "kernels/mixer_input/mixer_records_gpu-inl.h"
#include "kernels/qk_l2norm/head_norm-inl.h"
#include "kernels/qkvz_split/qkvz_index-inl.h"

namespace gdn {
namespace gpu {
namespace {

struct MixedChannel {
  QkvzIndex at;
  __device__ __forceinline__ int32_t operator()(int32_t channel) const { return at.Mixed(channel); }
};

// This block's tokens of sequence `i`: body(begin, end) for each tile, counted from the call's first.
template <typename Body>
__device__ __forceinline__ void ForEachTile(const ConvGeometry& g, int32_t i, const Body& body) {
  const int32_t length = g.batch.cu_seqlens[i + 1] - g.batch.cu_seqlens[i];
  const int32_t step = static_cast<int32_t>(gridDim.y) * g.tile_tokens;
  for (int32_t begin = static_cast<int32_t>(blockIdx.y) * g.tile_tokens; begin < length; begin += step) {
    body(begin, begin + g.tile_tokens < length ? begin + g.tile_tokens : length);
  }
}

// One head of q or k, kept in registers. Every lane of the block takes part in the sums.
template <int kWave>
__device__ __forceinline__ void HeadInRegisters(const MixerArgs& p, int32_t head, bool valid, int lane, float* out,
                                                float scale) {
  const ConvGeometry& g = p.geometry;
  const int32_t e = 4 * lane;
  const int32_t channel = head * p.at.key_dim + e;
  const int64_t out_stride = p.at.KeyFeatures();
  const bool mine = valid && e < p.at.key_dim;
  ConvWindow4 window;
  if (mine) window.LoadTaps(p.weight + int64_t{channel} * 4);
  const float* x = p.x + p.at.Mixed(head * p.at.key_dim) + e;
  for (int32_t i = static_cast<int32_t>(blockIdx.z); i < g.batch.sequences; i += static_cast<int32_t>(gridDim.z)) {
    const ConvSequence s = SequenceAt(g, i, x, p.x_stride, channel);
    const bool live = s.live && mine;
    float* rows = out + int64_t{g.batch.cu_seqlens[i]} * out_stride;
    ForEachTile(g, i, [&](int32_t begin, int32_t end) {
      Vec4 next;
      if (live) {
        next = Load4(TokenInput(s, begin));
        window.LoadHistory(s, begin);
      }
      for (int32_t t = begin; t < end; ++t) {
        Vec4 y{0.0f, 0.0f, 0.0f, 0.0f};
        if (live) {
          const Vec4 now = next;
          next = Load4(TokenInput(s, t + 1 < end ? t + 1 : t));
          y = window.Step(now);
        }
        const float factor = L2NormFactor(HeadSum<kWave>(AddSquares(0.0, y)), scale);
        if (mine) Store4(rows + t * out_stride + e, Scale4(y, factor));
      }
      if (begin == 0 && live) AdvanceRing<true>(s, 0);
    });
  }
}

// body(e) for the elements of a head that are this lane's. Trip counts are the block's.
template <typename Body>
__device__ __forceinline__ void ForEachElement(int32_t dim, bool valid, int lane, const Body& body) {
#pragma unroll 1
  for (int32_t first = 0; first < dim; first += 4 * kHeadLanes) {
#pragma unroll 1
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t e = first + 4 * lane + j;
      if (valid && e < dim) body(e);
    }
  }
}

// One head of any size and width; what is not yet scaled waits in the output.
template <int kWave>
__device__ __forceinline__ void HeadThroughMemory(const MixerArgs& p, int32_t head, bool valid, int lane, float* out,
                                                  float scale) {
  const ConvGeometry& g = p.geometry;
  const int32_t dim = p.at.key_dim;
  const float* x = p.x + p.at.Mixed(head * dim);
  for (int32_t i = static_cast<int32_t>(blockIdx.z); i < g.batch.sequences; i += static_cast<int32_t>(gridDim.z)) {
    const ConvSequence s = SequenceAt(g, i, x, p.x_stride, head * dim);
    float* rows = out + int64_t{g.batch.cu_seqlens[i]} * p.at.KeyFeatures();
    ForEachTile(g, i, [&](int32_t begin, int32_t end) {
#pragma unroll 1
      for (int32_t t = begin; t < end; ++t) {
        float* row = rows + int64_t{t} * p.at.KeyFeatures();
        double sum = 0.0;
        ForEachElement(dim, valid, lane, [&](int32_t e) {
          const float y = s.live ? ConvolveToken(s, e, p.weight + int64_t{head * dim + e} * g.width, g.width, t) : 0.0f;
          row[e] = y;
          sum = AddSquare(sum, y);
        });
        const float factor = L2NormFactor(HeadSum<kWave>(sum), scale);
        ForEachElement(dim, valid, lane, [&](int32_t e) { row[e] = row[e] * factor; });
      }
      if (begin != 0 || !s.live) return;
      ForEachElement(dim, valid, lane, [&](int32_t e) { AdvanceRing<false>(s, e); });
    });
  }
}

// Elements [element, element + 4) of z.
template <bool kVector>
__device__ __forceinline__ void CopyZ(const MixerArgs& p, int32_t element) {
  const ConvGeometry& g = p.geometry;
  const int32_t features = p.at.ValueFeatures();
  const int32_t last = element + 4 < features ? element + 4 : features;
  for (int32_t i = static_cast<int32_t>(blockIdx.z); i < g.batch.sequences; i += static_cast<int32_t>(gridDim.z)) {
    ForEachTile(g, i, [&](int32_t begin, int32_t end) {
      for (int32_t t = begin; t < end; ++t) {
        const int64_t row = int64_t{g.batch.cu_seqlens[i]} + t;
        const float* from = p.x + row * p.x_stride;
        float* to = p.z + row * features;
        if constexpr (kVector) {
          Store4(to + element, Load4(from + p.at.Z(element)));
        } else {
#pragma unroll 1
          for (int32_t e = element; e < last; ++e) to[e] = from[p.at.Z(e)];
        }
      }
    });
  }
}

__device__ __forceinline__ void Gates(const MixerArgs& p) {
  const ConvGeometry& g = p.geometry;
  const int32_t heads = p.at.value_heads;
  for (int32_t i = static_cast<int32_t>(blockIdx.z); i < g.batch.sequences; i += static_cast<int32_t>(gridDim.z)) {
    ForEachTile(g, i, [&](int32_t begin, int32_t end) {
      const int32_t count = (end - begin) * heads;
#pragma unroll 1
      for (int32_t j = static_cast<int32_t>(threadIdx.x); j < count; j += kMixerThreads) {
        const int32_t head = j % heads;
        const int64_t row = int64_t{g.batch.cu_seqlens[i]} + begin + j / heads;
        StoreGates(p, row, head, GatesOf(p, row, head));
      }
    });
  }
}

// The gates of any kind and of any number a head: `block` of p.gate_blocks.
__device__ __forceinline__ void FeatureGates(const MixerArgs& p, int32_t block) {
  const ConvGeometry& g = p.geometry;
  const int32_t heads = p.at.value_heads;
  const int32_t features = heads * p.decay_dim;
  const int32_t feature = block * kMixerThreads + static_cast<int32_t>(threadIdx.x);
  if (feature >= features) return;
  const int32_t head = feature / p.decay_dim;
  const bool first = feature == head * p.decay_dim;  // of its head: it has beta
  const int32_t a_at = p.projected ? p.at.A(head) : feature;
  const int32_t b_at = p.projected ? p.at.B(head) : head;
  const int32_t a_stride = p.projected ? 2 * heads : features;
  const int32_t b_stride = p.projected ? 2 * heads : heads;
  const float a_log = p.a_log[head];
  const float dt_bias = p.dt_bias[feature];
  for (int32_t i = static_cast<int32_t>(blockIdx.z); i < g.batch.sequences; i += static_cast<int32_t>(gridDim.z)) {
    ForEachTile(g, i, [&](int32_t begin, int32_t end) {
      for (int32_t t = begin; t < end; ++t) {
        const int64_t row = int64_t{g.batch.cu_seqlens[i]} + t;
        const float a = p.a[row * a_stride + a_at];
        p.g[row * features + feature] = p.bounded ? BoundedLogDecay(a, a_log, dt_bias, p.negative_exp, p.lower_bound)
                                                  : LogDecay(a, a_log, dt_bias, p.negative_exp);
        if (first) p.beta[row * heads + head] = p.beta_scale * Sigmoid(p.b[row * b_stride + b_at]);
      }
    });
  }
}

enum class Heads { kInMemory, kInRegisters, kWithRecords };

// kFeatureGates: gates by FeatureGates, of which no records are made here.
template <int kWave, bool kVector, Heads kHeads, bool kFeatureGates>
__device__ __forceinline__ void MixerBlock(const MixerArgs& p) {
  const int thread = static_cast<int>(threadIdx.x);
  int32_t block = static_cast<int32_t>(blockIdx.x);
  if (block < p.head_blocks) {
    if constexpr (kHeads == Heads::kWithRecords) return HeadsAndRecords<kWave>(p, block * kRecordHeads);
    const int lane = thread % kHeadLanes;
    const int32_t index = block * kHeadsPerBlock + thread / kHeadLanes;  // q heads, then k heads
    const bool valid = index < 2 * p.at.key_heads;
    const int32_t head = valid ? index : 0;
    const bool is_query = head < p.at.key_heads;
    float* out = is_query ? p.q + head * p.at.key_dim : p.k + (head - p.at.key_heads) * p.at.key_dim;
    const float scale = is_query ? p.scale : 1.0f;
    if constexpr (kHeads == Heads::kInRegisters) {
      HeadInRegisters<kWave>(p, head, valid, lane, out, scale);
    } else {
      HeadThroughMemory<kWave>(p, head, valid, lane, out, scale);
    }
    return;
  }
  block -= p.head_blocks;
  if (block < p.value_blocks) {
    const int32_t channel = 2 * p.at.KeyFeatures() + block * kChannelsPerBlock + 4 * thread;
    if (channel >= p.geometry.channels) return;
    ConvolveChannels<kVector>(p.geometry, p.x, p.x_stride, MixedChannel{p.at}, p.weight, channel, p.convolved);
    return;
  }
  block -= p.value_blocks;
  if (block < p.z_blocks) {
    const int32_t element = block * kChannelsPerBlock + 4 * thread;
    if (element < p.at.ValueFeatures()) CopyZ<kVector>(p, element);
    return;
  }
  if constexpr (kFeatureGates) return FeatureGates(p, block - p.z_blocks);
  if constexpr (kHeads != Heads::kWithRecords) Gates(p);
}

template <int kWave, bool kVector, Heads kHeads>
__global__ __launch_bounds__(kMixerThreads) void MixerInputKernel(MixerArgs p) {
  BeginEarly();
  MixerBlock<kWave, kVector, kHeads, false>(p);
}
template <int kWave, bool kVector, Heads kHeads>
__global__ __launch_bounds__(kMixerThreads) void FeatureMixerInputKernel(MixerArgs p) {
  BeginEarly();
  MixerBlock<kWave, kVector, kHeads, true>(p);
}

}  // namespace
}  // namespace gpu

absl::Status MixerInputGpu(const MixerInputParams& params, const gpu::DeviceBatch& batch, const gpu::Stream& stream) {
  const LayerDims& dims = params.pool.layout.dims();
  gpu::MixerArgs args = gpu::MakeMixerArgs(params, batch);
  const bool vector = dims.conv_width == 4 && dims.key_dim % 4 == 0 && dims.value_dim % 4 == 0 &&
                      gpu::Aligned16(params.pool.data, args.x, args.weight, args.convolved, args.z, args.q, args.k);
  const bool in_registers = vector && dims.key_dim <= gpu::kRegisterHeadDim;
  // Dot products are those of the other ways to find records, which give a lane as few elements as hold K.
  const bool feature_gates = dims.decays_by_channel() || params.decay_gate != DecayGate::kSoftplus;
  const bool with_records = params.records != nullptr && !feature_gates && in_registers &&
                            dims.key_dim > gpu::kRegisterHeadDim / 2 &&
                            gpu::kRecordHeads * dims.group() <= gpu::kRecordGroups && batch.max_length <= 1;
  const int64_t gate_blocks = feature_gates ? args.gate_blocks : with_records ? 0 : 1;
  const int64_t blocks = int64_t{args.head_blocks} + args.value_blocks + args.z_blocks + gate_blocks;
  gpu::Grid grid = gpu::PlanConvTiles(blocks, stream, args.geometry);
  if (with_records) grid.z = batch.sequences;
  grid.early = true;
  GDN_RETURN_IF_ERROR(gpu::WithWaveWidth(stream, "mixer_input", [&](auto wave) {
    using gpu::Heads;
    if (feature_gates) {
      const auto kernel = in_registers ? gpu::FeatureMixerInputKernel<wave(), true, Heads::kInRegisters>
                          : vector     ? gpu::FeatureMixerInputKernel<wave(), true, Heads::kInMemory>
                                       : gpu::FeatureMixerInputKernel<wave(), false, Heads::kInMemory>;
      return gpu::Launch("mixer_input", kernel, grid, gpu::kMixerThreads, stream, args);
    }
    const auto kernel = with_records   ? gpu::MixerInputKernel<wave(), true, Heads::kWithRecords>
                        : in_registers ? gpu::MixerInputKernel<wave(), true, Heads::kInRegisters>
                        : vector       ? gpu::MixerInputKernel<wave(), true, Heads::kInMemory>
                                       : gpu::MixerInputKernel<wave(), false, Heads::kInMemory>;
    return gpu::Launch("mixer_input", kernel, grid, gpu::kMixerThreads, stream, args);
  }));
  if (params.records == nullptr || with_records) return absl::OkStatus();
  DeltaRuleParams rule;
  rule.pool = params.pool;
  rule.batch = params.batch;
  rule.q = params.q;
  rule.k = params.k;
  rule.g = params.g;
  rule.beta = params.beta;
  rule.q_stride = rule.k_stride = dims.key_features();
  return DecodeRecordsGpu(rule, batch, params.records, stream);
}

}  // namespace gdn
