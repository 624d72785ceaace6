// y = x W^T for so many rows that tiles alone fill the device: prefill, on waves of 32.
//
// Order of a sum: projection_args.h.
// Threads: a team of four waves has a tile of kTileRows x kTileOutputs results, 8 x 8 a thread. Both operands lie in
// LDS with the feature as the slow index, kDepth features at a time in two buffers: one is filled while the other is
// read, and a barrier of the block ends the step. One team a block keeps the group's sums and the totals in
// registers; where that leaves a multiprocessor with four waves, two teams a block take neighbouring groups, and
// exchange halves of their sums through LDS after each.
// Resources: 26 KB of LDS; 8 waves of up to 255 registers a multiprocessor. A gfx906 would hold one wave a SIMD, so
// there projection_tiles_gpu.hip serves all rows. Bound by FMAs.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/thread_tile-inl.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kTeamThreads = 128;
constexpr int kTileRows = 128;
constexpr int kTileOutputs = 64;
constexpr int kThreadRows = 8;
constexpr int kXStride = kTileRows + 4;
constexpr int kWStride = kTileOutputs + 4;

// kTeams teams of a block take neighbouring groups of features of the same tile.
template <int kTeams>
struct Steps {
  static constexpr int kThreads = kTeams * kTeamThreads;
  static constexpr int kDepth = 16 / kTeams;
  static constexpr int kBuffer = kDepth * (kXStride + kWStride);
  // Loads a thread makes for a step, of 4 values of x and of 8 weights; of the latter not all threads have one.
  static constexpr int kXLoads = kTileRows * kDepth / 4 / kTeamThreads;
  static constexpr int kWVectors = kTileOutputs * kDepth / kWeightVector;
  static_assert(kWVectors <= kTeamThreads);
  struct Shared {
    LdsArray<float, kTeams * 2 * kBuffer> floats;  // x, then w, of each buffer of each team
  };
};

// A thread's share of a step, between memory and LDS.
template <typename Weights, int kTeams, bool kWideX>
class Step {
 public:
  using S = Steps<kTeams>;

  __device__ __forceinline__ Step(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                  int32_t first_output)
      : x_from_(p, first_row) {
    const int32_t output = first_output + Thread() / kVectors;
    weights_ = static_cast<const typename Weights::Element*>(m.weight) +
               int64_t{output < m.outputs ? output : m.outputs - 1} * p.features + Thread() % kVectors * kWeightVector;
  }

  __device__ __forceinline__ void Load(int32_t feature) {
#pragma unroll
    for (int i = 0; i < S::kXLoads; ++i) {
      x_[i] = x_from_.template Load<true, kWideX>(Thread() / kQuads + i * (kTeamThreads / kQuads),
                                                  feature + Thread() % kQuads * 4);
    }
    if (Thread() < S::kWVectors) {
      w_ = LoadEight<Weights, true>(weights_ + feature,
                                    x_from_.features - feature - Thread() % kVectors * kWeightVector);
    }
  }

  __device__ __forceinline__ void Store(typename S::Shared& s, int buffer) const {
#pragma unroll
    for (int i = 0; i < S::kXLoads; ++i) {
      const int at = buffer + Thread() % kQuads * 4 * kXStride + Thread() / kQuads + i * (kTeamThreads / kQuads);
      const Vec4 wide = x_from_.template Widen<kWideX>(x_[i]);
      s.floats[at] = wide.x;
      s.floats[at + kXStride] = wide.y;
      s.floats[at + 2 * kXStride] = wide.z;
      s.floats[at + 3 * kXStride] = wide.w;
    }
    if (Thread() < S::kWVectors) {
      const int at =
          buffer + S::kDepth * kXStride + Thread() % kVectors * kWeightVector * kWStride + Thread() / kVectors;
      float wide[kWeightVector];
      Weights::Widen(w_, wide);
#pragma unroll
      for (int j = 0; j < kWeightVector; ++j) s.floats[at + j * kWStride] = wide[j];
    }
  }

 private:
  static constexpr int kQuads = S::kDepth / 4;
  static constexpr int kVectors = S::kDepth / kWeightVector;
  __device__ __forceinline__ static int Thread() { return static_cast<int>(threadIdx.x) % kTeamThreads; }

  const XRows x_from_;
  const typename Weights::Element* weights_;
  Vec4 x_[S::kXLoads];
  typename Weights::Raw w_;
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

template <typename Weights, int kTeams, bool kWideX>
__global__ __launch_bounds__(Steps<kTeams>::kThreads, 2 / kTeams) void GemmKernel(ProjectionArgs p) {
  using S = Steps<kTeams>;
  auto& s = SharedMemory<typename S::Shared>();
  // Row tiles are the fastest index: those that run together read the same weights.
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  const int64_t first_row = int64_t{row_tile} * kTileRows;
  const int32_t first_output = (tile - m.first_tile) * kTileOutputs;

  // Four groups of 32 threads, 2 x 2 of 64 rows x 32 outputs; in each, 8 x 4 threads. A thread's rows are two times
  // four neighbours, its outputs likewise.
  const int thread = static_cast<int>(threadIdx.x) % kTeamThreads;
  const int team = static_cast<int>(threadIdx.x) / kTeamThreads;
  const int row = thread / 64 * 64 + thread % 8 * 4;              // and row + 32
  const int column = thread / 32 % 2 * 32 + thread % 32 / 8 * 4;  // and column + 16
  const int buffers = team * 2 * S::kBuffer;

  Step<Weights, kTeams, kWideX> step(p, m, first_row, first_output);
  step.Load(team * kGroupFeatures);
  float total[kThreadRows / kTeams][kThreadOutputs];
  SetZero(total);
  for (int32_t round = 0; round < p.features; round += kTeams * kGroupFeatures) {
    const int32_t group = round + team * kGroupFeatures;
    float sum[kThreadRows][kThreadOutputs];
    SetZero(sum);
    int buffer = buffers;
    step.Store(s, buffer);
    SyncThreads();
#pragma unroll 1
    for (int32_t depth = 0; depth < kGroupFeatures; depth += S::kDepth) {
      const bool last = depth + S::kDepth == kGroupFeatures;
      step.Load(group + (last ? kTeams * kGroupFeatures : depth + S::kDepth));
      const int x_at = buffer + row;
      const int w_at = buffer + S::kDepth * kXStride + column;
#pragma unroll
      for (int d = 0; d < S::kDepth; ++d) {
        const Vec4 w0 = s.floats.Load4(w_at + d * kWStride);
        const Vec4 w1 = s.floats.Load4(w_at + d * kWStride + 16);
#pragma unroll
        for (int i = 0; i < kThreadRows; i += 4) {
          AddOuters(sum, i, s.floats.Load4(x_at + d * kXStride + i * 8), w0, w1);
        }
      }
      if (last) continue;
      buffer = 2 * buffers + S::kBuffer - buffer;
      step.Store(s, buffer);
      SyncThreads();
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

template <int kTeams, bool kWideX>
absl::Status LaunchTeams(absl::Span<const ProjectionParams> params, const Stream& stream) {
  ProjectionArgs args = MakeProjectionArgs(params, kTileOutputs);
  args.row_tiles = static_cast<int32_t>(CeilDivide(args.rows, kTileRows));
  return WithWeights(params[0].weight.dtype, [&](auto weights) {
    return Launch("projection_gemm", GemmKernel<decltype(weights), kTeams, kWideX>,
                  {int64_t{args.row_tiles} * args.output_tiles}, Steps<kTeams>::kThreads, stream, args);
  });
}

template <int kTeams>
absl::Status LaunchX(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return params[0].x.dtype == DType::kF32 ? LaunchTeams<kTeams, true>(params, stream)
                                          : LaunchTeams<kTeams, false>(params, stream);
}

int64_t Blocks(absl::Span<const ProjectionParams> params) {
  return MakeProjectionArgs(params, kTileOutputs).output_tiles * CeilDivide(params[0].rows, kTileRows);
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
      return Blocks(params) <= stream.processors ? LaunchX<2>(params, stream) : LaunchX<1>(params, stream);
    } else {
      return LaunchTiles(params, stream);
    }
  });
}

}  // namespace gdn::gpu
