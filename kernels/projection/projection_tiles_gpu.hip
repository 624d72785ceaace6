// y = x W^T for more rows than a few, on the GPU: decode in large batches, prefill.
//
// Order of a sum: projection_args.h.
// Threads: eight waves a block, all on one tile, of which a lane has 16 to 96 results: whatever leaves the fewest
// processors idle.
// Waves take neighbouring groups of features, each through LDS of its own, kDepth features at a time and without a
// barrier of the block: the features are split, so that few rows fill the device too. Both operands lie in LDS with the
// feature as the slow index, so that a lane reads its values 16 bytes at a time. When all waves are through with a
// group each, their sums are added in the groups' order.
// Resources: up to 34 KB of LDS; 64 sums a lane and at most 128 registers. Bound by FMAs.

#include <algorithm>
#include <type_traits>

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/half_operand_gpu-inl.h"
#include "kernels/projection/operand_tile_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/quantised_operand_gpu-inl.h"
#include "kernels/projection/thread_tile-inl.h"
#include "kernels/projection/wave_sums_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kBlockWaves = 8;

// A wave's tile: kLanesDown of its kWaveLanes lanes down, kRowsOfLane x kOutputsOfLane results each; and what it has of
// LDS.
template <int kWaveLanes, int kLanesDown, int kRowsOfLane, int kOutputsOfLane>
struct Tile {
  static constexpr int kWave = kWaveLanes;
  static constexpr int kWaves = kBlockWaves;
  static constexpr int kLaneRows = kLanesDown;
  static constexpr int kThreadRows = kRowsOfLane;
  static constexpr int kThreadOutputs = kOutputsOfLane;
  static constexpr int kThreads = kWaves * kWave;
  static constexpr int kRows = kLaneRows * kThreadRows;
  static constexpr int kSpan = kWave / kLaneRows * 4;  // of the lanes' first four outputs
  static constexpr int kOutputs = kSpan * (kThreadOutputs / 4);
  // So many features at once as registers and LDS allow.
  static constexpr int kResults = kThreadRows * kThreadOutputs;  // of a lane
  using Operands =
      OperandTile<kWave, kRows, kOutputs, /*depth=*/kResults == 16 || (kWave == 32 && kResults == 64) ? 16 : 8>;
  // The exchange of the waves' sums takes kExchangeRows of a thread's rows at a time.
  static constexpr int kExchangeRows = 2;
  static constexpr int kExchange = kExchangeRows * kLaneRows * kOutputs;
  static constexpr int kExchangeResults = kExchange / kThreads;  // a thread's
  static_assert(kExchangeResults * kThreads == kExchange);
  using Lds = LdsArray<float, kWaves*(Operands::kFloats > kExchange ? Operands::kFloats : kExchange)>;
  struct Shared {
    Lds floats;
  };

  // Where an exchanged row of lanes has an output: lanes that store at once are of different rows and banks.
  __device__ __forceinline__ static int ExchangeAt(int lane_row, int output) { return output ^ (lane_row * 8 % 32); }
};

// Which mover brings a tile its operands, and the bytes of a weight in it: of those that memory has, or two.
struct FloatOperands {
  static constexpr bool kPairs = false;
  template <typename T>
  using Operands = typename T::Operands;
};
template <typename Weights, bool kVector, DType kX>
struct PlainOperands : FloatOperands {
  template <typename T>
  using Mover = OperandMover<Weights, kVector, kX, T>;
  static constexpr int kWeightBytes = sizeof(typename Weights::Element);
};
template <bool kVector, DType kX>
struct QuantisedOperands : FloatOperands {
  template <typename T>
  using Mover = QuantisedMover<kVector, kX, T>;
  static constexpr int kWeightBytes = 2;
};
// Of pairs of fp16 numbers: LDS has words of two features in place of floats. Registers hold no more than four words of
// each output beside 64 sums and the scales of x.
template <bool kVector>
struct HalfOperands {
  static constexpr bool kPairs = true;
  template <typename T>
  using Operands = HalfOperandTile<T::kWave, T::kRows, T::kOutputs, T::kResults == 64 ? 4 : T::Operands::kDepth>;
  template <typename T>
  using Mover = HalfMover<kVector, T>;
  static constexpr int kWeightBytes = 2;
};

template <typename From, typename T>
__device__ __forceinline__ void Multiply(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                         int32_t first_output, typename T::Shared& s) {
  constexpr int kLaneRows = T::kLaneRows;
  const int thread = static_cast<int>(threadIdx.x);
  const int wave = OfWave(thread / T::kWave);
  // A lane's rows are four neighbours in each 4 kLaneRows rows, its outputs four in each kSpan.
  const LanePlace place = PlaceOfLane<kLaneRows>(thread % T::kWave);
  const int lane_row = place.row;
  const int lane_column = place.column * 4;
  using Operands = typename From::template Operands<T>;
  constexpr int kStepFeatures = From::kPairs ? 2 * Operands::kDepth : Operands::kDepth;
  const int at = wave * Operands::kFloats;
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  const auto first_feature = [wave](int32_t round) { return (round * kBlockWaves + wave) * kGroupFeatures; };

  typename From::template Mover<Operands> mover(p, m, thread % T::kWave, first_row, first_output);
  mover.Load(first_feature(0));
  WaveSums<T, From::kPairs> total;
  for (int32_t round = 0; round * kBlockWaves < groups; ++round) {
    float sum[T::kThreadRows][T::kThreadOutputs];
    SetZero(sum);
#pragma unroll 1
    for (int depth = 0; depth < kGroupFeatures; depth += kStepFeatures) {
      const int next = depth + kStepFeatures;
      WaveBarrier();
      mover.Store(s.floats, at);
      WaveBarrier();
      mover.Load(next < kGroupFeatures ? first_feature(round) + next : first_feature(round + 1));
      WaveBarrier();  // nvcc would move the loads down to where they are needed
      MultiplyStep<Operands, 4 * kLaneRows, T::kSpan, From::kPairs>(s.floats, at, lane_row * 4, lane_column, sum);
    }
    if constexpr (From::kPairs) {
#pragma unroll
      for (int i = 0; i < T::kThreadRows; i += 4) {
        float inverses[4];
        Unpack4(mover.LoadInverses(first_feature(round), lane_row * 4 + i * kLaneRows), inverses);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (float& result : sum[i + r]) result *= inverses[r];
        }
      }
      if (round * kBlockWaves + wave >= groups) SetZero(sum);
    }
    total.Add(s.floats, wave, lane_row, lane_column, sum);
  }
  total.Store(p, m, first_row, first_output);
}

// Blocks that a multiprocessor's registers are to hold.
template <typename From, typename T>
inline constexpr int kResidentBlocks = T::kWave == 32 &&
                                               (T::kResults == 16 || (T::kResults == 32 && From::kWeightBytes == 2))
                                           ? 2
                                           : 1;

template <typename From, typename T>
__global__ __launch_bounds__(T::kThreads, (kResidentBlocks<From, T>)) void TilesKernel(ProjectionArgs p) {
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
  Multiply<From, T>(p, m, first_row, first_output, s);
}

// Weights as memory has them, or QuantisedWeights.
template <typename Weights, typename T, bool kVector>
absl::Status LaunchTilesOf(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const ProjectionArgs args = MakeProjectionArgs(params, T::kRows, T::kOutputs);
  const auto launch = [&](const char* name, auto from) {
    return Launch(name, TilesKernel<decltype(from), T>, {args.tiles()}, T::kThreads, stream, args);
  };
  if constexpr (std::is_same_v<Weights, QuantisedWeights>) {
    if (params[0].x.dtype == DType::kF32) {
      return launch("projection_tiles_quantised", QuantisedOperands<kVector, DType::kF32>());
    }
    return launch("projection_tiles_quantised", QuantisedOperands<kVector, DType::kBF16>());
  } else if constexpr (kScaled<Weights>) {  // of narrower x the products are of fp16 numbers
    return launch("projection_tiles", PlainOperands<Weights, kVector, DType::kF32>());
  } else {
    return WithXDType(params[0].x.dtype,
                      [&](auto x) { return launch("projection_tiles", PlainOperands<Weights, kVector, x()>()); });
  }
}

// How long tiles of T take, in results of a processor at the full rate: whole rounds of blocks, and what reading LDS
// for fewer results a lane costs, as measured on waves of 32 and as docs/evidence/mi50-model.md has it on waves of 64.
template <typename T>
int64_t CostOf(absl::Span<const ProjectionParams> params, const Stream& stream) {
  constexpr bool kWide = T::kWave == 64;
  constexpr int kPercent = T::kResults == 16   ? (kWide ? 60 : 50)
                           : T::kResults == 32 ? (kWide ? 90 : 70)
                           : T::kResults == 64 ? 95
                                               : 100;
  const int64_t blocks = OutputTiles(params, T::kOutputs) * CeilDivide(params[0].rows, T::kRows);
  return CeilDivide(blocks, stream.processors) * T::kRows * T::kOutputs * 100 / kPercent;
}

// Calls launch(T()) for the cheapest of tiles, and returns its result.
template <typename First, typename... Others, typename Function>
absl::Status WithCheapest(absl::Span<const ProjectionParams> params, const Stream& stream, const Function& launch) {
  const int64_t least = std::min({CostOf<First>(params, stream), CostOf<Others>(params, stream)...});
  absl::Status status;
  const auto takes = [&](auto tile) {
    if (CostOf<decltype(tile)>(params, stream) > least) return false;
    status = launch(tile);
    return true;
  };
  (void)(takes(First()) || ... || takes(Others()));
  return status;
}

template <typename Weights, typename... Tiles>
absl::Status LaunchCheapest(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return WithCheapest<Tiles...>(
      params, stream, [&](auto tile) { return LaunchTilesOf<Weights, decltype(tile), true>(params, stream); });
}

}  // namespace

absl::Status LaunchHalfTiles(absl::Span<const ProjectionParams> params, const RoundedRows& x, const Stream& stream) {
  return WithWaveWidth(stream, "projection_half_tiles", [&](auto wave) {
    constexpr int kWave = wave();
    using Small = Tile<kWave, 8, 4, 8>;
    const auto launch = [&](auto tile, auto vector) {
      using T = decltype(tile);
      ProjectionArgs args = MakeProjectionArgs(params, T::kRows, T::kOutputs);
      args.halves = x;
      return Launch("projection_half_tiles", TilesKernel<HalfOperands<vector()>, T>, {args.tiles()}, T::kThreads,
                    stream, args);
    };
    if (!AllowsVectors(params)) return launch(Small(), std::false_type());
    return WithCheapest<Tile<kWave, 8, 8, 8>, Small, Tile<kWave, 4, 4, 4>>(
        params, stream, [&](auto tile) { return launch(tile, std::true_type()); });
  });
}

absl::Status LaunchTiles(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return WithAnyWeights(params[0].weight, [&](auto weights) {
    return WithWaveWidth(stream, "projection_tiles", [&](auto wave) {
      using Weights = decltype(weights);
      constexpr int kWave = wave();
      using Small = Tile<kWave, 8, 4, 8>;
      if (!AllowsVectors(params)) return LaunchTilesOf<Weights, Small, false>(params, stream);
      if constexpr (kWave == 32) {
        return LaunchCheapest<Weights, Tile<32, 8, 8, 8>, Tile<32, 4, 8, 12>, Tile<32, 4, 8, 8>, Small,
                              Tile<32, 4, 4, 4>>(params, stream);
      } else if constexpr (std::is_same_v<Weights, QuantisedWeights>) {  // nor for 64 beside the decoding
        return LaunchCheapest<Weights, Small, Tile<kWave, 4, 4, 4>>(params, stream);
      } else {  // two waves a SIMD have no registers for 96 sums
        return LaunchCheapest<Weights, Tile<kWave, 8, 8, 8>, Tile<kWave, 4, 8, 8>, Small, Tile<kWave, 4, 4, 4>>(params,
                                                                                                                stream);
      }
    });
  });
}

}  // namespace gdn::gpu
