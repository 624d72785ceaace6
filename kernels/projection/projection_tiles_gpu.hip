// y = x W^T for more rows than a few, on the GPU: decode in large batches, prefill.
//
// Order of a sum: projection_args.h.
// Threads: eight waves a block, all on one tile, of which a lane has 16 to 96 results: whatever leaves the fewest
// processors idle.
// Waves take neighbouring groups of features, each through LDS of its own, kDepth features at a time and without a
// barrier of the block: the features are split, so that few rows fill the device too. Both operands lie in LDS with the
// feature as the slow index, so that a lane reads its values 16 bytes at a time. When all waves are through with a
// group each, their sums are added in the groups' order.
// Blocks share tiles where whole ones would leave processors idle: a block computes a round of groups of a tile, takes
// the sum of the rounds before from memory, and hands its own on. So the order of a sum is the same.
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

  // Where an exchanged row of lanes has an output: lanes that store at once are of different rows and banks.
  __device__ __forceinline__ static int ExchangeAt(int lane_row, int output) { return output ^ (lane_row * 8 % 32); }
};

// Which mover brings a tile its operands, and the bytes of a weight in it: of those that memory has, or two.
struct FloatOperands {
  static constexpr bool kPairs = false;
  static constexpr bool kBlocks = false;
  static constexpr bool kMayShare = false;
  template <typename T>
  using Operands = typename T::Operands;
};
template <typename Weights, bool kVector, DType kX>
struct PlainOperands : FloatOperands {
  template <typename T>
  using Mover = OperandMover<Weights, kVector, kX, T>;
  static constexpr bool kMayShare = kVector;
  static constexpr int kWeightBytes = sizeof(typename Weights::Element);
};
template <typename Formats, bool kVector, DType kX>
struct QuantisedOperands : FloatOperands {
  template <typename T>
  using Mover = QuantisedMover<Formats, kVector, kX, T>;
  static constexpr int kWeightBytes = 2;
};
// Of pairs of fp16 numbers: LDS has words of two features in place of floats. Registers hold no more than four words of
// each output beside 64 sums and the scales of x.
template <bool kVector>
struct HalfOperands {
  static constexpr bool kPairs = true;
  static constexpr bool kBlocks = false;
  static constexpr bool kMayShare = false;  // what a unit costs beside products is half of it
  template <typename T>
  using Operands = HalfOperandTile<T::kWave, T::kRows, T::kOutputs, T::kResults == 64 ? 4 : T::Operands::kDepth>;
  template <typename T>
  using Mover = HalfMover<kVector, T>;
  static constexpr int kWeightBytes = 2;
};

// The same of integer weights, whose products are summed by block.
template <WeightFormat kFormat>
struct HalfBlockOperands {
  static constexpr bool kPairs = true;
  static constexpr bool kBlocks = true;
  static constexpr bool kMayShare = false;
  template <typename T>
  using Operands = HalfBlockTile<kFormat, T::kWave, T::kRows, T::kOutputs>;
  template <typename T>
  using Mover = HalfBlockMover<T>;
  static constexpr int kWeightBytes = 2;
};

template <typename From, typename T>
struct Shared {
  static constexpr int kOperands = From::template Operands<T>::kFloats;
  LdsArray<float, T::kWaves * std::max(kOperands, T::kExchange)> floats;
};
template <typename From, typename T>
struct SharedOfUnits : Shared<From, T> {
  LdsArray<uint32_t, 2> numbers;
};

// A block's work at a time: rounds [first_round, end_round) of groups, of one tile.
template <typename T, bool kShares>
struct Unit {
  uint32_t tile;  // of all rows and matrices
  int32_t output_tile;
  int64_t first_row;
  int32_t first_round, end_round;

  // Tiles are the faster index, so that units that run together are of the same groups, and seldom wait for each other.
  // Row tiles are the fastest of all: those that run together read the same weights.
  __device__ __forceinline__ Unit(const ProjectionArgs& p, uint32_t number, int32_t rounds) {
    if constexpr (kShares) {
      const uint32_t part = p.by_tiles.Quotient(number);
      tile = number - part * p.by_tiles.divisor;
      first_round = static_cast<int32_t>(part);
      end_round = first_round + 1;
    } else {
      tile = number;
      first_round = 0;
      end_round = rounds;
    }
    const auto row_tiles = static_cast<uint32_t>(p.row_tiles);
    const uint32_t across = kShares ? p.by_row_tiles.Quotient(tile) : tile / row_tiles;
    output_tile = static_cast<int32_t>(across);
    first_row = int64_t{tile - across * row_tiles} * T::kRows;
  }
  // Field by field: the compiler would keep whole matrices in scratch memory.
  __device__ __forceinline__ ProjectionMatrix MatrixIn(const ProjectionArgs& p) const {
    ProjectionMatrix m = p.matrices[0];
#pragma unroll
    for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
      const bool is = output_tile >= p.matrices[i].first_tile;
      m.weight = is ? p.matrices[i].weight : m.weight;
      m.y = is ? p.matrices[i].y : m.y;
      m.y_stride = is ? p.matrices[i].y_stride : m.y_stride;
      m.outputs = is ? p.matrices[i].outputs : m.outputs;
      m.first_tile = is ? p.matrices[i].first_tile : m.first_tile;
      m.y_dtype = is ? p.matrices[i].y_dtype : m.y_dtype;
      m.scales = is ? p.matrices[i].scales : m.scales;
    }
    return m;
  }
  __device__ __forceinline__ int32_t FirstOutput(const ProjectionMatrix& m) const {
    return (output_tile - m.first_tile) * T::kOutputs;
  }
};

// The number of a block's unit, if it has one.
template <bool kShares>
class Numbers {
 public:
  template <typename Shared>
  __device__ __forceinline__ Numbers(const ProjectionArgs&, int32_t /*rounds*/, Shared&) {}
  __device__ __forceinline__ bool done() const { return false; }
  __device__ __forceinline__ uint32_t current() const { return blockIdx.x; }
  __device__ __forceinline__ bool has_next() const { return false; }
  __device__ __forceinline__ uint32_t next() const { return 0; }
  __device__ __forceinline__ void AskAhead() {}
  template <typename Shared>
  __device__ __forceinline__ void Advance(Shared&) {}
};

// Blocks that share tiles each take the lowest number that is left, one ahead. So a part that a unit waits for is of a
// block that runs already.
template <>
class Numbers<true> {
 public:
  // Ends with a barrier, as Advance does.
  template <typename Shared>
  __device__ __forceinline__ Numbers(const ProjectionArgs& p, int32_t rounds, Shared& s)
      : counter_(p.counters), count_(p.by_tiles.divisor * static_cast<uint32_t>(rounds)) {
    if (threadIdx.x == 0) {
      s.numbers[0] = Take();
      s.numbers[1] = Take();
    }
    SyncThreads();
    current_ = Uniform(s.numbers[0]);
    next_ = Uniform(s.numbers[1]);
  }
  __device__ __forceinline__ bool done() const { return current_ >= count_; }
  __device__ __forceinline__ uint32_t current() const { return current_; }
  __device__ __forceinline__ bool has_next() const { return next_ < count_; }
  __device__ __forceinline__ uint32_t next() const { return next_; }

  // Asks for the number after the next, which takes long to come.
  __device__ __forceinline__ void AskAhead() {
    if (threadIdx.x == 0) after_ = Take();
  }
  // Call after a barrier that follows the last call.
  template <typename Shared>
  __device__ __forceinline__ void Advance(Shared& s) {
    if (threadIdx.x == 0) s.numbers[0] = after_;
    SyncThreads();
    current_ = next_;
    next_ = Uniform(s.numbers[0]);
  }

 private:
  __device__ __forceinline__ static uint32_t Uniform(uint32_t number) {
    return static_cast<uint32_t>(OfWave(static_cast<int>(number)));
  }
  // The last number of all sets the counter back: each block takes two that are too high.
  __device__ __forceinline__ uint32_t Take() const {
    const uint32_t number = TakeNumber(counter_);
    if (number + 1 == count_ + 2 * gridDim.x) StoreForBlocks(counter_, 0);
    return number;
  }

  uint32_t* const counter_;
  const uint32_t count_;
  uint32_t current_, next_, after_ = 0;
};

template <typename From, typename T, bool kShares, typename Lds>
__device__ __forceinline__ void Multiply(const ProjectionArgs& p, Lds& s) {
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
  const int32_t rounds = (groups + kBlockWaves - 1) / kBlockWaves;
  const auto first_feature = [wave](int32_t round) { return (round * kBlockWaves + wave) * kGroupFeatures; };

  Numbers<kShares> numbers(p, rounds, s);
  if (numbers.done()) return;
  Unit<T, kShares> unit(p, numbers.current(), rounds);
  const ProjectionMatrix first_matrix = unit.MatrixIn(p);
  typename From::template Mover<Operands> mover(p, first_matrix, thread % T::kWave, unit.first_row,
                                                unit.FirstOutput(first_matrix));
  mover.Load(first_feature(unit.first_round));
#pragma unroll 1
  do {
    numbers.AskAhead();
    [[maybe_unused]] uint32_t seen = 0;  // rounds of the tile that are done
    if constexpr (kShares) {
      if (thread == 0) seen = PeekAt(p.counters + 1 + unit.tile);
    }
    WaveSums<T, From::kPairs && !From::kBlocks> total;
#pragma unroll 1
    for (int32_t round = unit.first_round; round < unit.end_round; ++round) {
      float sum[T::kThreadRows][T::kThreadOutputs];
      SetZero(sum);
#pragma unroll 1
      for (int depth = 0; depth < kGroupFeatures; depth += kStepFeatures) {
        const int next = depth + kStepFeatures;
        const int32_t next_group = kShares ? p.features : first_feature(round + 1);  // none: a unit has one round
        WaveBarrier();
        mover.Store(s.floats, at);
        WaveBarrier();
        mover.Load(next < kGroupFeatures ? first_feature(round) + next : next_group);
        WaveBarrier();  // nvcc would move the loads down to where they are needed
        if constexpr (From::kBlocks) {
          static_assert(kStepFeatures == kHalfBlock);
          float of_block[T::kThreadRows][T::kThreadOutputs];
          SetZero(of_block);
          MultiplyStep<Operands, 4 * kLaneRows, T::kSpan, true>(s.floats, at, lane_row * 4, lane_column, of_block);
          AddHalfBlock<Operands, 4 * kLaneRows, T::kSpan>(s.floats, at, lane_row * 4, lane_column, of_block, sum);
        } else {
          MultiplyStep<Operands, 4 * kLaneRows, T::kSpan, From::kPairs>(s.floats, at, lane_row * 4, lane_column, sum);
        }
      }
      if constexpr (kShares) {  // the next unit's operands are on their way meanwhile
        if (numbers.has_next()) {
          const Unit<T, kShares> ahead(p, numbers.next(), rounds);
          const ProjectionMatrix m = ahead.MatrixIn(p);
          mover.Aim(p, m, ahead.first_row, ahead.FirstOutput(m));
          FenceLoads();  // a load among these sums would be waited for
          mover.Load(first_feature(ahead.first_round));
        }
      }
      if constexpr (From::kPairs) {
#pragma unroll
        for (int i = 0; i < T::kThreadRows; i += 4) {
          float inverses[4];
          Unpack4(mover.LoadInverses(first_feature(round), lane_row * 4 + i * kLaneRows), inverses);
#pragma unroll
          for (int r = 0; r < 4; ++r) {
#pragma unroll
            for (float& result : sum[i + r]) {
              result = From::kBlocks ? GroupSumOf(result, inverses[r]) : result * inverses[r];
            }
          }
        }
        if (round * kBlockWaves + wave >= groups) SetZero(sum);
      }
      if constexpr (kShares) {
        if (round > 0) {
          if (thread == 0) AwaitBlocks(p.counters + 1 + unit.tile, static_cast<uint32_t>(round), seen);
          SyncThreads();
          total.Resume(p.totals + uint64_t{unit.tile} * (T::kRows * T::kOutputs));
        }
      }
      total.Add(s.floats, wave, lane_row, lane_column, sum);
    }
    const bool whole = !kShares || unit.end_round == rounds;
    if (whole) {
      const ProjectionMatrix m = unit.MatrixIn(p);
      total.Store(p, m, unit.first_row, unit.FirstOutput(m));
    } else {
      total.Keep(p.totals + uint64_t{unit.tile} * (T::kRows * T::kOutputs));
      ShowToBlocks();
    }
    if constexpr (kShares) {
      numbers.Advance(s);
      // The word of a tile without rounds left goes back to 0.
      if (thread == 0) StoreForBlocks(p.counters + 1 + unit.tile, whole ? 0 : static_cast<uint32_t>(unit.end_round));
      unit = Unit<T, kShares>(p, numbers.current(), rounds);
    }
  } while (kShares && !numbers.done());
}

// Blocks that a multiprocessor's registers are to hold.
template <typename From, typename T>
constexpr int ResidentBlocks() {
  if (T::kWave != 32) return 1;
  return T::kResults == 16 || (T::kResults == 32 && From::kWeightBytes == 2 && !From::kBlocks) ? 2 : 1;
}

template <typename From, typename T, bool kShares>
__global__ __launch_bounds__(T::kThreads, (ResidentBlocks<From, T>())) void TilesKernel(ProjectionArgs p) {
  auto& s = SharedMemory<std::conditional_t<kShares, SharedOfUnits<From, T>, Shared<From, T>>>();
  Multiply<From, T, kShares>(p, s);
}

// More results of a lane, and the decoding of quantised weights, leave no registers for the way to the next part.
template <typename T>
constexpr bool kMayShare = T::kResults == 32;

// Costs in hundredths of a round within a tile: a round that hands its sums on, by docs/evidence/mi50-model.md, and a
// wait for a block that runs at the same time, which fits an H200's times on waves of 32 and is an estimate on 64.
constexpr int64_t kSharePercent = 116;
template <typename T>
constexpr int64_t kWaitPercent = T::kWave == 64 ? 12 : 60;

// How a launch with tiles of T is divided, and how long it takes in rounds of a processor.
template <typename T>
struct Division {
  bool shares = false;  // each block computes rounds, of any tiles
  int64_t steps = 0;    // in hundredths

  Division(absl::Span<const ProjectionParams> params, bool may_share, const Stream& stream) {
    const int64_t tiles = OutputTiles(params, T::kOutputs) * CeilDivide(params[0].rows, T::kRows);
    const int64_t rounds = CeilDivide(params[0].weight.cols, kGroupFeatures * kBlockWaves);
    steps = CeilDivide(tiles, stream.processors) * rounds * 100;
    if (!kMayShare<T> || !may_share || tiles == 0 || tiles >= kStreamCounters) return;
    if (!Divisor::Divides(tiles * rounds, tiles)) return;
    // A processor of waves of 32 holds two blocks, which hide each other's waits: it gains only if it would be idle.
    constexpr int kPlaces = T::kWave == 64 ? 1 : 2;
    if (kPlaces > 1 && tiles >= stream.processors) return;
    const int64_t rounds_each = CeilDivide(tiles * rounds, int64_t{stream.processors} * kPlaces);
    const int64_t shared = rounds_each * kSharePercent + std::max(rounds - rounds_each, int64_t{0}) * kWaitPercent<T>;
    if (shared >= steps) return;
    steps = shared;
    shares = true;
  }
};

// Launches tiles of T. `totals`: null if blocks may not share them.
template <typename From, typename T>
absl::Status LaunchDivided(const char* name, absl::Span<const ProjectionParams> params, ProjectionArgs args,
                           float* totals, const Stream& stream) {
  const Division<T> division(params, totals != nullptr, stream);
  if constexpr (From::kMayShare && kMayShare<T>) {
    if (division.shares) {
      args.totals = totals;
      args.counters = stream.counters;
      args.by_tiles = Divisor::Of(static_cast<uint32_t>(args.tiles()));
      args.by_row_tiles = Divisor::Of(static_cast<uint32_t>(args.row_tiles));
      const int64_t places = int64_t{stream.processors} * ResidentBlocks<From, T>();
      const int64_t units = args.tiles() * CeilDivide(args.features, kGroupFeatures * kBlockWaves);
      return Launch(name, TilesKernel<From, T, true>, {std::min(units, places)}, T::kThreads, stream, args);
    }
  }
  return Launch(name, TilesKernel<From, T, false>, {args.tiles()}, T::kThreads, stream, args);
}

// Weights as memory has them, or QuantisedWeights.
template <typename Weights, typename T, bool kVector>
absl::Status LaunchTilesOf(absl::Span<const ProjectionParams> params, float* totals, const Stream& stream) {
  const ProjectionArgs args = MakeProjectionArgs(params, T::kRows, T::kOutputs);
  const auto launch = [&](const char* name, auto from) {
    return LaunchDivided<decltype(from), T>(name, params, args, totals, stream);
  };
  if constexpr (std::is_same_v<Weights, QuantisedWeights>) {
    if (params[0].x.dtype == DType::kF32) {
      constexpr DType kX = DType::kF32;
      constexpr char kName[] = "projection_tiles_quantised";
      if constexpr (T::kWave == 64 && kVector) {
        const WeightFormat format = params[0].weight.format;
        if (format == WeightFormat::kQ8_0)
          return launch(kName, QuantisedOperands<OneFormat<WeightFormat::kQ8_0>, true, kX>());
        if (format == WeightFormat::kQ4_K)
          return launch(kName, QuantisedOperands<OneFormat<WeightFormat::kQ4_K>, true, kX>());
      }
      return launch(kName, QuantisedOperands<AnyFormat, kVector, kX>());
    }
    return launch("projection_tiles_quantised", QuantisedOperands<AnyFormat, kVector, DType::kBF16>());
  } else if constexpr (kScaled<Weights>) {  // of narrower x the products are of fp16 numbers
    return launch("projection_tiles", PlainOperands<Weights, kVector, DType::kF32>());
  } else {
    return WithXDType(params[0].x.dtype,
                      [&](auto x) { return launch("projection_tiles", PlainOperands<Weights, kVector, x()>()); });
  }
}

// How long tiles of T take, in results of a processor at the full rate: Division, and what reading LDS for fewer
// results a lane costs, as measured on waves of 32 and as docs/evidence/mi50-model.md has it on waves of 64.
template <typename T>
int64_t CostOf(absl::Span<const ProjectionParams> params, bool shares, const Stream& stream) {
  constexpr bool kWide = T::kWave == 64;
  constexpr int kPercent = T::kResults == 16   ? (kWide ? 60 : 50)
                           : T::kResults == 32 ? (kWide ? 90 : 70)
                           : T::kResults == 64 ? 95
                                               : 100;
  return Division<T>(params, shares, stream).steps * T::kRows * T::kOutputs / kPercent;
}

// Calls launch(T()) for the cheapest of tiles, and returns its result.
template <typename First, typename... Others, typename Function>
absl::Status WithCheapest(absl::Span<const ProjectionParams> params, bool shares, const Stream& stream,
                          const Function& launch) {
  const int64_t least = std::min({CostOf<First>(params, shares, stream), CostOf<Others>(params, shares, stream)...});
  absl::Status status;
  const auto takes = [&](auto tile) {
    if (CostOf<decltype(tile)>(params, shares, stream) > least) return false;
    status = launch(tile);
    return true;
  };
  (void)(takes(First()) || ... || takes(Others()));
  return status;
}

template <typename Weights, typename... Tiles>
absl::Status LaunchCheapest(absl::Span<const ProjectionParams> params, float* totals, const Stream& stream) {
  return WithCheapest<Tiles...>(params, totals != nullptr, stream, [&](auto tile) {
    return LaunchTilesOf<Weights, decltype(tile), true>(params, totals, stream);
  });
}

}  // namespace

int64_t TotalsFloats(int64_t rows, int64_t outputs, int32_t matrices, const Stream& stream) {
  // For more rows whole tiles leave few processors idle.
  constexpr int64_t kMostRows = 256;
  constexpr int64_t kMostFloats = int64_t{4} << 20;
  constexpr int64_t kTileRows = 64, kTileOutputs = 128;  // of the largest tiles
  if (stream.counters == nullptr || matrices == 0 || rows > kMostRows || rows <= kFewRows) return 0;
  const int64_t tiles = CeilDivide(outputs, kTileOutputs) + matrices;
  const int64_t floats = CeilDivide(rows, kTileRows) * kTileRows * tiles * kTileOutputs;
  return floats <= kMostFloats ? floats : 0;
}

absl::Status LaunchHalfTiles(absl::Span<const ProjectionParams> params, const RoundedRows& x, const Stream& stream) {
  return WithWaveWidth(stream, "projection_half_tiles", [&](auto wave) {
    constexpr int kWave = wave();
    using Small = Tile<kWave, 8, 4, 8>;
    using Smallest = Tile<kWave, 4, 4, 4>;
    const auto launch = [&](auto tile, auto from) {
      using T = decltype(tile);
      ProjectionArgs args = MakeProjectionArgs(params, T::kRows, T::kOutputs);
      args.halves = x;
      return Launch("projection_half_tiles", TilesKernel<decltype(from), T, false>, {args.tiles()}, T::kThreads, stream,
                    args);
    };
    const auto launch_blocks = [&](auto from) {  // sums of blocks leave no registers for 64 results of a lane
      return WithCheapest<Small, Smallest>(params, /*shares=*/false, stream,
                                           [&](auto tile) { return launch(tile, from); });
    };
    if (params[0].weight.format == WeightFormat::kQ8_0) return launch_blocks(HalfBlockOperands<WeightFormat::kQ8_0>());
    if (params[0].weight.format == WeightFormat::kQ4_K) return launch_blocks(HalfBlockOperands<WeightFormat::kQ4_K>());
    if (!AllowsVectors(params)) return launch(Small(), HalfOperands<false>());
    return WithCheapest<Tile<kWave, 8, 8, 8>, Small, Smallest>(
        params, /*shares=*/false, stream, [&](auto tile) { return launch(tile, HalfOperands<true>()); });
  });
}

absl::Status LaunchTiles(absl::Span<const ProjectionParams> params, float* totals, const Stream& stream) {
  if (!IsPlain(params[0].weight.format)) totals = nullptr;
  return WithAnyWeights(params[0].weight, [&](auto weights) {
    return WithWaveWidth(stream, "projection_tiles", [&](auto wave) {
      using Weights = decltype(weights);
      constexpr int kWave = wave();
      using Small = Tile<kWave, 8, 4, 8>;
      if (!AllowsVectors(params)) return LaunchTilesOf<Weights, Small, false>(params, /*totals=*/nullptr, stream);
      if constexpr (kWave == 32) {
        return LaunchCheapest<Weights, Tile<32, 8, 8, 8>, Tile<32, 4, 8, 12>, Tile<32, 4, 8, 8>, Small,
                              Tile<32, 4, 4, 4>>(params, totals, stream);
      } else if constexpr (std::is_same_v<Weights, QuantisedWeights>) {  // nor for 64 beside the decoding
        return LaunchCheapest<Weights, Small, Tile<kWave, 4, 4, 4>>(params, totals, stream);
      } else {  // two waves a SIMD have no registers for 96 sums
        return LaunchCheapest<Weights, Tile<kWave, 8, 8, 8>, Tile<kWave, 4, 8, 8>, Small, Tile<kWave, 4, 4, 4>>(
            params, totals, stream);
      }
    });
  });
}

}  // namespace gdn::gpu
