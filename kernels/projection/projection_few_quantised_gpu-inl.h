// y = x W^T for few rows and quantised weights on the GPU: decode.
//
// Order of a sum: projection_args.h, over the weights' float32 values.
// Threads: as in projection_few_rows_gpu.hip a team of 16 or 8 lanes computes a group of features for its tile's
// outputs, and the block's teams take neighbouring groups. Here memory has the lanes' 16 bytes side by side
// (packed_weights_gpu.h), so a lane loads its own outputs' weights to registers and decodes them there; of LDS there is
// only x, of a stage of features, which all lanes of a team read at once, and the groups' sums, which are added in the
// groups' order when all teams are through with a group each. The row tile is the fastest grid index.
// Resources: up to 33 KB of LDS for eight rows, 11 KB for one; no barrier of the block within a group. One row: bound
// by memory, at three to five instructions a weight.
#pragma once

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/packed_weights_gpu-inl.h"
#include "kernels/projection/projection_args.h"

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
  static constexpr int kQuads = kFeatures / 4;
  static constexpr int kXLoads = (kRows * kQuads + kTeamLanes - 1) / kTeamLanes;
  // LDS: x of the teams, the gap so that teams of a wave read different banks; and the sums of a round. For few rows
  // these have two places of their own, so that one barrier a round is enough; for more they take that of x.
  static constexpr int kXFloats = kRows * kFeatures + 4;
  static constexpr int kResults = kRows * kOutputs;
  static constexpr int kRoundSums = kTeams * kResults;
  static constexpr bool kSumsApart = kRows <= 2;
  static constexpr int kSumsAt = kSumsApart ? kTeams * kXFloats : 0;
  static constexpr int kFloats = kSumsApart ? kSumsAt + 2 * kRoundSums : kTeams * kXFloats;
  static_assert(kResults <= kThreads && kGroupStages * kFeatures == kGroupFeatures && kRoundSums <= kFloats);

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

template <typename T, bool kVector>
__device__ __forceinline__ void ProjectQuantised(const ProjectionArgs& p, const ProjectionMatrix& m,
                                                 int32_t first_output, int64_t first_row, typename T::Shared& s) {
  const int mine = static_cast<int>(threadIdx.x);
  const int team = mine / T::kTeamLanes;
  const int lane = mine % T::kTeamLanes;
  const int x_at = team * T::kXFloats;
  const XRows x_from(p, first_row);
  const PackedMatrix matrix{static_cast<const char*>(m.weight), m.fp8_scales, m.outputs};
  PackedRow weights[T::kLaneOutputs];
#pragma unroll
  for (int o = 0; o < T::kLaneOutputs; ++o) {
    const int32_t output = first_output + lane + o * T::kTeamLanes;
    weights[o] = PackedRowOf<T::kFormat>(matrix, output < m.outputs ? output : m.outputs - 1, p.features);
  }
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  float total = 0.0f;  // of the tile's result number `mine`
  for (int32_t round = 0; round * T::kTeams < groups; ++round) {
    const int32_t first_feature = (round * T::kTeams + team) * kGroupFeatures;
    float sum[T::kRows][T::kLaneOutputs];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) sum[r][o] = 0.0f;
    }
#pragma unroll 1
    for (int stage = 0; stage < T::kGroupStages; ++stage) {
      const int32_t feature = first_feature + stage * T::kFeatures;
      StageOfX<T, kVector> x;
      x.Load(x_from, lane, feature);
      PackedBlock<T::kFormat> blocks[T::kLaneOutputs][T::kBlocks];
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) {
#pragma unroll
        for (int b = 0; b < T::kBlocks; ++b) {
          blocks[o][b] = LoadBlock<T::kFormat>(weights[o], feature / 32 + b, p.features);
        }
      }
      WaveBarrier();
      x.Store(x_from, lane, s, x_at);
      WaveBarrier();
      MultiplyStage<T>(blocks, s, x_at, sum);
    }
    const int sums_at = T::kSumsAt + (T::kSumsApart ? round % 2 * T::kRoundSums : 0);
    if constexpr (!T::kSumsApart) SyncThreads();
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) {
        s.floats[sums_at + (team * T::kRows + r) * T::kOutputs + lane + o * T::kTeamLanes] = sum[r][o];
      }
    }
    SyncThreads();
    // The sum of a group past the last is zero, and changes no sum that began at zero.
    if (mine < T::kResults) {
#pragma unroll
      for (int t = 0; t < T::kTeams; ++t) total += s.floats[sums_at + t * T::kResults + mine];
    }
    if constexpr (!T::kSumsApart) SyncThreads();
  }
  const int64_t row = first_row + mine / T::kOutputs;
  const int32_t output = first_output + mine % T::kOutputs;
  if (mine < T::kResults && row < p.rows && output < m.outputs) {
    StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total);
  }
}

// Blocks that a processor is to hold.
template <typename T>
inline constexpr int kQuantisedBlocks = T::kRows == 1   ? 4
                                        : T::kRows == 2 ? 3
                                                        : 2;

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

// Which part of the places for blocks tiles of T use, in whole rounds.
template <typename T>
double PartUsed(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const int64_t places = int64_t{stream.processors} * kQuantisedBlocks<T>;
  const int64_t blocks = MakeProjectionArgs(params, T::kOutputs).output_tiles;
  return static_cast<double>(blocks) / static_cast<double>(places * CeilDivide(blocks, places));
}

// Teams of eight lanes take half the outputs, where that leaves much fewer places idle; each block reads x anew.
template <WeightFormat kFormat, int kRows>
absl::Status LaunchQuantisedRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  using Wide = QuantisedTile<kFormat, 16, kRows>;
  using Narrow = QuantisedTile<kFormat, 8, kRows>;
  if (PartUsed<Narrow>(params, stream) > 1.2 * PartUsed<Wide>(params, stream)) {
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
