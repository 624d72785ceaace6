// y = x W^T for more rows than a few, on the GPU: decode in large batches, prefill.
//
// Order of a sum: projection_args.h.
// Threads: eight waves a block, all on one tile of 8 kThreadRows rows and kWave outputs, kThreadRows x 8 of it a lane.
// Waves take neighbouring groups of features, each through LDS of its own, kDepth features at a time and without a
// barrier of the block: the features are split, so that few rows fill the device too. Both operands lie in LDS with the
// feature as the slow index, so that a lane reads its values 16 bytes at a time. When all waves are through with a
// group each, their sums are added in the groups' order.
// Resources: up to 34 KB of LDS; 64 sums a lane and at most 128 registers. Bound by FMAs.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/thread_tile-inl.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kWaves = 8;
constexpr int kDepth = kWeightVector;
constexpr int kLaneRows = 8;  // lanes of a wave, down its tile

// A wave of kWave lanes, and what it has of LDS.
template <int kWave, int kThreadRows>
struct Tile {
  static constexpr int kThreads = kWaves * kWave;
  static constexpr int kRows = kLaneRows * kThreadRows;
  static constexpr int kOutputs = kWave / kLaneRows * kThreadOutputs;
  static constexpr int kXStride = kRows + 4;
  static constexpr int kOperands = kDepth * (kXStride + kOutputs);
  // The exchange of the waves' sums takes kExchangeRows of a thread's rows at a time.
  static constexpr int kExchangeRows = 2;
  static constexpr int kExchange = kExchangeRows * kLaneRows * kOutputs;
  using Lds = LdsArray<float, kWaves*(kOperands > kExchange ? kOperands : kExchange)>;
  struct Shared {
    Lds floats;
  };
};

// A lane's share of kDepth features of both operands, between memory and LDS.
template <typename Weights, bool kVector, int kWave, int kThreadRows>
class Operands {
 public:
  using T = Tile<kWave, kThreadRows>;

  __device__ __forceinline__ Operands(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                      int32_t first_output)
      : x_from_(p, first_row) {
    const int32_t output = first_output + Lane();
    weights_ = static_cast<const typename Weights::Element*>(m.weight) +
               int64_t{output < m.outputs ? output : m.outputs - 1} * p.features;
  }

  // Features [feature, feature + kDepth); zeros past the last.
  __device__ __forceinline__ void Load(int32_t feature) {
    const int32_t f = feature + Lane() % 2 * 4;
#pragma unroll
    for (int i = 0; i < kXLoads; ++i) {
      const int32_t row = Lane() / 2 + i * kWave / 2;
      x_[i] = x_from_.Load<kVector>(row, f);
    }
    w_ = LoadEight<Weights, kVector>(weights_ + feature, x_from_.features - feature);
  }

  __device__ __forceinline__ void Store(typename T::Lds& lds, int x, int w) const {
#pragma unroll
    for (int i = 0; i < kXLoads; ++i) {
      const int at = x + Lane() % 2 * 4 * T::kXStride + Lane() / 2 + i * kWave / 2;
      const Vec4 wide = x_from_.Widen(x_[i]);
      lds[at] = wide.x;
      lds[at + T::kXStride] = wide.y;
      lds[at + 2 * T::kXStride] = wide.z;
      lds[at + 3 * T::kXStride] = wide.w;
    }
    float wide[kWeightVector];
    Weights::Widen(w_, wide);
#pragma unroll
    for (int j = 0; j < kWeightVector; ++j) lds[w + j * T::kOutputs + Lane()] = wide[j];
  }

 private:
  static constexpr int kXLoads = T::kRows * kDepth / 4 / kWave;
  static_assert(T::kOutputs == kWave && kXLoads * 4 * kWave == T::kRows * kDepth);
  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x) % kWave; }

  const XRows x_from_;
  const typename Weights::Element* weights_;
  Vec4 x_[kXLoads];
  typename Weights::Raw w_;
};

template <typename Weights, bool kVector, int kWave, int kThreadRows>
__device__ __forceinline__ void Multiply(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                         int32_t first_output, typename Tile<kWave, kThreadRows>::Shared& s) {
  using T = Tile<kWave, kThreadRows>;
  const int thread = static_cast<int>(threadIdx.x);
  const int wave = thread / kWave;
  // A lane's rows are four neighbours in each 4 kLaneRows rows, its outputs four in each half of the tile's.
  const int lane_row = thread % kWave % kLaneRows;
  const int lane_column = thread % kWave / kLaneRows * 4;
  const int x_at = wave * T::kOperands;
  const int w_at = x_at + kDepth * T::kXStride;
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  const auto first_feature = [wave](int32_t round) { return (round * kWaves + wave) * kGroupFeatures; };

  Operands<Weights, kVector, kWave, kThreadRows> operands(p, m, first_row, first_output);
  operands.Load(first_feature(0));
  float total[kThreadRows];  // of row i kLaneRows + thread / kOutputs, output thread % kOutputs
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) total[i] = 0.0f;
  for (int32_t round = 0; round * kWaves < groups; ++round) {
    float sum[kThreadRows][kThreadOutputs];
    SetZero(sum);
#pragma unroll 1
    for (int depth = 0; depth < kGroupFeatures; depth += kDepth) {
      WaveBarrier();
      operands.Store(s.floats, x_at, w_at);
      WaveBarrier();
      operands.Load(depth + kDepth < kGroupFeatures ? first_feature(round) + depth + kDepth : first_feature(round + 1));
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const Vec4 w0 = s.floats.Load4(w_at + d * T::kOutputs + lane_column);
        const Vec4 w1 = s.floats.Load4(w_at + d * T::kOutputs + T::kOutputs / 2 + lane_column);
#pragma unroll
        for (int i = 0; i < kThreadRows; i += 4) {
          AddOuters(sum, i, s.floats.Load4(x_at + d * T::kXStride + i * kLaneRows + lane_row * 4), w0, w1);
        }
      }
    }
    const int32_t left = groups - round * kWaves;
#pragma unroll
    for (int first = 0; first < kThreadRows; first += T::kExchangeRows) {
      SyncThreads();
#pragma unroll
      for (int i = 0; i < T::kExchangeRows; ++i) {
        const float(&row)[kThreadOutputs] = sum[first + i];
        const int at = ((wave * T::kExchangeRows + i) * kLaneRows + lane_row) * T::kOutputs + lane_column;
        s.floats.Store4(at, {row[0], row[1], row[2], row[3]});
        s.floats.Store4(at + T::kOutputs / 2, {row[4], row[5], row[6], row[7]});
      }
      SyncThreads();
#pragma unroll
      for (int i = 0; i < T::kExchangeRows; ++i) {
#pragma unroll
        for (int w = 0; w < kWaves; ++w) {
          if (w < left) total[first + i] += s.floats[w * T::kExchange + i * T::kThreads + thread];
        }
      }
    }
    SyncThreads();
  }
  const int32_t output = first_output + thread % T::kOutputs;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const int64_t row = first_row + i / 4 * 4 * kLaneRows + thread / T::kOutputs * 4 + i % 4;
    if (row < p.rows && output < m.outputs) StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total[i]);
  }
}

template <typename Weights, int kWave, int kThreadRows, bool kVector>
__global__ __launch_bounds__(kWaves* kWave, kWave == 32 && sizeof(typename Weights::Element) == 2
                                                ? 2
                                                : 1) void TilesKernel(ProjectionArgs p) {
  using T = Tile<kWave, kThreadRows>;
  auto& s = SharedMemory<typename T::Shared>();
  // Row tiles are the fastest index: those that run together read the same weights.
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  const int64_t first_row = int64_t{row_tile} * T::kRows;
  const int32_t first_output = (tile - m.first_tile) * T::kOutputs;
  Multiply<Weights, kVector, kWave, kThreadRows>(p, m, first_row, first_output, s);
}

template <typename Weights, int kThreadRows, bool kVector>
absl::Status LaunchTilesOf(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return WithWaveWidth(stream, "projection_tiles", [&](auto wave) {
    using T = Tile<wave(), kThreadRows>;
    ProjectionArgs args = MakeProjectionArgs(params, T::kOutputs);
    args.row_tiles = static_cast<int32_t>(CeilDivide(args.rows, T::kRows));
    return Launch("projection_tiles", TilesKernel<Weights, wave(), kThreadRows, kVector>,
                  {int64_t{args.row_tiles} * args.output_tiles}, T::kThreads, stream, args);
  });
}

}  // namespace

absl::Status LaunchTiles(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return WithWeights(params[0].weight.dtype, [&](auto weights) {
    using Weights = decltype(weights);
    if (!AllowsVectors(params)) return LaunchTilesOf<Weights, 4, false>(params, stream);
    if (params[0].rows <= 4 * kLaneRows) return LaunchTilesOf<Weights, 4, true>(params, stream);
    return LaunchTilesOf<Weights, 8, true>(params, stream);
  });
}

}  // namespace gdn::gpu
