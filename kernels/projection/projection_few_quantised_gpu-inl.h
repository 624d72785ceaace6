// y = x W^T for few rows and quantised weights on the GPU: decode.
//
// Order of a sum: projection_args.h, over the weights' float32 values.
// Threads: as in projection_few_rows_gpu.hip a team of 16 or 8 lanes computes a group of features for its tile's
// outputs, and the block's teams take neighbouring groups. Here memory has the lanes' 16 bytes side by side
// (packed_weights_gpu.h), so a lane loads its own outputs' weights to registers and decodes them there; of LDS there is
// only x, of a stage of features, which all lanes of a team read at once, and the groups' sums, which are added in the
// groups' order when all teams are through with a group each. The row tile is the fastest grid index.
// Resources: up to 33 KB of LDS for eight rows, 21 KB for one; no barrier of the block within a group. One row: bound
// by memory, at three to five instructions a weight.
#pragma once

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/packed_weights_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/thread_tile-inl.h"

namespace gdn::gpu {

template <WeightFormat kFormatOfWeights, int kLanesOfTeam, int kRowsOfTile>
struct QuantisedTile {
  static constexpr WeightFormat kFormat = kFormatOfWeights;
  static constexpr int kThreads = 256;
  static constexpr int kTeamLanes = kLanesOfTeam;
  static constexpr int kTeams = kThreads / kTeamLanes;
  static constexpr int kRows = kRowsOfTile;
  // With many rows each value of x that is read from LDS serves two outputs.
  static constexpr int kLaneOutputs = kRows <= 2 ? 1 : 2;
  static constexpr int kOutputs = kTeamLanes * kLaneOutputs;
  // A stage: neighbouring features of each output, as many blocks of 32 as registers allow.
  static constexpr int kBlocks = kRows <= 2 ? 2 : 1;
  static constexpr int kFeatures = 32 * kBlocks;
  static constexpr int kGroupStages = kGroupFeatures / kFeatures;
  // Groups that a team loads before it multiplies the first: of one row's weights, more are to be on their way.
  static constexpr int kAtOnce = kRows == 1 ? 2 : 1;
  static constexpr int kRoundGroups = kTeams * kAtOnce;
  static constexpr int kQuads = kFeatures / 4;
  static constexpr int kXLoads = (kRows * kQuads + kTeamLanes - 1) / kTeamLanes;
  // LDS: x of the teams, the gap so that teams of a wave read different banks; and the sums of a round. For few rows
  // these have two places of their own, so that one barrier a round is enough; for more they take that of x.
  static constexpr int kXFloats = kAtOnce * kRows * kFeatures + 4;
  static constexpr int kResults = kRows * kOutputs;
  static constexpr int kRoundSums = kRoundGroups * kResults;
  static constexpr bool kSumsApart = kRows <= 2;
  static constexpr int kSumsAt = kSumsApart ? kTeams * kXFloats : 0;
  static constexpr int kFloats = kSumsApart ? kSumsAt + 2 * kRoundSums : kTeams * kXFloats;
  static_assert(kResults <= kThreads && kGroupStages * kFeatures == kGroupFeatures && kRoundSums <= kFloats);
  static_assert(kAtOnce == 1 || kGroupStages == 1);

  struct Shared {
    LdsArray<float, kFloats> floats;
  };
};

// Moves x of a stage from memory to the team's LDS.
template <typename T, bool kVector>
struct StageOfX {
  Vec4 raw[T::kXLoads];

  __device__ __forceinline__ void Load(const XRows& from, int lane, int32_t feature) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int index = lane + i * T::kTeamLanes;
      if (index >= T::kRows * T::kQuads) break;
      raw[i] = from.Load<kVector>(index / T::kQuads, feature + index % T::kQuads * 4);
    }
  }
  __device__ __forceinline__ void Store(const XRows& from, int lane, typename T::Shared& s, int at) const {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int index = lane + i * T::kTeamLanes;
      if (index >= T::kRows * T::kQuads) break;
      s.floats.Store4(at + index * 4, from.Widen(raw[i]));
    }
  }
};

// sum[r][o] += the stage's products, in order.
template <typename T>
__device__ __forceinline__ void MultiplyStage(const PackedBlock<T::kFormat> (&blocks)[T::kLaneOutputs][T::kBlocks],
                                              typename T::Shared& s, int x_at,
                                              float (&sum)[T::kRows][T::kLaneOutputs]) {
#pragma unroll
  for (int eight = 0; eight < T::kFeatures / 8; ++eight) {
    float w[T::kLaneOutputs][8];
#pragma unroll
    for (int o = 0; o < T::kLaneOutputs; ++o) blocks[o][eight / 4].Decode(eight % 4, w[o]);
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      float x[8];
      Unpack4(s.floats.Load4(x_at + r * T::kFeatures + eight * 8), x);
      Unpack4(s.floats.Load4(x_at + r * T::kFeatures + eight * 8 + 4), x + 4);
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[r][o] = fmaf(x[i], w[o][i], sum[r][o]);
      }
    }
  }
}

// A block's work on its tile of outputs and rows.
template <typename T, bool kVector>
class QuantisedProjection {
 public:
  __device__ __forceinline__ QuantisedProjection(const ProjectionArgs& p, const ProjectionMatrix& m,
                                                 int32_t first_output, int64_t first_row, typename T::Shared& s)
      : team_(static_cast<int>(threadIdx.x) / T::kTeamLanes),
        lane_(static_cast<int>(threadIdx.x) % T::kTeamLanes),
        x_at_(team_ * T::kXFloats),
        x_from_(p, first_row),
        s_(s) {
    const PackedRowBytes bytes = PackedRowBytesOf(T::kFormat, p.features);
    const PackedMatrix matrix{static_cast<const char*>(m.weight), m.fp8_scales, m.outputs};
#pragma unroll
    for (int o = 0; o < T::kLaneOutputs; ++o) {
      // The lanes' outputs are of one tile of the weights. Instead of those that do not exist, the last.
      const int32_t first = first_output + o * T::kTeamLanes;
      const int32_t last = m.outputs - 1;
      const int32_t tile = (first < last ? first : last) / kPackedRows;
      const int32_t output = first + lane_ < last ? first + lane_ : last;
      weights_[o] = PackedRowOf(matrix, bytes, tile, output, p.features);
    }
  }

  // The sums of groups first + team, first + kTeams + team, ... of this lane's outputs, kGroups of them a team, to LDS.
  template <int kGroups>
  __device__ __forceinline__ void SumGroups(int32_t first, int sums_at) const {
    float sum[kGroups][T::kRows][T::kLaneOutputs];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) SetZero(sum[g]);
#pragma unroll 1
    for (int stage = 0; stage < T::kGroupStages; ++stage) {
      StageOfX<T, kVector> x[kGroups];
      PackedBlock<T::kFormat> blocks[kGroups][T::kLaneOutputs][T::kBlocks];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) x[g].Load(x_from_, lane_, FirstFeature(first, g, stage));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int o = 0; o < T::kLaneOutputs; ++o) {
#pragma unroll
          for (int b = 0; b < T::kBlocks; ++b) {
            const int32_t block = FirstFeature(first, g, stage) / 32 + b;
            blocks[g][o][b] = LoadBlock<T::kFormat>(weights_[o], block, x_from_.features);
          }
        }
      }
      WaveBarrier();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) x[g].Store(x_from_, lane_, s_, XAt(g));
      WaveBarrier();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) MultiplyStage<T>(blocks[g], s_, XAt(g), sum[g]);
    }
    if constexpr (!T::kSumsApart) SyncThreads();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int at = sums_at + (g * T::kTeams + team_) * T::kResults + lane_;
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
        for (int o = 0; o < T::kLaneOutputs; ++o) s_.floats[at + r * T::kOutputs + o * T::kTeamLanes] = sum[g][r][o];
      }
    }
  }

 private:
  __device__ __forceinline__ int32_t FirstFeature(int32_t first, int g, int stage) const {
    return (first + g * T::kTeams + team_) * kGroupFeatures + stage * T::kFeatures;
  }
  __device__ __forceinline__ int XAt(int g) const { return x_at_ + g * T::kRows * T::kFeatures; }

  const int team_, lane_, x_at_;
  const XRows x_from_;
  PackedRow weights_[T::kLaneOutputs];
  typename T::Shared& s_;
};

// total += the sums of `kGroups` groups, in order.
template <typename T, int kGroups>
__device__ __forceinline__ void AddSums(typename T::Shared& s, int sums_at, float& total) {
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= T::kResults) return;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) total += s.floats[sums_at + g * T::kResults + mine];
}

template <typename T, bool kVector>
__device__ __forceinline__ void ProjectQuantised(const ProjectionArgs& p, const ProjectionMatrix& m,
                                                 int32_t first_output, int64_t first_row, typename T::Shared& s) {
  const QuantisedProjection<T, kVector> projection(p, m, first_output, first_row, s);
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  float total = 0.0f;  // of the tile's result number threadIdx.x
  int sums_at = T::kSumsAt;
  // The sum of a group past the last is zero, or a NaN with a weight of the row that is none, and changes no sum that
  // began at zero.
  for (int32_t first = 0; first < groups; first += T::kRoundGroups) {
    if (T::kAtOnce > 1 && groups - first > T::kTeams) {
      projection.template SumGroups<T::kAtOnce>(first, sums_at);
      SyncThreads();
      AddSums<T, T::kRoundGroups>(s, sums_at, total);
    } else {
      projection.template SumGroups<1>(first, sums_at);
      SyncThreads();
      AddSums<T, T::kTeams>(s, sums_at, total);
    }
    if constexpr (T::kSumsApart) {
      sums_at = 2 * T::kSumsAt + T::kRoundSums - sums_at;  // the other place
    } else {
      SyncThreads();
    }
  }
  const int mine = static_cast<int>(threadIdx.x);
  const int64_t row = first_row + mine / T::kOutputs;
  const int32_t output = first_output + mine % T::kOutputs;
  if (mine < T::kResults && row < p.rows && output < m.outputs) {
    StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total);
  }
}

// Blocks that a processor is to hold. Teams of eight lanes load twice as much of x, and would spill at four.
template <typename T>
inline constexpr int kQuantisedBlocks = T::kRows > 2                           ? 2
                                        : T::kRows == 1 && T::kTeamLanes == 16 ? 4
                                                                               : 3;

template <typename T, int kWave, bool kVector>
__global__ __launch_bounds__(T::kThreads,
                             kWave == 32 ? kQuantisedBlocks<T> : 1) void FewQuantisedKernel(ProjectionArgs p) {
  auto& s = SharedMemory<typename T::Shared>();
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  const int64_t first_row = int64_t{row_tile} * T::kRows;
  const int32_t first_output = (tile - m.first_tile) * T::kOutputs;
  ProjectQuantised<T, kVector>(p, m, first_output, first_row, s);
}

template <typename T, bool kVector>
absl::Status LaunchQuantisedTile(absl::Span<const ProjectionParams> params, const Stream& stream) {
  ProjectionArgs args = MakeProjectionArgs(params, T::kOutputs);
  args.row_tiles = static_cast<int32_t>(CeilDivide(args.rows, T::kRows));
  return WithWaveWidth(stream, "projection_few_quantised", [&](auto wave) {
    return Launch("projection_few_quantised", FewQuantisedKernel<T, wave(), kVector>,
                  {int64_t{args.row_tiles} * args.output_tiles}, T::kThreads, stream, args);
  });
}

// Which part of the places for blocks tiles of T use, in whole rounds. A compute unit of waves of 64 is as busy as its
// blocks are many, so its places are the units.
template <typename T>
double PartUsed(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const int64_t places = int64_t{stream.processors} * (stream.wave_width == 32 ? kQuantisedBlocks<T> : 1);
  const int64_t blocks = MakeProjectionArgs(params, T::kOutputs).output_tiles;
  return static_cast<double>(blocks) / static_cast<double>(places * CeilDivide(blocks, places));
}

// Teams of eight lanes take half the outputs, where that leaves much fewer places idle; each block reads x anew.
template <WeightFormat kFormat, int kRows>
absl::Status LaunchQuantisedRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  using Wide = QuantisedTile<kFormat, 16, kRows>;
  using Narrow = QuantisedTile<kFormat, 8, kRows>;
  if (PartUsed<Narrow>(params, stream) > 1.15 * PartUsed<Wide>(params, stream)) {
    return LaunchQuantisedTile<Narrow, true>(params, stream);
  }
  return LaunchQuantisedTile<Wide, true>(params, stream);
}

// For one to kFewRows rows. `params` are of kFormat.
template <WeightFormat kFormat>
absl::Status LaunchFewQuantisedRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  if (!AllowsVectors(params)) return LaunchQuantisedTile<QuantisedTile<kFormat, 16, 4>, false>(params, stream);
  const int64_t rows = params[0].rows;
  if (rows == 1) return LaunchQuantisedRows<kFormat, 1>(params, stream);
  if (rows == 2) return LaunchQuantisedRows<kFormat, 2>(params, stream);
  if (rows <= 4) return LaunchQuantisedRows<kFormat, 4>(params, stream);
  return LaunchQuantisedRows<kFormat, 8>(params, stream);
}

}  // namespace gdn::gpu
