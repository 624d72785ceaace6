// y = x W^T for more rows than a few, with x rounded to int8: decode in large batches, prefill.
//
// Order of a sum: projection_args.h. x has been rounded by projection_round_rows_gpu.hip.
// Threads: a lane has 16 or 32 results. Their dot products take four features an instruction, from words of four signed
// bytes that lie in LDS with the feature as the slow index. For many rows all waves of a block share the two stages of
// a group, which have two buffers, so that one barrier a group is enough. For fewer rows each wave has groups of
// features and LDS of its own, as in projection_tiles_gpu.hip: so few tiles fill the device too.
// Resources: up to 36 KB of LDS; at most 128 registers. Bound by vector instructions, five of eight of which are dot
// products.
// A layer's in-projections of 1,024 rows of Q8_0 take 1,639 us by docs/evidence/mi50-model.md. With one kernel for all
// formats they took 2,407: a branch of a format ends by waiting for its loads. No help: scales loaded before the dot
// products (1,716), tiles of 128 x 128 (1,615, but 719 instead of 693 for the out-projection).
#pragma once

#include <algorithm>

#include "kernels/gpu/rounds.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/int8_operand_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/rounded_rows_gpu.h"
#include "kernels/projection/thread_tile-inl.h"
#include "kernels/projection/wave_sums_gpu-inl.h"

namespace gdn::gpu {

// Division of a block's work. kLanesDown of a wave's kWaveLanes lanes lie down, with kRowsOfLane x kOutputsOfLane
// results each. The waves of a team, kWavesDown x kWavesAcross, share a stage. The block's kTeams teams take
// neighbouring groups of features of one tile: one team, or teams of one wave.
template <int kWaveLanes, int kLanesDown, int kRowsOfLane, int kOutputsOfLane, int kWavesDown, int kWavesAcross,
          int kTeamsOfBlock>
struct Int8TileShape {
  static constexpr int kWave = kWaveLanes;
  static constexpr int kLaneRows = kLanesDown;
  static constexpr int kThreadRows = kRowsOfLane;
  static constexpr int kThreadOutputs = kOutputsOfLane;
  static constexpr int kResults = kThreadRows * kThreadOutputs;  // of a lane
  static constexpr int kDown = kWavesDown;
  static constexpr int kAcross = kWavesAcross;
  static constexpr int kTeams = kTeamsOfBlock;
  static constexpr int kTeamLanes = kDown * kAcross * kWave;
  static constexpr int kThreads = kTeams * kTeamLanes;
  static constexpr int kSpan = kWave / kLaneRows * 4;  // of the lanes' first four outputs
  static constexpr int kWaveRows = kLaneRows * kThreadRows;
  static constexpr int kWaveOutputs = kSpan * (kThreadOutputs / 4);
  static constexpr int kRows = kDown * kWaveRows;
  static constexpr int kOutputs = kAcross * kWaveOutputs;
  static_assert(kTeams == 1 || kDown * kAcross == 1);
};

template <typename ShapeOfTile, WeightFormat kFormat>
struct Int8Tile : ShapeOfTile {
  using Shape = ShapeOfTile;
  using Stage = Int8Stage<kFormat, Shape::kTeamLanes, Shape::kRows, Shape::kOutputs>;
  // Rows of a lane whose dot products are summed at a time: registers hold no more beside the sums.
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kParts = Shape::kThreadRows / kRowsAtOnce;
  static_assert(Shape::kTeams > 1 || kParts == 2);  // each moves a block of a group

  // For WaveSums.
  static constexpr int kWaves = Shape::kTeams;
  static constexpr int kExchangeRows = 2;
  static constexpr int kExchange = kExchangeRows * Shape::kLaneRows * Shape::kOutputs;
  static constexpr int kExchangeResults = kExchange / Shape::kThreads;
  __device__ __forceinline__ static int ExchangeAt(int lane_row, int output) { return output ^ (lane_row * 8 % 32); }

  static constexpr int kFloats =
      Shape::kTeams == 1 ? 4 * Stage::kFloats : Shape::kTeams * std::max(Stage::kFloats, kExchange);
  struct Shared {
    LdsArray<float, kFloats> floats;
  };
};

// A lane's place in the tile: its first row and output, and that of the lanes among the wave's.
struct Int8Place {
  int row, output;
  int lane_row, lane_column;

  template <typename T>
  __device__ __forceinline__ static Int8Place Of(int team_lane) {
    const LanePlace place = PlaceOfLane<T::kLaneRows>(team_lane % T::kWave);
    const int wave = team_lane / T::kWave;
    return {wave / T::kAcross * T::kWaveRows + place.row * 4, wave % T::kAcross * T::kWaveOutputs + place.column * 4,
            place.row, place.column * 4};
  }
};

// Dot products of kWords words of x and weights from word `first` of the stage at `at` on, for kRows rows and all
// outputs of a lane, on top of kDotBias. Each word is loaded while the one before it is multiplied, and not earlier.
template <typename T, int kWords, int kRows, typename Lds>
__device__ __forceinline__ void DotWords(Lds& lds, int at, int first, int row, int output,
                                         int32_t (&dot)[kRows][T::kThreadOutputs]) {
  uint32_t w[2][T::kThreadOutputs], x[2][kRows];
  const auto load = [&](int word, int to) {
    const int w_at = at + T::Stage::WAt(word, output);
    const int x_at = at + word * T::kRows + row;
#pragma unroll
    for (int j = 0; j < T::kThreadOutputs; j += 4) UnpackBits(lds.Load4(w_at + j / 4 * T::kSpan), w[to] + j);
#pragma unroll
    for (int i = 0; i < kRows; i += 4) UnpackBits(lds.Load4(x_at + i * T::kLaneRows), x[to] + i);
  };
  load(first, 0);
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    FenceLoads();
    if (word + 1 < kWords) load(first + word + 1, (word + 1) % 2);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < T::kThreadOutputs; ++j) {
        const int32_t sum = Dot4(x[word % 2][i], w[word % 2][j], word == 0 ? kDotBias : dot[i][j]);
        dot[i][j] = static_cast<int32_t>(NotHoisted(static_cast<uint32_t>(sum)));
      }
    }
  }
}

// Loads `kCount` values of a lane that lie four by four, `span` apart.
template <int kCount, typename Lds>
__device__ __forceinline__ void LoadFours(Lds& lds, int at, int span, float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) Unpack4(lds.Load4(at + i / 4 * span), values + i);
}

// Adds the products of the block of features at `at` in LDS and of kRowsAtOnce rows of the lane, from `first` on, to
// sum[to ..]. kFirst: the sums are zero before, and not read.
template <typename T, bool kFirst, typename Lds, int kSums>
__device__ __forceinline__ void AddBlock(Lds& lds, int at, const Int8Place& place, int first, int to,
                                         float (&sum)[kSums][T::kThreadOutputs]) {
  using Stage = typename T::Stage;
  constexpr int kOutputs = T::kThreadOutputs;
  constexpr int kScales = Stage::kKind.scales;
  constexpr int kRows = T::kRowsAtOnce;
  constexpr int kRowSpan = 4 * T::kLaneRows;
  const int row = place.row + first / 4 * kRowSpan;
  FenceLoads();
  float p[kRows][kOutputs];
#pragma unroll
  for (int n = 0; n < kScales; ++n) {
    int32_t dot[kRows][kOutputs];
    constexpr int kWords = kBlockWords / kScales;
    DotWords<T, kWords>(lds, at, n * kWords, row, place.output, dot);
    float scale[kOutputs];
    LoadFours(lds, at + Stage::kScalesAt + n * Stage::kOutputs + place.output, T::kSpan, scale);
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      const float start = -kDotBiasValue * scale[j];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        p[i][j] = n == 0 ? ScaledDot(dot[i][j], scale[j], start) : fmaf(scale[j], PlainDot(dot[i][j]), p[i][j]);
      }
    }
  }
  if constexpr (Stage::kKind.offsets) {
    float of_block[kRows], of_half[kRows];  // sums of q_x
    LoadFours(lds, at + kSumWord * T::kRows + row, kRowSpan, of_block);
    if constexpr (kScales == 2) LoadFours(lds, at + kHalfSumWord * T::kRows + row, kRowSpan, of_half);
#pragma unroll
    for (int n = 0; n < kScales; ++n) {
      float offset[kOutputs];
      LoadFours(lds, at + Stage::kOffsetsAt + n * Stage::kOutputs + place.output, T::kSpan, offset);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float of_x = kScales == 1 ? of_block[i] : n == 0 ? of_half[i] : of_block[i] - of_half[i];
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) p[i][j] = fmaf(offset[j], of_x, p[i][j]);
      }
    }
  }
  float d[kRows];
  LoadFours(lds, at + kScaleWord * T::kRows + row, kRowSpan, d);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      float& of_group = sum[to + i][j];
      of_group = kFirst ? d[i] * p[i][j] : fmaf(d[i], p[i][j], of_group);
    }
  }
}

// All waves share a group's two stages, of which there are two buffers, and lanes keep their results' totals.
template <typename T>
__device__ __forceinline__ void MultiplyTogether(const Int8Args& args, const ProjectionMatrix& m, int32_t first_row,
                                                 int32_t first_output, typename T::Shared& s) {
  constexpr int kStage = T::Stage::kFloats;
  const int thread = static_cast<int>(threadIdx.x);
  const Int8Place place = Int8Place::Of<T>(thread);
  const int32_t blocks = args.p.features / kInt8Block;
  Int8Mover<typename T::Stage> mover(args, m, thread, first_row, first_output);
  float total[T::kThreadRows][T::kThreadOutputs];
  SetZero(total);
  // Each round moves the next group's blocks and multiplies this group's; the first round has none to multiply.
#pragma unroll 1
  for (int32_t block = -2; block < blocks; block += 2) {
    const int at = (block / 2 & 1) * 2 * kStage;
    const int next_at = 2 * kStage - at;
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) {
      const bool moves = block + 2 + part < blocks;
      if (moves) mover.Load(block + 2 + part);
      if (block >= 0) {
        const int first = part * T::kRowsAtOnce;
        float sum[T::kRowsAtOnce][T::kThreadOutputs];
        AddBlock<T, true>(s.floats, at, place, first, 0, sum);
        if (block + 1 < blocks) AddBlock<T, false>(s.floats, at + kStage, place, first, 0, sum);
#pragma unroll
        for (int i = 0; i < T::kRowsAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < T::kThreadOutputs; ++j) total[first + i][j] += sum[i][j];
        }
      }
      if (moves) mover.Store(s.floats, next_at + part * kStage);
    }
    SyncThreads();
  }
#pragma unroll
  for (int i = 0; i < T::kThreadRows; ++i) {
    const int64_t row = first_row + place.row + i / 4 * 4 * T::kLaneRows + i % 4;
#pragma unroll
    for (int j = 0; j < T::kThreadOutputs; ++j) {
      const int32_t output = first_output + place.output + j / 4 * T::kSpan + j % 4;
      if (row < args.p.rows && output < m.outputs) {
        StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total[i][j]);
      }
    }
  }
}

// Each wave has groups of its own, and the block adds the waves' sums.
template <typename T>
__device__ __forceinline__ void MultiplyApart(const Int8Args& args, const ProjectionMatrix& m, int32_t first_row,
                                              int32_t first_output, typename T::Shared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int wave = OfWave(thread / T::kWave);
  const Int8Place place = Int8Place::Of<T>(thread % T::kWave);
  const int32_t blocks = args.p.features / kInt8Block;
  const int32_t groups = (blocks + 1) / 2;
  const int at = wave * T::Stage::kFloats;
  Int8Mover<typename T::Stage> mover(args, m, thread % T::kWave, first_row, first_output);
  WaveSums<T> total;
  const auto load = [&](int32_t block) { mover.Load(block < blocks ? block : blocks - 1); };
  load(2 * wave);
#pragma unroll 1
  for (int32_t round = 0; round * T::kTeams < groups; ++round) {
    const int32_t block = 2 * (round * T::kTeams + wave);
    float sum[T::kThreadRows][T::kThreadOutputs];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      WaveBarrier();
      mover.Store(s.floats, at);
      WaveBarrier();
      load(half == 0 ? block + 1 : block + 2 * T::kTeams);
      WaveBarrier();
#pragma unroll
      for (int first = 0; first < T::kThreadRows; first += T::kRowsAtOnce) {
        if (half == 0) {
          AddBlock<T, true>(s.floats, at, place, first, first, sum);
        } else if (block + 1 < blocks) {
          AddBlock<T, false>(s.floats, at, place, first, first, sum);
        }
      }
    }
    if (round * T::kTeams + wave >= groups) SetZero(sum);
    total.Add(s.floats, wave, place.lane_row, place.lane_column, sum);
  }
  total.Store(args.p, m, first_row, first_output);
}

template <typename T>
__global__ __launch_bounds__(T::kThreads, T::kWave == 64 ? 2 : 512 / T::kThreads) void Int8TilesKernel(Int8Args args) {
  auto& s = SharedMemory<typename T::Shared>();
  const ProjectionArgs& p = args.p;
  // Row tiles are the fastest index: those that run together read the same weights.
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  const int32_t first_row = row_tile * T::kRows;
  const int32_t first_output = (tile - m.first_tile) * T::kOutputs;
  if constexpr (T::kTeams == 1) {
    MultiplyTogether<T>(args, m, first_row, first_output, s);
  } else {
    MultiplyApart<T>(args, m, first_row, first_output, s);
  }
}

template <WeightFormat kFormat, typename Shape>
absl::Status LaunchInt8Shape(absl::Span<const ProjectionParams> params, const RoundedRows& x, const Stream& stream) {
  using T = Int8Tile<Shape, kFormat>;
  const Int8Args args{MakeProjectionArgs(params, T::kRows, T::kOutputs), x};
  return Launch("projection_int8_tiles", Int8TilesKernel<T>, {args.p.tiles()}, T::kThreads, stream, args);
}

// Time that a block of a shape takes on gfx906 for 2,048 features, in thousands of cycles, by the way of counting of
// docs/evidence/mi50-model.md: of its compute unit's vector instructions, and of waiting if it is alone there.
template <typename Shape>
constexpr BlockCost Int8CyclesOf() {
  if (Shape::kTeams == 1) return {2, 109, 187};
  return Shape::kTeams == 4 ? BlockCost{3, 19, 53} : BlockCost{1, 18, 27};
}

template <typename Shape>
int64_t Int8CostOf(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const int64_t blocks = OutputTiles(params, Shape::kOutputs) * CeilDivide(params[0].rows, Shape::kRows);
  return RoundsCost(blocks, Int8CyclesOf<Shape>(), stream);
}

// Launches the cheapest of shapes.
template <WeightFormat kFormat, typename First, typename... Others>
absl::Status LaunchCheapestInt8(absl::Span<const ProjectionParams> params, const RoundedRows& x, const Stream& stream) {
  const int64_t least = std::min({Int8CostOf<First>(params, stream), Int8CostOf<Others>(params, stream)...});
  absl::Status status;
  const auto launch = [&](auto shape) {
    using Shape = decltype(shape);
    if (Int8CostOf<Shape>(params, stream) > least) return false;
    status = LaunchInt8Shape<kFormat, Shape>(params, x, stream);
    return true;
  };
  (void)(launch(First()) || ... || launch(Others()));
  return status;
}

// Launches the projection of any number of rows. `params` must be as for MakeProjectionArgs, with weights of kFormat;
// `x` are their rows.
template <WeightFormat kFormat>
absl::Status LaunchInt8TilesOf(absl::Span<const ProjectionParams> params, const RoundedRows& x, const Stream& stream) {
  return WithWaveWidth(stream, "projection_int8_tiles", [&](auto wave) {
    if constexpr (wave() == 32) {
      return LaunchCheapestInt8<kFormat, Int8TileShape<32, 4, 8, 4, 2, 4, 1>, Int8TileShape<32, 4, 4, 4, 1, 1, 4>,
                                Int8TileShape<32, 4, 4, 4, 1, 1, 8>>(params, x, stream);
    } else {
      return LaunchCheapestInt8<kFormat, Int8TileShape<64, 8, 8, 4, 1, 4, 1>, Int8TileShape<64, 4, 4, 4, 1, 1, 4>,
                                Int8TileShape<64, 4, 4, 4, 1, 1, 8>>(params, x, stream);
    }
  });
}

}  // namespace gdn::gpu
