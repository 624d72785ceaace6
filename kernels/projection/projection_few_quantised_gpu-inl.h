// y = x W^T for few rows and quantised weights on the GPU: decode.
//
// Order of a sum: projection_args.h, over the weights' float32 values.
// Threads: as in projection_few_rows_gpu.hip a team of 16 or 8 lanes computes a group of features for its tile's
// outputs, and the block's teams take neighbouring groups. The lanes' 16 bytes are adjacent in memory
// (packed_weights_gpu.h), so each lane loads its own outputs' weights into registers and decodes them there. LDS holds
// only x for a stage of features, which all lanes of a team read together, and the groups' sums, which are added in
// group order when each team has finished a group. The row tile is the fastest grid index.
// If x is to be rounded to int8 or fp16, each team rounds its stage on the way to LDS. So x is rounded once for each
// block's outputs, and no launch goes ahead.
// No kernel writes weights, so if kernels overlap, weights are loaded before the previous kernel has ended.
// Resources: up to 33 KB of LDS for eight rows, 26 KB for one; no block barrier within a group. One row: bound by
// memory bandwidth, at three to five instructions per weight.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/half_inputs_gpu-inl.h"
#include "kernels/projection/integer_weights_gpu-inl.h"
#include "kernels/projection/packed_weights_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/rounded_inputs_gpu-inl.h"
#include "kernels/projection/rounded_rows_gpu.h"
#include "kernels/projection/thread_tile-inl.h"

namespace gdn::gpu {

// Division of a block's work among its threads. A stage is 32 or 64 neighbouring features of each output, as many as
// fit the registers.
struct QuantisedShape {
  int team_lanes;    // lanes of a team, 8 or 16
  int rows;          // rows of x in a tile
  int lane_outputs;  // outputs computed by a lane from each value of x that it reads from LDS
  int at_once;       // groups a team loads before it multiplies the first: small weights need more loads in flight
  int stage_blocks;  // blocks of 32 features per stage
  int threads;
  int places;  // blocks that run at once on a processor with waves of 32; limits their registers
  // True: the blocks of the next kernel may begin before this kernel's loads. False: only once its last loads are in
  // flight. Blocks that begin early occupy what this kernel leaves free of a processor and wait there. Many of them
  // would crowd some processors.
  bool next_first;
};

// A tile whose stage has kFloatsOfStage floats in LDS for each row of x.
template <WeightFormat kFormatOfWeights, QuantisedShape kShape, int kFloatsOfStage>
struct TeamTile {
  static constexpr WeightFormat kFormat = kFormatOfWeights;
  static constexpr int kThreads = kShape.threads;
  static constexpr int kPlaces = kShape.places;
  static constexpr bool kNextFirst = kShape.next_first;
  static constexpr int kTeamLanes = kShape.team_lanes;
  static constexpr int kTeams = kThreads / kTeamLanes;
  static constexpr int kRows = kShape.rows;
  static constexpr int kLaneOutputs = kShape.lane_outputs;
  static constexpr int kOutputs = kTeamLanes * kLaneOutputs;
  static constexpr int kBlocks = kShape.stage_blocks;
  static constexpr int kFeatures = 32 * kBlocks;
  static constexpr int kGroupStages = kGroupFeatures / kFeatures;
  static constexpr int kAtOnce = kShape.at_once;
  static constexpr int kRoundGroups = kTeams * kAtOnce;
  static constexpr int kQuads = kFeatures / 4;
  static constexpr int kXLoads = (kRows * kQuads + kTeamLanes - 1) / kTeamLanes;
  static constexpr int kStageFloats = kFloatsOfStage;
  // Floats in LDS: x of the teams, with gaps so that a wave's teams read different banks, and the sums of a round. For
  // up to two rows the sums have two buffers of their own, which saves a barrier per round; for more rows they reuse
  // x's memory.
  static constexpr int kXFloats = kAtOnce * kRows * kStageFloats + 4;
  static constexpr int kResults = kRows * kOutputs;
  static constexpr int kRoundSums = kRoundGroups * kResults;
  static constexpr bool kSumsApart = kRows <= 2;
  static constexpr int kSumsAt = kSumsApart ? kTeams * kXFloats : 0;
  static constexpr int kFloats = kSumsApart ? kSumsAt + 2 * kRoundSums : std::max(kTeams * kXFloats, kRoundSums);
  static_assert(kResults <= kThreads && kGroupStages * kFeatures == kGroupFeatures);
  static_assert(kAtOnce == 1 || kGroupStages == 1);

  struct Shared {
    LdsArray<float, kFloats> floats;
  };
};

// Products of float32 numbers, as which x lies in LDS.
template <WeightFormat kFormatOfWeights, QuantisedShape kShape>
struct QuantisedTile : TeamTile<kFormatOfWeights, kShape, 32 * kShape.stage_blocks> {
  static constexpr bool kRounded = false, kHalved = false;
  static constexpr int kWavesOf64 = 1;  // that registers must allow a SIMD, with waves of 64
};

// Products with x rounded to int8: x lies in LDS as blocks of kRoundedFloats words. They are kBlockWords words of
// features, the scale, the BlockExtras and a gap.
inline constexpr int kRoundedFloats = kBlockWords + 4;
template <WeightFormat kFormatOfWeights, QuantisedShape kShape>
struct RoundedTile : TeamTile<kFormatOfWeights, kShape, kRoundedFloats * kShape.stage_blocks> {
  static constexpr bool kRounded = true, kHalved = false;
  static constexpr int kWavesOf64 = 3;
  // The lanes of a block of x load together.
  static_assert(kShape.rows * kShape.stage_blocks * kBlockWords % kShape.team_lanes == 0);
};

// Products of fp16 numbers: a stage is a group, and x lies in LDS as its kHalfPairs words of two features, the inverse
// of the scale, the sums of both blocks and a gap.
inline constexpr int kHalvedFloats = kHalfPairs + 4;
template <WeightFormat kFormatOfWeights, QuantisedShape kShape>
struct HalvedTile : TeamTile<kFormatOfWeights, kShape, kHalvedFloats> {
  static constexpr bool kRounded = false, kHalved = true;
  static constexpr int kWavesOf64 = 1;
  // The lanes of a row's group load together.
  static_assert(kShape.team_lanes * 4 == kHalfGroup && kShape.stage_blocks * kHalfBlock == kHalfGroup);
};

// Moves a stage's x, the tile's rows from feature `feature` on, from memory to the team's LDS: Load to registers, Store
// to position `at`, rows of kStageFloats floats. All lanes of the team call; `lane` counts in the team.
template <typename T, int kWave, bool kWhole>
struct StageOfX {
  Vec4 raw[T::kXLoads];

  __device__ __forceinline__ void Load(const XRows& from, int lane, int32_t feature) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int index = Index(kKeepsAddresses ? lane : static_cast<int>(NotHoisted(static_cast<uint32_t>(lane))), i);
      if (index >= T::kRows * T::kQuads) break;
      raw[i] = from.Load<kWhole>(RowOf(index), feature + QuadOf(index) * 4);
    }
  }
  __device__ __forceinline__ void Store(const XRows& from, int lane, typename T::Shared& s, int at) const {
    if constexpr (T::kRounded) {
#pragma unroll
      for (int i = 0; i < T::kXLoads; i += kTogether) {
        Vec4 wide[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) wide[j] = from.Widen(raw[i + j]);
        const int index = Index(lane, i);
        StoreRounded(wide, QuadOf(index) % kBlockWords,
                     at + RowOf(index) * T::kStageFloats + QuadOf(index) / kBlockWords * kRoundedFloats, s);
      }
    } else if constexpr (T::kHalved) {
#pragma unroll
      for (int row = 0; row < T::kXLoads; ++row) {
        StoreHalved(from.Widen(raw[row]), lane, at + row * T::kStageFloats, s);
      }
    } else {
#pragma unroll
      for (int i = 0; i < T::kXLoads; ++i) {
        const int index = Index(lane, i);
        if (index >= T::kRows * T::kQuads) break;
        s.floats.Store4(at + index * 4, from.Widen(raw[i]));
      }
    }
  }

 private:
  // False if the addresses of a stage are made anew for the next. Sums of eight rows leave them few registers, and two
  // scales a block none for making them.
  static constexpr bool kKeepsAddresses = !T::kRounded || T::kRows < 8 || ScalesOfBlock(T::kFormat) == 2;
  // Neighbouring quads that a lane has: two are rounded with one division.
  static constexpr int kTogether = T::kRounded && T::kXLoads % 2 == 0 ? 2 : 1;

  __device__ __forceinline__ static int Index(int lane, int i) {
    return (lane + i / kTogether * T::kTeamLanes) * kTogether + i % kTogether;
  }
  __device__ __forceinline__ static int RowOf(int index) { return T::kRows == 1 ? 0 : index / T::kQuads; }
  __device__ __forceinline__ static int QuadOf(int index) { return T::kRows == 1 ? index : index % T::kQuads; }

  // Rounds words from `word` on of a block whose place in LDS is `at`.
  __device__ __forceinline__ static void StoreRounded(const Vec4 (&wide)[kTogether], int word, int at,
                                                      typename T::Shared& s) {
    const RoundedLane<kTogether> rounded = RoundBlocks<kWave>(wide);
    const BlockExtras extras = BlockExtrasOf<T::kFormat>(BlockSumsOf<kWave>(rounded.q));
#pragma unroll
    for (int j = 0; j < kTogether; ++j) s.floats[at + word + j] = BitsToFloat(rounded.q[j]);
    if (word == 0) s.floats.Store4(at + kBlockWords, {rounded.scale, extras.of_scale[0], extras.of_scale[1], 0.0f});
  }

  // Rounds the lane's four features of a row's group whose place in LDS is `at`.
  __device__ __forceinline__ static void StoreHalved(const Vec4& x, int lane, int at, typename T::Shared& s) {
    const GroupScale scale = GroupScaleOf<T::kTeamLanes, kWave>(LargestFinite(x, 0));
    const uint32_t first = HalvesOf(x.x, x.y, scale.scale), second = HalvesOf(x.z, x.w, scale.scale);
    s.floats[at + 2 * lane] = BitsToFloat(first);
    s.floats[at + 2 * lane + 1] = BitsToFloat(second);
    if (lane == 0) s.floats[at + kHalfPairs] = scale.inverse;
    if constexpr (HasOffsets(T::kFormat)) {
      const float sum = HalfSumOf<kWave>(first, second);
      constexpr int kBlockLanes = kHalfBlock / 4;
      if (lane % kBlockLanes == 0) s.floats[at + kHalfSumsWord + lane / kBlockLanes] = sum;
    }
  }
};

// Adds to sum[r][o] the products of the stage's x of row r, at x_at in LDS, and weights of the lane's output o, in the
// order of features.
template <typename T>
__device__ __forceinline__ void MultiplyStage(const PackedBlocks<T::kFormat, T::kBlocks> (&blocks)[T::kLaneOutputs],
                                              typename T::Shared& s, int x_at,
                                              float (&sum)[T::kRows][T::kLaneOutputs]) {
#pragma unroll
  for (int eight = 0; eight < T::kFeatures / 8; ++eight) {
    float w[T::kLaneOutputs][8];
#pragma unroll
    for (int o = 0; o < T::kLaneOutputs; ++o) blocks[o].Decode(eight / 4, eight % 4, w[o]);
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

// Adds to sum[r][o] the products of the stage's rounded x and weights, a block of 32 features at a time.
template <typename T>
__device__ __forceinline__ void MultiplyRoundedStage(
    const PackedBlocks<T::kFormat, T::kBlocks> (&blocks)[T::kLaneOutputs], typename T::Shared& s, int x_at,
    float (&sum)[T::kRows][T::kLaneOutputs]) {
#pragma unroll
  for (int b = 0; b < T::kBlocks; ++b) {
    IntegerBlock<T::kFormat> w[T::kLaneOutputs];
#pragma unroll
    for (int o = 0; o < T::kLaneOutputs; ++o) w[o] = IntegerBlockOf(blocks[o], b);
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const int at = x_at + r * T::kStageFloats + b * kRoundedFloats;
      uint32_t x[kBlockWords];
      UnpackBits(s.floats.Load4(at), x);
      UnpackBits(s.floats.Load4(at + 4), x + 4);
      const Vec4 rest = s.floats.Load4(at + kBlockWords);
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) {
        sum[r][o] = fmaf(rest.x, ProductOf(w[o], x, BlockExtras{{rest.y, rest.z}}), sum[r][o]);
      }
    }
  }
}

// Makes sum[r][o] the sum of a group of rounded x, the stage. `block_count`: blocks of the group that exist.
template <typename T>
__device__ __forceinline__ void MultiplyHalvedStage(
    const PackedBlocks<T::kFormat, T::kBlocks> (&blocks)[T::kLaneOutputs], int32_t block_count, typename T::Shared& s,
    int x_at, float (&sum)[T::kRows][T::kLaneOutputs]) {
#pragma unroll
  for (int b = 0; b < T::kBlocks; ++b) {
    float of_block[T::kRows][T::kLaneOutputs];
    SetZero(of_block);
#pragma unroll
    for (int eight = 0; eight < kHalfBlock / 8; ++eight) {
      uint32_t w[T::kLaneOutputs][4];
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) {
        uint32_t words[2];
        IntegerWords<T::kFormat>(blocks[o].Eight(b, eight), words[0], words[1]);
        IntegerHalves<T::kFormat>(words[0], w[o][0], w[o][1]);
        IntegerHalves<T::kFormat>(words[1], w[o][2], w[o][3]);
      }
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
        uint32_t x[4];
        UnpackBits(s.floats.Load4(x_at + r * T::kStageFloats + b * kHalfBlock / 2 + eight * 4), x);
#pragma unroll
        for (int o = 0; o < T::kLaneOutputs; ++o) {
#pragma unroll
          for (int i = 0; i < 4; ++i) of_block[r][o] = Dot2(x[i], w[o][i], of_block[r][o]);
        }
      }
    }
#pragma unroll
    for (int o = 0; o < T::kLaneOutputs; ++o) {
      IntegerScale scale = IntegerScaleOf<T::kFormat>(blocks[o].scales, blocks[o].PlaceOf(b, 0));
      if (b >= block_count) scale = {0.0f, 0.0f};
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
        sum[r][o] = fmaf(scale.scale, of_block[r][o], sum[r][o]);
        if constexpr (HasOffsets(T::kFormat)) {
          sum[r][o] = fmaf(scale.offset, s.floats[x_at + r * T::kStageFloats + kHalfSumsWord + b], sum[r][o]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const float inverse = s.floats[x_at + r * T::kStageFloats + kHalfPairs];
#pragma unroll
    for (float& result : sum[r]) result = GroupSumOf(result, inverse);
  }
}

// A thread's part of its block's work on the tile of outputs from first_output and rows from first_row on.
template <typename T, int kWave, bool kWhole>
class QuantisedProjection {
 public:
  __device__ __forceinline__ QuantisedProjection(const ProjectionArgs& p, const ProjectionMatrix& m,
                                                 int32_t first_output, int64_t first_row, typename T::Shared& s)
      : team_(static_cast<int>(threadIdx.x) / T::kTeamLanes),
        lane_(static_cast<int>(threadIdx.x) % T::kTeamLanes),
        x_at_(team_ * T::kXFloats),
        last_block_(((p.features + 31) / 32 - 1) / T::kBlocks * T::kBlocks),
        x_from_(p, first_row),
        s_(s) {
    const PackedMatrix matrix{static_cast<const char*>(m.weight), m.scales};
#pragma unroll
    for (int o = 0; o < T::kLaneOutputs; ++o) {
      // All lanes' outputs are in one tile of the weights. Outputs that do not exist are replaced by the last.
      const int32_t first = first_output + o * T::kTeamLanes;
      const int32_t last = m.outputs - 1;
      const int32_t tile = (first < last ? first : last) / kPackedRows;
      const int32_t output = first + lane_ < last ? first + lane_ : last;
      weights_[o] = PackedRowOf(matrix, p.planes, tile, output, p.features);
    }
  }

  // Writes to LDS, from sums_at on, this lane's sums of groups first + team, first + kTeams + team, ... (kGroups per
  // team); group first + i has kResults sums from sums_at + i * kResults on. All threads of the block call.
  template <int kGroups>
  __device__ __forceinline__ void SumGroups(int32_t first, int sums_at) const {
    float sum[kGroups][T::kRows][T::kLaneOutputs];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) SetZero(sum[g]);
#pragma unroll 1
    for (int stage = 0; stage < T::kGroupStages; ++stage) {
      StageOfX<T, kWave, kWhole> x[kGroups];
      PackedBlocks<T::kFormat, T::kBlocks> blocks[kGroups][T::kLaneOutputs];
      LoadWeights<kGroups>(first, stage, blocks);
      WaitForPriorKernels();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        x[g].Load(x_from_, lane_, Group(first, g) * kGroupFeatures + stage * T::kFeatures);
      }
      WaveBarrier();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) x[g].Store(x_from_, lane_, s_, XAt(g));
      WaveBarrier();
      if constexpr (!T::kNextFirst) {
        if ((first + kGroups * T::kTeams) * kGroupFeatures >= x_from_.features && stage == 0) LetNextKernelBegin();
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if constexpr (T::kRounded) {
          MultiplyRoundedStage<T>(blocks[g], s_, XAt(g), sum[g]);
        } else if constexpr (T::kHalved) {
          const int32_t left = x_from_.features / kHalfBlock - Group(first, g) * T::kBlocks;
          MultiplyHalvedStage<T>(blocks[g], kWhole ? T::kBlocks : left, s_, XAt(g), sum[g]);
        } else {
          MultiplyStage<T>(blocks[g], s_, XAt(g), sum[g]);
        }
      }
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
  // Loads the weights of stage `stage` of each of the team's kGroups groups. A group past the last gets the last
  // weights; its x is zero.
  template <int kGroups>
  __device__ __forceinline__ void LoadWeights(
      int32_t first, int stage, PackedBlocks<T::kFormat, T::kBlocks> (&blocks)[kGroups][T::kLaneOutputs]) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int32_t wanted = Group(first, g) * (kGroupFeatures / 32) + stage * T::kBlocks;
      const int32_t block = wanted < last_block_ ? wanted : last_block_;
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) {
        blocks[g][o] = LoadBlocks<T::kFormat, T::kBlocks, kWhole>(weights_[o], block, x_from_.features);
      }
    }
  }
  __device__ __forceinline__ int32_t Group(int32_t first, int g) const { return first + g * T::kTeams + team_; }
  __device__ __forceinline__ int XAt(int g) const { return x_at_ + g * T::kRows * T::kStageFloats; }

  const int team_, lane_, x_at_;
  const int32_t last_block_;
  const XRows x_from_;
  PackedRow weights_[T::kLaneOutputs];
  typename T::Shared& s_;
};

// Adds the sums of kGroups groups for result number threadIdx.x of the tile, which the teams have put into LDS at
// `sums_at`, to `total`, in group order. Threads without a result do nothing.
template <typename T, int kGroups>
__device__ __forceinline__ void AddSums(typename T::Shared& s, int sums_at, float& total) {
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= T::kResults) return;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) total += s.floats[sums_at + g * T::kResults + mine];
}

template <typename T, int kWave, bool kWhole>
__device__ __forceinline__ void ProjectQuantised(const ProjectionArgs& p, const ProjectionMatrix& m,
                                                 int32_t first_output, int64_t first_row, typename T::Shared& s) {
  const QuantisedProjection<T, kWave, kWhole> projection(p, m, first_output, first_row, s);
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  float total = 0.0f;  // result number threadIdx.x of the tile
  int sums_at = T::kSumsAt;
  // A group past the last has the sum zero (or NaN, if a weight of the row is NaN), which changes no sum that began at
  // zero.
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
      sums_at = 2 * T::kSumsAt + T::kRoundSums - sums_at;  // the other buffer
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

template <typename T, int kWave, bool kWhole>
__global__ __launch_bounds__(T::kThreads,
                             kWave == 32 ? T::kPlaces : T::kWavesOf64) void FewQuantisedKernel(ProjectionArgs p) {
  auto& s = SharedMemory<typename T::Shared>();
  if constexpr (T::kNextFirst) LetNextKernelBegin();
  // For one row there is one row tile: avoids a division, a long chain of instructions before the first load.
  const uint32_t row_tiles = T::kRows == 1 ? 1u : static_cast<uint32_t>(p.row_tiles);
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % row_tiles);
  const int32_t tile = static_cast<int32_t>(blockIdx.x / row_tiles);
  ProjectionMatrix m = p.matrices[0];
#pragma unroll
  for (int i = 1; i < kMaxProjectionsPerLaunch; ++i) {
    if (tile >= p.matrices[i].first_tile) m = p.matrices[i];
  }
  const int64_t first_row = int64_t{row_tile} * T::kRows;
  const int32_t first_output = (tile - m.first_tile) * T::kOutputs;
  ProjectQuantised<T, kWave, kWhole>(p, m, first_output, first_row, s);
}

// Numbers of blocks with tiles T, of blocks that the device runs at once (places), and of rounds in which it runs all.
template <typename T>
struct QuantisedBlocks {
  int64_t blocks, places, rounds;

  QuantisedBlocks(absl::Span<const ProjectionParams> params, const Stream& stream)
      : blocks(OutputTiles(params, T::kOutputs)),
        // With waves of 64, a compute unit is the busier the more blocks it has, so each unit counts as one place.
        places(int64_t{stream.processors} * (stream.wave_width == 32 ? T::kPlaces : 1)),
        rounds(CeilDivide(blocks, places)) {}
  double PartUsed() const { return static_cast<double>(blocks) / static_cast<double>(places * rounds); }

  // Returns, for waves of 32, the time of one row in units of a thread's work on one output and group, measured on an
  // H200. Waiting for a round of loads costs kLatency units; after that a processor's threads share its units.
  double Cost(int32_t features, const Stream& stream) const {
    constexpr double kLatency = 900;
    const int64_t of_processor = std::min<int64_t>(T::kPlaces, CeilDivide(blocks, stream.processors));
    const int64_t group_rounds = CeilDivide(CeilDivide(features, kGroupFeatures), T::kRoundGroups);
    return static_cast<double>(rounds * group_rounds) *
           (kLatency + static_cast<double>(of_processor * T::kThreads * T::kLaneOutputs * T::kAtOnce));
  }
};

template <typename T, int kWave, bool kWhole>
absl::Status LaunchQuantisedTile(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const ProjectionArgs args = MakeProjectionArgs(params, T::kRows, T::kOutputs);
  const Grid grid{.x = args.tiles(), .early = true};
  constexpr const char* kName = T::kRounded  ? "projection_few_int8"
                                : T::kHalved ? "projection_few_half_blocks"
                                             : "projection_few_quantised";
  return Launch(kName, FewQuantisedKernel<T, kWave, kWhole>, grid, T::kThreads, stream, args);
}

// Launches the projection of one row on waves of 32, with the tile of least Cost. Features must be whole groups
// (kGroupFeatures) and AllowsVectors true. 8-bit weights fill the registers with half a group.
template <WeightFormat kFormat>
absl::Status LaunchOneRowOfWaves32(absl::Span<const ProjectionParams> params, const Stream& stream) {
  constexpr bool kBytes = PackedBlocks<kFormat, 1>::kBytes;
  constexpr int kBlocks = kBytes ? 1 : 2;
  using Small = QuantisedTile<kFormat, QuantisedShape{8, 1, 2, 1, kBlocks, 256, 4, false}>;
  using Large = QuantisedTile<kFormat, QuantisedShape{8, 1, 4, 1, kBlocks, 256, kBytes ? 3 : 2, true}>;
  using Deep = QuantisedTile<kFormat, QuantisedShape{8, 1, 2, 1, 2, 512, 2, false}>;
  const auto features = static_cast<int32_t>(params[0].weight.cols);
  const double small = QuantisedBlocks<Small>(params, stream).Cost(features, stream);
  const double large = QuantisedBlocks<Large>(params, stream).Cost(features, stream);
  const double deep = QuantisedBlocks<Deep>(params, stream).Cost(features, stream);
  if (deep < std::min(small, large)) return LaunchQuantisedTile<Deep, 32, true>(params, stream);
  const bool takes_large = kBytes ? large < small : large <= small;
  return takes_large ? LaunchQuantisedTile<Large, 32, true>(params, stream)
                     : LaunchQuantisedTile<Small, 32, true>(params, stream);
}

// Launches the projection of up to kRows rows with teams of 16 or 8 lanes; features as for LaunchOneRowOfWaves32. Teams
// of 8 take half the outputs. They are used only if that uses over 15% more of the device, because each block reads x
// again.
template <template <WeightFormat, QuantisedShape> typename Tile, WeightFormat kFormat, int kRows, int kWave>
absl::Status LaunchQuantisedRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  constexpr int kOutputs = kRows <= 2 ? 1 : 2;
  constexpr int kBlocks = kRows <= 2 ? 2 : 1;
  constexpr int kAtOnce = kRows == 1 ? 2 : 1;
  constexpr int kPlaces = kRows <= 2 ? 3 : 2;
  using Wide = Tile<kFormat, QuantisedShape{16, kRows, kOutputs, kAtOnce, kBlocks, 256, kPlaces, false}>;
  using Narrow = Tile<kFormat, QuantisedShape{8, kRows, kOutputs, kAtOnce, kBlocks, 256, kPlaces, false}>;
  const double wide = QuantisedBlocks<Wide>(params, stream).PartUsed();
  if (QuantisedBlocks<Narrow>(params, stream).PartUsed() > 1.15 * wide) {
    return LaunchQuantisedTile<Narrow, kWave, true>(params, stream);
  }
  return LaunchQuantisedTile<Wide, kWave, true>(params, stream);
}

// Launches the projection for one to kFewRows rows. `params` must be as for MakeProjectionArgs, with weights of
// kFormat.
template <WeightFormat kFormat>
absl::Status LaunchFewQuantisedRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const bool whole = AllowsVectors(params) && params[0].weight.cols % kGroupFeatures == 0;
  const int64_t rows = params[0].rows;
  return WithWaveWidth(stream, "projection_few_quantised", [&](auto wave) {
    constexpr int kWave = wave();
    if (!whole) {
      using Any = QuantisedTile<kFormat, QuantisedShape{16, 4, 2, 1, 1, 256, 2, false}>;
      return LaunchQuantisedTile<Any, kWave, false>(params, stream);
    }
    if (rows == 1) {
      if constexpr (kWave == 32) {
        return LaunchOneRowOfWaves32<kFormat>(params, stream);
      } else {
        return LaunchQuantisedRows<QuantisedTile, kFormat, 1, kWave>(params, stream);
      }
    }
    if (rows == 2) return LaunchQuantisedRows<QuantisedTile, kFormat, 2, kWave>(params, stream);
    if (rows <= 4) return LaunchQuantisedRows<QuantisedTile, kFormat, 4, kWave>(params, stream);
    return LaunchQuantisedRows<QuantisedTile, kFormat, 8, kWave>(params, stream);
  });
}

// Does the same with x rounded to int8.
template <WeightFormat kFormat>
absl::Status LaunchFewInt8Rows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const bool whole = AllowsVectors(params) && params[0].weight.cols % kGroupFeatures == 0;
  const int64_t rows = params[0].rows;
  return WithWaveWidth(stream, "projection_few_int8", [&](auto wave) {
    constexpr int kWave = wave();
    if (!whole) {
      using Any = RoundedTile<kFormat, QuantisedShape{16, 4, 2, 1, 1, 256, 2, false}>;
      return LaunchQuantisedTile<Any, kWave, false>(params, stream);
    }
    // Teams of 8 lanes would round x for fewer outputs, which mostly costs more than idle processors.
    if (rows == 1) {
      using One = RoundedTile<kFormat, QuantisedShape{16, 1, 1, 2, 2, 256, 3, false}>;
      return LaunchQuantisedTile<One, kWave, true>(params, stream);
    }
    if (rows <= 4) return LaunchQuantisedRows<RoundedTile, kFormat, 4, kWave>(params, stream);
    using Eight = RoundedTile<kFormat, QuantisedShape{16, 8, 2, 1, 1, 256, 2, false}>;
    return LaunchQuantisedTile<Eight, kWave, true>(params, stream);
  });
}

// Does the same with x rounded to fp16, for formats that HasHalfProducts.
template <WeightFormat kFormat>
absl::Status LaunchFewHalfBlocksOf(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const bool whole = AllowsVectors(params) && params[0].weight.cols % kGroupFeatures == 0;
  const int64_t rows = params[0].rows;
  return WithWaveWidth(stream, "projection_few_half_blocks", [&](auto wave) {
    constexpr int kWave = wave();
    using Four = HalvedTile<kFormat, QuantisedShape{16, 4, 2, 1, 2, 256, 2, false}>;
    if (!whole) return LaunchQuantisedTile<Four, kWave, false>(params, stream);
    if (rows == 1) {
      using One = HalvedTile<kFormat, QuantisedShape{16, 1, 1, 2, 2, 256, 3, false}>;
      return LaunchQuantisedTile<One, kWave, true>(params, stream);
    }
    if (rows <= 4) return LaunchQuantisedTile<Four, kWave, true>(params, stream);
    using Eight = HalvedTile<kFormat, QuantisedShape{16, 8, 2, 1, 2, 256, 2, false}>;
    return LaunchQuantisedTile<Eight, kWave, true>(params, stream);
  });
}

}  // namespace gdn::gpu
