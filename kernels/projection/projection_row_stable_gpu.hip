// y = x W^T for few rows on the GPU, each output's sum in one order: decode.
//
// Order of a sum: features are cut into chunks of kChunk = 8 * kLanes; lane l of an output's kLanes takes the eight
// features 8 l .. 8 l + 7 of each chunk, sums their products one after the other, and adds that to its running total,
// chunk by chunk; then the lanes' butterfly. Nothing else (rows in the call, outputs a thread, wave, grid, dtype) has
// a part in it.
// Threads: kLanes share kOutputs neighbouring outputs and kRows rows, so that a weight is read once for kRows rows
// and a value of x, from LDS, is used kOutputs times. The row tile is the fastest grid index: tiles that want the
// same weights run at about the same time and find them in the L2 cache.
// Resources: 16 KB of LDS for x, [kRows][kTileFeatures]. A chunk lies there as its lanes' first halves, then their
// second halves, so that the lanes' 16-byte reads are side by side. Bound by memory up to about 8 rows.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/gpu/wave.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 16;
constexpr int kGroups = kThreads / kLanes;
constexpr int kChunk = kLanes * kWeightVector;
constexpr int kLdsFloats = 4096;

struct Shared {
  LdsArray<float, kLdsFloats> x;
};

// Chunks whose weights are on their way at a time.
template <int kRows, int kOutputs>
inline constexpr int kStageChunks = kRows <= 2 ? 8 / kOutputs : 4 / kOutputs;

// Features [base, base + kTileFeatures) of the block's rows into LDS, zeros beyond x's end.
template <int kRows>
__device__ __forceinline__ void StageRows(const ProjectionArgs& p, int64_t first_row, int32_t base, Shared& s) {
  constexpr int kTileFeatures = kLdsFloats / kRows;
  constexpr int kVectors = kTileFeatures / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kThreads) {
    const int row = i / kVectors;
    const int in_tile = i % kVectors * 4;
    const int32_t f = base + in_tile;
    const int32_t count = first_row + row < p.rows ? p.features - f : 0;
    const Vec4 raw = LoadRaw4(p.x, p.x_dtype, (first_row + row) * p.x_stride + f, count, p.x_vector);
    const Vec4 x = WidenRaw4(raw, p.x_dtype);
    const int in_chunk = in_tile % kChunk;
    const int place = (in_tile - in_chunk) + in_chunk / 4 % 2 * (kChunk / 2) + in_chunk / 8 * 4;
    s.x.Store4(row * kTileFeatures + place, x);
  }
}

// The sum of eight products, first to last.
__device__ __forceinline__ float DotEight(const float (&w)[kWeightVector], const Vec4& low, const Vec4& high) {
  float sum = w[0] * low.x;
  sum = fmaf(w[1], low.y, sum);
  sum = fmaf(w[2], low.z, sum);
  sum = fmaf(w[3], low.w, sum);
  sum = fmaf(w[4], high.x, sum);
  sum = fmaf(w[5], high.y, sum);
  sum = fmaf(w[6], high.z, sum);
  return fmaf(w[7], high.w, sum);
}

template <typename Weights, bool kVector, int kOutputs, int kChunks>
__device__ __forceinline__ void LoadStage(const typename Weights::Element* const (&rows)[kOutputs], int32_t feature,
                                          int32_t features, typename Weights::Raw (&raw)[kChunks][kOutputs]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int32_t f = feature + c * kChunk;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) raw[c][o] = LoadEight<Weights, kVector>(rows[o] + f, features - f);
  }
}

template <typename Weights, bool kVector, int kWave, int kRows, int kOutputs>
__device__ __forceinline__ void Project(const ProjectionArgs& p, const ProjectionMatrix& m, int32_t output_tile,
                                        int64_t first_row, Shared& s) {
  using Raw = typename Weights::Raw;
  constexpr int kTileFeatures = kLdsFloats / kRows;
  constexpr int kChunks = kStageChunks<kRows, kOutputs>;
  constexpr int kStageFeatures = kChunks * kChunk;
  static_assert(kTileFeatures % kStageFeatures == 0);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int32_t first_output = (output_tile * kGroups + group) * kOutputs;

  // Outputs past the end read the last row's weights and are not written: every lane reaches every barrier and
  // reduction.
  const typename Weights::Element* rows[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int32_t output = first_output + o < m.outputs ? first_output + o : m.outputs - 1;
    rows[o] = static_cast<const typename Weights::Element*>(m.weight) + int64_t{output} * p.features;
  }
  float total[kRows][kOutputs];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) total[r][o] = 0.0f;
  }

  // The next stage's loads are on their way while this one's are used; float32 has no registers for that.
  constexpr bool kAhead = sizeof(Raw) == sizeof(Vec4);
  Raw next[kChunks][kOutputs];
  if constexpr (kAhead) LoadStage<Weights, kVector>(rows, lane * kWeightVector, p.features, next);
  for (int32_t base = 0; base < p.features; base += kTileFeatures) {
    if (base > 0) SyncThreads();
    StageRows<kRows>(p, first_row, base, s);
    SyncThreads();
    const int32_t tile_end = base + kTileFeatures < p.features ? base + kTileFeatures : p.features;
    for (int32_t stage = base; stage < tile_end; stage += kStageFeatures) {
      if constexpr (!kAhead) LoadStage<Weights, kVector>(rows, stage + lane * kWeightVector, p.features, next);
      Raw now[kChunks][kOutputs];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) now[c][o] = next[c][o];
      }
      if constexpr (kAhead) {
        LoadStage<Weights, kVector>(rows, stage + kStageFeatures + lane * kWeightVector, p.features, next);
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float w[kOutputs][kWeightVector];
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) Weights::Widen(now[c][o], w[o]);
        const int place = stage - base + c * kChunk + lane * 4;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const Vec4 low = s.x.Load4(r * kTileFeatures + place);
          const Vec4 high = s.x.Load4(r * kTileFeatures + place + kChunk / 2);
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) total[r][o] += DotEight(w[o], low, high);
        }
      }
    }
  }

  // The lanes of a group write its sums, one each.
#pragma unroll
  for (int first = 0; first < kRows * kOutputs; first += kLanes) {
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if (first + i >= kRows * kOutputs) break;
      const float sum = GroupSum<kLanes, kWave>(total[(first + i) / kOutputs][(first + i) % kOutputs]);
      if (lane == i) mine = sum;
    }
    const int64_t row = first_row + (first + lane) / kOutputs;
    const int32_t output = first_output + (first + lane) % kOutputs;
    if (first + lane < kRows * kOutputs && row < p.rows && output < m.outputs) {
      StoreElement(m.y, m.y_dtype, row * m.y_stride + output, mine);
    }
  }
}

template <int kWave, int kRows, int kOutputs, bool kVector>
__global__ __launch_bounds__(kThreads) void RowStableKernel(ProjectionArgs p) {
  Shared& s = SharedMemory<Shared>();
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  const int64_t first_row = int64_t{row_tile} * kRows;
  if (m.dtype == DType::kBF16) {
    Project<Bf16Weights, kVector, kWave, kRows, kOutputs>(p, m, tile - m.first_tile, first_row, s);
  } else if (m.dtype == DType::kF16) {
    Project<F16Weights, kVector, kWave, kRows, kOutputs>(p, m, tile - m.first_tile, first_row, s);
  } else {
    Project<F32Weights, kVector, kWave, kRows, kOutputs>(p, m, tile - m.first_tile, first_row, s);
  }
}

template <int kRows, int kOutputs, bool kVector>
absl::Status LaunchTiles(absl::Span<const ProjectionParams> params, const Stream& stream) {
  ProjectionArgs args = MakeProjectionArgs(params, kGroups * kOutputs);
  args.row_tiles = static_cast<int32_t>(CeilDivide(args.rows, kRows));
  return WithWaveWidth(stream, "projection", [&](auto wave) {
    return Launch("projection", RowStableKernel<wave(), kRows, kOutputs, kVector>,
                  {int64_t{args.row_tiles} * args.output_tiles}, kThreads, stream, args);
  });
}

// Blocks of a launch with kRows rows and kOutputs outputs a thread.
int64_t Blocks(absl::Span<const ProjectionParams> params, int rows, int outputs) {
  int64_t blocks = 0;
  for (const ProjectionParams& p : params) blocks += CeilDivide(p.weight.rows, int64_t{kGroups} * outputs);
  return blocks * CeilDivide(params[0].rows, rows);
}

// The most outputs a thread that leave no processor short of blocks.
template <int kRows>
absl::Status LaunchRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  if (2 * Blocks(params, kRows, 4) >= 3 * int64_t{stream.processors}) {
    return LaunchTiles<kRows, 4, true>(params, stream);
  }
  if constexpr (kRows <= 2) {
    if (Blocks(params, kRows, 2) < 2 * int64_t{stream.processors}) return LaunchTiles<kRows, 1, true>(params, stream);
  }
  return LaunchTiles<kRows, 2, true>(params, stream);
}

}  // namespace

absl::Status LaunchRowStable(absl::Span<const ProjectionParams> params, const Stream& stream) {
  if (!WeightsAllowVectors(params)) return LaunchTiles<4, 2, false>(params, stream);
  const int64_t rows = params[0].rows;
  if (rows == 1) return LaunchRows<1>(params, stream);
  if (rows == 2) return LaunchRows<2>(params, stream);
  // Twice the blocks, which read the weights from the L2 cache the second time.
  const bool few_blocks = Blocks(params, 8, 2) < 2 * int64_t{stream.processors};
  if (rows <= 4 || few_blocks) return LaunchRows<4>(params, stream);
  return LaunchRows<8>(params, stream);
}

}  // namespace gdn::gpu
