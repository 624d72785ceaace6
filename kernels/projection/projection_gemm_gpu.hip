// y = x W^T for so many rows that tiles alone fill the device: prefill, on waves of 32.
//
// Order of a sum: projection_args.h.
// Threads: a team of four waves has a tile of kTileRows x kTileOutputs results, 8 x 8 a thread. Both operands lie in
// LDS with the feature as the slow index, kDepth features at a time in two buffers: one is filled while the other is
// read, and a barrier of the block ends the step. One team a block keeps the group's sums and the totals in
// registers; where that leaves a multiprocessor with four waves, two teams a block take neighbouring groups, and
// exchange halves of their sums through LDS after each.
// Resources: 24 KB of LDS a team, in two buffers; 8 waves of up to 255 registers a multiprocessor. A gfx906 would hold
// one wave a SIMD, so there projection_tiles_gpu.hip serves all rows. Bound by FMAs.

#include <type_traits>

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/operand_tile_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/quantised_operand_gpu-inl.h"
#include "kernels/projection/thread_tile-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kTeamThreads = 128;
constexpr int kTileRows = 128;
constexpr int kTileOutputs = 64;
constexpr int kThreadRows = 8;
constexpr int kThreadOutputs = 8;
using Operands = OperandTile<kTeamThreads, kTileRows, kTileOutputs, /*depth=*/16>;

// kTeams teams of a block take neighbouring groups of features of the same tile.
template <int kTeams>
struct Shared {
  LdsArray<float, kTeams * 2 * Operands::kFloats> floats;  // two buffers a team
};

// Of one team: it has the results to itself.
template <typename Lds>
__device__ __forceinline__ void AddTo(float (&total)[kThreadRows][kThreadOutputs],
                                      const float (&sum)[kThreadRows][kThreadOutputs], bool, Lds&) {
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadOutputs; ++j) total[i][j] += sum[i][j];
  }
}

// Of two: the first keeps the totals of the first half of a thread's rows, the second the other half's. `both`: the
// second team's group exists.
template <typename Lds>
__device__ __forceinline__ void AddTo(float (&total)[kThreadRows / 2][kThreadOutputs],
                                      const float (&sum)[kThreadRows][kThreadOutputs], bool both, Lds& lds) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool first = thread < kTeamThreads;
  const int partner = first ? thread + kTeamThreads : thread - kTeamThreads;
  constexpr int kAtOnce = 2;
  static_assert(sizeof(Lds) >= kAtOnce * kThreadOutputs * 2 * kTeamThreads * sizeof(float));
#pragma unroll
  for (int row = 0; row < kThreadRows / 2; row += kAtOnce) {
    SyncThreads();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadOutputs; ++j) {
        const float given = first ? sum[kThreadRows / 2 + row + i][j] : sum[row + i][j];
        lds[(i * kThreadOutputs + j) * 2 * kTeamThreads + thread] = given;
      }
    }
    SyncThreads();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadOutputs; ++j) {
        const float taken = lds[(i * kThreadOutputs + j) * 2 * kTeamThreads + partner];
        const float own = first ? sum[row + i][j] : sum[kThreadRows / 2 + row + i][j];
        total[row + i][j] += first ? own : taken;
        if (both) total[row + i][j] += first ? taken : own;
      }
    }
  }
  SyncThreads();
}

template <typename Mover, int kTeams>
__global__ __launch_bounds__(kTeams* kTeamThreads, 2 / kTeams) void GemmKernel(ProjectionArgs p) {
  using T = Operands;
  auto& s = SharedMemory<Shared<kTeams>>();
  // Row tiles are the fastest index: those that run together read the same weights.
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  const ProjectionMatrix m = MatrixOfTile(p, tile);
  const int64_t first_row = int64_t{row_tile} * kTileRows;
  const int32_t first_output = (tile - m.first_tile) * kTileOutputs;

  // Four waves, 2 x 2 of 64 rows x 32 outputs; in each, 8 x 4 lanes. A thread's rows are two times four neighbours, its
  // outputs likewise.
  const int thread = static_cast<int>(threadIdx.x) % kTeamThreads;
  const int team = static_cast<int>(threadIdx.x) / kTeamThreads;
  const LanePlace place = PlaceOfLane<8>(thread % 32);
  const int row = thread / 64 * 64 + place.row * 4;            // and row + 32
  const int column = thread / 32 % 2 * 32 + place.column * 4;  // and column + 16
  const int buffers = team * 2 * T::kFloats;

  Mover mover(p, m, thread, first_row, first_output);
  mover.Load(team * kGroupFeatures);
  float total[kThreadRows / kTeams][kThreadOutputs];
  SetZero(total);
  int buffer = buffers;
  for (int32_t round = 0; round < p.features; round += kTeams * kGroupFeatures) {
    const int32_t group = round + team * kGroupFeatures;
    float sum[kThreadRows][kThreadOutputs];
    SetZero(sum);
#pragma unroll 1
    for (int32_t depth = 0; depth < kGroupFeatures; depth += T::kDepth) {
      const int32_t next = depth + T::kDepth;
      mover.Store(s.floats, buffer);
      SyncThreads();
      mover.Load(group + (next < kGroupFeatures ? next : kTeams * kGroupFeatures));
      // nvcc would move the loads down to where they are needed; with one team that does no harm, and gives it freedom.
      if constexpr (kTeams > 1) WaveBarrier();
      MultiplyStep<T, 32, 16>(s.floats, buffer, row, column, sum);
      buffer = 2 * buffers + T::kFloats - buffer;
    }
    AddTo(total, sum, round + kGroupFeatures < p.features, s.floats);
  }
#pragma unroll
  for (int i = 0; i < kThreadRows / kTeams; ++i) {
    const int64_t y_row = first_row + row + (team * kThreadRows / kTeams + i) / 4 * 32 + i % 4;
    if (y_row >= p.rows) continue;
#pragma unroll
    for (int j = 0; j < kThreadOutputs; ++j) {
      const int32_t output = first_output + column + j / 4 * 16 + j % 4;
      if (output < m.outputs) StoreElement(m.y, m.y_dtype, y_row * m.y_stride + output, total[i][j]);
    }
  }
}

template <int kTeams>
absl::Status LaunchTeams(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const ProjectionArgs args = MakeProjectionArgs(params, kTileRows, kTileOutputs);
  const auto launch = [&](const char* name, void (*kernel)(ProjectionArgs)) {
    return Launch(name, kernel, {args.tiles()}, kTeams * kTeamThreads, stream, args);
  };
  return WithAnyWeights(params[0].weight, [&](auto weights) {
    using Weights = decltype(weights);
    if constexpr (std::is_same_v<Weights, QuantisedWeights>) {
      constexpr char kName[] = "projection_gemm_quantised";
      if (params[0].x.dtype == DType::kF32) {
        return launch(kName, GemmKernel<QuantisedMover<AnyFormat, true, DType::kF32, Operands>, kTeams>);
      }
      return launch(kName, GemmKernel<QuantisedMover<AnyFormat, true, DType::kBF16, Operands>, kTeams>);
    } else if constexpr (kScaled<Weights>) {  // of narrower x the products are of fp16 numbers
      return launch("projection_gemm", GemmKernel<OperandMover<Weights, true, DType::kF32, Operands>, kTeams>);
    } else {
      return WithXDType(params[0].x.dtype, [&](auto x) {
        return launch("projection_gemm", GemmKernel<OperandMover<Weights, true, x(), Operands>, kTeams>);
      });
    }
  });
}

int64_t Blocks(absl::Span<const ProjectionParams> params) {
  return OutputTiles(params, kTileOutputs) * CeilDivide(params[0].rows, kTileRows);
}

}  // namespace

bool GemmFillsDevice(absl::Span<const ProjectionParams> params, const Stream& stream) {
  if (stream.wave_width != 32 || !AllowsVectors(params)) return false;
  return params[0].rows > kTileRows / 2 && 4 * Blocks(params) >= 3 * int64_t{stream.processors};
}

absl::Status LaunchGemm(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return WithWaveWidth(stream, "projection_gemm", [&](auto wave) -> absl::Status {
    if constexpr (wave() == 32) {
      // One block a multiprocessor: two teams share its features.
      return Blocks(params) <= stream.processors ? LaunchTeams<2>(params, stream) : LaunchTeams<1>(params, stream);
    } else {
      return LaunchTiles(params, /*totals=*/nullptr, stream);
    }
  });
}

}  // namespace gdn::gpu
