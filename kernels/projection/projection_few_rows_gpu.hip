// y = x W^T for few rows on the GPU: decode.
//
// Order of a sum: projection_args.h.
// Threads: a team of 16 or 8 lanes computes a group of features for its tile's outputs, one or two to a lane, and
// kRows rows; the block's teams take neighbouring groups. Weights arrive as the matrix lies, 32 or 64 bytes of an
// output side by side, and pass through LDS so that a lane finds its own outputs' features in order; the next stage's
// loads are on their way meanwhile. x lies beside them, read by all lanes at once. When all teams are through with a
// group each, their sums are added in the groups' order. The row tile is the fastest grid index: tiles that want the
// same weights run at about the same time and find them in the L2 cache. Weights are no other kernel's work: where
// kernels overlap, they are on their way before the kernel before has ended.
// Products of fp16 numbers: a team loads a whole group of x at once and rounds it. Half of it is in LDS at a time.
// Resources: up to 32 KB of LDS, two blocks a compute unit; no barrier of the block within a group. Bound by memory.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/half_inputs_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/thread_tile-inl.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 256;

template <typename ElementsOfWeights, int kLanesOfTeam, int kRowsOfTile>
struct Tile {
  static constexpr bool kPairs = false;
  static constexpr int kParts = 1;
  using Weights = ElementsOfWeights;
  static constexpr int kTeamLanes = kLanesOfTeam;
  static constexpr int kTeams = kThreads / kTeamLanes;
  static constexpr int kRows = kRowsOfTile;
  // With many rows each value of x that is read from LDS serves two outputs.
  static constexpr int kLaneOutputs = kRows <= 2 ? 1 : 2;
  static constexpr int kOutputs = kTeamLanes * kLaneOutputs;
  // A stage: neighbouring features of each output, kVectors times eight of them.
  static constexpr int kElementBytes = static_cast<int>(sizeof(typename Weights::Element));
  static constexpr int kFeatures = 64 / kLaneOutputs / kElementBytes;
  static constexpr int kVectors = kFeatures / kWeightVector;
  static constexpr int kQuads = kFeatures / 4;
  static constexpr int kGroupStages = kGroupFeatures / kFeatures;
  static constexpr int kRawFloats = kWeightVector * kElementBytes / 4;
  static constexpr int kWeightLoads = kOutputs * kVectors / kTeamLanes;
  static constexpr int kXLoads = (kRows * kQuads + kTeamLanes - 1) / kTeamLanes;
  // LDS of a team.
  static constexpr int kOutputFloats = kVectors * kRawFloats;
  static constexpr int kOutputParts = kOutputFloats / 4;  // of 16 bytes
  static constexpr int kWeightFloats = kOutputs * kOutputFloats;
  static constexpr int kXFloats = kRows * kFeatures + 4;  // the gap: teams of a wave read different banks

  struct Shared {
    LdsArray<float, kTeams * kWeightFloats> w;
    LdsArray<float, kTeams * kXFloats> x;
  };
  // A lane's share of a stage, between memory and LDS.
  struct Stage {
    typename Weights::Raw w[kWeightLoads];
    Vec4 x[kXLoads];
  };
};

// The same with pairs of fp16 numbers: half a group of x lies in LDS, as words of two features.
template <typename, int kLanesOfTeam, int kRowsOfTile>
struct HalfTile : Tile<ScaledHalves, kLanesOfTeam, kRowsOfTile> {
  using Base = Tile<ScaledHalves, kLanesOfTeam, kRowsOfTile>;
  static constexpr bool kPairs = true;
  static constexpr int kXLoads = kGroupFeatures / 4 / Base::kTeamLanes;  // of a row, a quad each
  static constexpr int kParts = 2;                                       // of a group, which are in LDS one by one
  static constexpr int kRowWords = kHalfPairs / 2;
  static constexpr int kXFloats = Base::kRows * kRowWords + 4;
  static_assert(kHalfGroup == kGroupFeatures && Base::kGroupStages % kParts == 0);

  struct Shared {
    LdsArray<float, Base::kTeams * Base::kWeightFloats> w;
    LdsArray<float, Base::kTeams * kXFloats> x;
  };
  struct Stage {
    ScaledHalves::Raw w[Base::kWeightLoads];
  };
  // A lane's share of a group of x, as memory has it, and rounded with the inverses of the rows' scales.
  struct RawGroup {
    Vec4 x[Base::kRows][kXLoads];
  };
  struct Group {
    uint32_t words[Base::kRows][kXLoads][2];
    float inverses[Base::kRows];
  };
};

template <typename T, int kWave, bool kVector>
class Team {
 public:
  using Weights = typename T::Weights;
  using Stage = typename T::Stage;
  static constexpr int kRows = T::kRows;
  static constexpr int kTeamLanes = T::kTeamLanes;

  __device__ __forceinline__ Team(const ProjectionArgs& p, const ProjectionMatrix& m, int32_t first_output,
                                  int64_t first_row, typename T::Shared& s)
      : x_from_(p, first_row),
        weights_(static_cast<const typename Weights::Element*>(m.weight)),
        row_scales_(m.scales),
        last_output_(m.outputs - 1),
        first_output_(first_output),
        s_(s) {}

  // Features [feature, feature + kFeatures); zeros past the last.
  __device__ __forceinline__ void Load(int32_t feature, Stage& stage) const {
#pragma unroll
    for (int i = 0; i < T::kWeightLoads; ++i) {
      const int index = Lane() + i * kTeamLanes;
      const int32_t output = first_output_ + index / T::kVectors;
      const int32_t f = feature + index % T::kVectors * kWeightVector;
      const auto* row = weights_ + int64_t{output < last_output_ ? output : last_output_} * x_from_.features;
      stage.w[i] = LoadEight<Weights, kVector>(row + f, x_from_.features - f);
    }
    WaitForPriorKernels();
    if constexpr (!T::kPairs) {
#pragma unroll
      for (int i = 0; i < T::kXLoads; ++i) {
        const int index = Lane() + i * kTeamLanes;
        if (index >= kRows * T::kQuads) break;
        stage.x[i] = x_from_.Load<kVector>(index / T::kQuads, feature + index % T::kQuads * 4);
      }
    }
  }

  __device__ __forceinline__ void Store(const Stage& stage) const {
#pragma unroll
    for (int i = 0; i < T::kWeightLoads; ++i) {
      const int index = Lane() + i * kTeamLanes;
      const auto* raw = reinterpret_cast<const Vec4*>(&stage.w[i]);
#pragma unroll
      for (int j = 0; j < kRawParts; ++j) {
        s_.w.Store4(PartAt(index / T::kVectors, index % T::kVectors * kRawParts + j), raw[j]);
      }
    }
    if constexpr (!T::kPairs) {
#pragma unroll
      for (int i = 0; i < T::kXLoads; ++i) {
        const int index = Lane() + i * kTeamLanes;
        if (index >= kRows * T::kQuads) break;
        s_.x.Store4(XAt() + index * 4, x_from_.Widen(stage.x[i]));
      }
    }
  }

  // Pairs only. LoadGroup loads x of the group of features from `feature` on, zeros past the last. RoundGroup rounds
  // it. StoreGroup stores its first or second half to LDS.
  template <typename RawGroup>
  __device__ __forceinline__ void LoadGroup(int32_t feature, RawGroup& raw) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < T::kXLoads; ++i) {
        raw.x[r][i] = x_from_.Load<kVector>(r, feature + (Lane() + i * kTeamLanes) * 4);
      }
    }
  }
  template <typename RawGroup, typename Group>
  __device__ __forceinline__ void RoundGroup(const RawGroup& raw, Group& group) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Vec4 x[T::kXLoads];
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < T::kXLoads; ++i) {
        x[i] = x_from_.Widen(raw.x[r][i]);
        largest = LargestFinite(x[i], largest);
      }
      const GroupScale scale = GroupScaleOf<kTeamLanes, kWave>(largest);
      group.inverses[r] = scale.inverse;
#pragma unroll
      for (int i = 0; i < T::kXLoads; ++i) {
        group.words[r][i][0] = HalvesOf(x[i].x, x[i].y, scale.scale);
        group.words[r][i][1] = HalvesOf(x[i].z, x[i].w, scale.scale);
      }
    }
  }
  template <typename Group>
  __device__ __forceinline__ void StoreGroup(const Group& group, int half) const {
    const int word = Lane() * 2;
    if (T::kXLoads == 1 && word / T::kRowWords != half) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto& words = group.words[r][T::kXLoads == 1 ? 0 : half];
      const int at = XAt() + r * T::kRowWords + word % T::kRowWords;
      s_.x[at] = BitsToFloat(words[0]);
      s_.x[at + 1] = BitsToFloat(words[1]);
    }
  }
  // Returns the factor of a lane's output's weights.
  __device__ __forceinline__ float InverseOfLane(int lane_output) const {
    const int32_t output = first_output_ + Lane() + lane_output * kTeamLanes;
    return InverseOf(row_scales_[output < last_output_ ? output : last_output_]);
  }
  // sum[r][o] += the products of stage `stage` of the half group in LDS, in order.
  __device__ __forceinline__ void MultiplyPairs(int stage, float (&sum)[kRows][T::kLaneOutputs]) const {
#pragma unroll kRows <= 2 ? T::kVectors : 1
    for (int v = 0; v < T::kVectors; ++v) {
      Vec4 w[T::kLaneOutputs];
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) w[o] = LoadRaw(o, v).bits;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Vec4 x = s_.x.Load4(XAt() + r * T::kRowWords + (stage * T::kVectors + v) * (kWeightVector / 2));
#pragma unroll
        for (int o = 0; o < T::kLaneOutputs; ++o) {
          sum[r][o] = Dot2(FloatToBits(x.x), FloatToBits(w[o].x), sum[r][o]);
          sum[r][o] = Dot2(FloatToBits(x.y), FloatToBits(w[o].y), sum[r][o]);
          sum[r][o] = Dot2(FloatToBits(x.z), FloatToBits(w[o].z), sum[r][o]);
          sum[r][o] = Dot2(FloatToBits(x.w), FloatToBits(w[o].w), sum[r][o]);
        }
      }
    }
  }

  // sum[r][o] += the stage's products, in order. `inverses`: InverseOfLane, of ScaledHalves.
  __device__ __forceinline__ void Multiply(const float (&inverses)[T::kLaneOutputs],
                                           float (&sum)[kRows][T::kLaneOutputs]) const {
#pragma unroll kRows <= 2 ? T::kVectors : 1  // more would take more registers than there are
    for (int v = 0; v < T::kVectors; ++v) {
      float w[T::kLaneOutputs][kWeightVector];
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) WidenScaled<Weights>(LoadRaw(o, v), inverses[o], w[o]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float x[kWeightVector];
        Unpack4(s_.x.Load4(XAt() + r * T::kFeatures + v * kWeightVector), x);
        Unpack4(s_.x.Load4(XAt() + r * T::kFeatures + v * kWeightVector + 4), x + 4);
#pragma unroll
        for (int o = 0; o < T::kLaneOutputs; ++o) {
#pragma unroll
          for (int i = 0; i < kWeightVector; ++i) sum[r][o] = fmaf(x[i], w[o][i], sum[r][o]);
        }
      }
    }
  }

  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x) % kTeamLanes; }
  __device__ __forceinline__ static int Index() { return static_cast<int>(threadIdx.x) / kTeamLanes; }

 private:
  // Reads eight weights, number `vector` of the stage, of the lane's output `o` from LDS.
  __device__ __forceinline__ typename Weights::Raw LoadRaw(int o, int vector) const {
    typename Weights::Raw raw;
    auto* parts = reinterpret_cast<Vec4*>(&raw);
#pragma unroll
    for (int j = 0; j < kRawParts; ++j) {
      parts[j] = s_.w.Load4(PartAt(Lane() + o * kTeamLanes, vector * kRawParts + j));
    }
    return raw;
  }
  // Returns where 16 bytes of an output's stage lie. Parts take turns from output to output, so that those of one
  // number and of eight neighbouring outputs lie in different banks.
  __device__ __forceinline__ static int PartAt(int output, int part) {
    const int turn = output / (8 / T::kOutputParts) % T::kOutputParts;
    return Index() * T::kWeightFloats + output * T::kOutputFloats + (part ^ turn) * 4;
  }
  static constexpr int kRawParts = T::kRawFloats / 4;
  __device__ __forceinline__ static int XAt() { return Index() * T::kXFloats; }

  const XRows x_from_;
  const typename Weights::Element* weights_;
  const float* row_scales_;
  const int32_t last_output_;
  const int32_t first_output_;
  typename T::Shared& s_;
};

// What a thread keeps for pairs beside the sums; nothing for float32.
template <typename T, bool kPairs = T::kPairs>
struct PairsOf {};
template <typename T>
struct PairsOf<T, true> {
  typename T::RawGroup raw;
  typename T::Group group;
};

template <typename T, int kWave, bool kVector>
__device__ __forceinline__ void Project(const ProjectionArgs& p, const ProjectionMatrix& m, int32_t first_output,
                                        int64_t first_row, typename T::Shared& s) {
  constexpr int kRows = T::kRows;
  constexpr int kTeamLanes = T::kTeamLanes;
  constexpr int kTeams = T::kTeams;
  constexpr int kResults = kRows * T::kOutputs;
  static_assert(kResults <= kThreads && kTeams * kResults <= kTeams * T::kWeightFloats);
  const Team<T, kWave, kVector> team(p, m, first_output, first_row, s);
  const int mine = static_cast<int>(threadIdx.x);
  const int team_index = mine / kTeamLanes;
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  const auto first_feature = [team_index](int32_t round) { return (round * kTeams + team_index) * kGroupFeatures; };
  typename T::Stage ahead;
  team.Load(first_feature(0), ahead);
  [[maybe_unused]] PairsOf<T> pairs;
  if constexpr (T::kPairs) team.LoadGroup(first_feature(0), pairs.raw);
  float inverses[T::kLaneOutputs];
#pragma unroll
  for (int o = 0; o < T::kLaneOutputs; ++o) {
    inverses[o] = kScaled<typename T::Weights> && !T::kPairs ? team.InverseOfLane(o) : 1.0f;
  }
  float total = 0.0f;  // of the tile's result number `mine`
  for (int32_t round = 0; round * kTeams < groups; ++round) {
    float sum[kRows][T::kLaneOutputs];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) sum[r][o] = 0.0f;
    }
    if constexpr (T::kPairs) team.RoundGroup(pairs.raw, pairs.group);
    constexpr int kStages = T::kGroupStages / T::kParts;
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) {
      if constexpr (T::kPairs) {
        WaveBarrier();
        team.StoreGroup(pairs.group, part);
        if (part + 1 == T::kParts) team.LoadGroup(first_feature(round + 1), pairs.raw);
      }
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage) {
        WaveBarrier();
        team.Store(ahead);
        WaveBarrier();
        const int next = part * kStages + stage + 1;
        const bool last = next == T::kGroupStages;
        team.Load(last ? first_feature(round + 1) : first_feature(round) + next * T::kFeatures, ahead);
        if (last && (round + 1) * kTeams >= groups) LetNextKernelBegin();
        if constexpr (T::kPairs) {
          team.MultiplyPairs(stage, sum);
        } else {
          team.Multiply(inverses, sum);
        }
      }
    }
    if constexpr (T::kPairs) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int o = 0; o < T::kLaneOutputs; ++o) sum[r][o] *= pairs.group.inverses[r];
      }
    }
    SyncThreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int o = 0; o < T::kLaneOutputs; ++o) {
        s.w[(team_index * kRows + r) * T::kOutputs + mine % kTeamLanes + o * kTeamLanes] = sum[r][o];
      }
    }
    SyncThreads();
    if (mine < kResults) {
#pragma unroll
      for (int t = 0; t < kTeams; ++t) {
        if (round * kTeams + t < groups) total += s.w[t * kResults + mine];
      }
    }
    SyncThreads();
  }
  const int64_t row = first_row + mine / T::kOutputs;
  const int32_t output = first_output + mine % T::kOutputs;
  if (mine < kResults && row < p.rows && output < m.outputs) {
    if constexpr (T::kPairs) total = OutputOf(total, m.scales[output]);
    StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total);
  }
}

// Blocks that a multiprocessor's registers are to hold, on waves of 32.
template <typename T>
inline constexpr int kBlocks32 = T::kRows == 1 && sizeof(typename T::Weights::Element) == 2 ? 4
                                 : T::kRows <= 2                                            ? 3
                                                                                            : 2;

template <typename T, int kWave, bool kVector>
__global__ __launch_bounds__(kThreads, kWave == 32 ? kBlocks32<T> : 1) void FewRowsKernel(ProjectionArgs p) {
  auto& s = SharedMemory<typename T::Shared>();
  // Of one row there is one tile; a division is a long chain of instructions before the first load.
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
  Project<T, kWave, kVector>(p, m, first_output, first_row, s);
}

template <typename T, bool kVector>
absl::Status LaunchTile(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const ProjectionArgs args = MakeProjectionArgs(params, T::kRows, T::kOutputs);
  return WithWaveWidth(stream, "projection_few_rows", [&](auto wave) {
    const Grid grid{.x = args.tiles(), .early = true};
    return Launch("projection_few_rows", FewRowsKernel<T, wave(), kVector>, grid, kThreads, stream, args);
  });
}

// Which part of the places for blocks tiles of T use, in whole rounds.
template <typename T>
double PartUsed(absl::Span<const ProjectionParams> params, const Stream& stream) {
  const int64_t places = int64_t{stream.processors} * (stream.wave_width == 32 ? kBlocks32<T> : 2);
  const int64_t blocks = OutputTiles(params, T::kOutputs);
  return static_cast<double>(blocks) / static_cast<double>(places * CeilDivide(blocks, places));
}

// Teams of eight lanes take half the outputs, where that leaves much fewer places idle; each block reads x anew, which
// costs more where few blocks are at work (docs/evidence/mi50-model.md).
template <template <typename, int, int> class TileOf, typename Weights, int kRows>
absl::Status LaunchRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  using Wide = TileOf<Weights, 16, kRows>;
  using Narrow = TileOf<Weights, 8, kRows>;
  if constexpr (Wide::kPairs && kRows == 8) {  // teams of eight lanes have no registers for the rows' groups
    return LaunchTile<Wide, true>(params, stream);
  } else {
    const double enough = stream.wave_width == 32 ? 1.2 : 1.5;
    const bool narrow = PartUsed<Narrow>(params, stream) > enough * PartUsed<Wide>(params, stream);
    return narrow ? LaunchTile<Narrow, true>(params, stream) : LaunchTile<Wide, true>(params, stream);
  }
}

template <template <typename, int, int> class TileOf, typename Weights>
absl::Status LaunchFew(absl::Span<const ProjectionParams> params, const Stream& stream) {
  if (!AllowsVectors(params)) return LaunchTile<TileOf<Weights, 16, 4>, false>(params, stream);
  const int64_t rows = params[0].rows;
  if (rows == 1) return LaunchRows<TileOf, Weights, 1>(params, stream);
  if (rows == 2) return LaunchRows<TileOf, Weights, 2>(params, stream);
  if (rows <= 4) return LaunchRows<TileOf, Weights, 4>(params, stream);
  return LaunchRows<TileOf, Weights, 8>(params, stream);
}

}  // namespace

absl::Status LaunchFewRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return WithWeights(params[0].weight,
                     [&](auto weights) { return LaunchFew<Tile, decltype(weights)>(params, stream); });
}

absl::Status LaunchFewHalfRows(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return LaunchFew<HalfTile, ScaledHalves>(params, stream);
}

}  // namespace gdn::gpu
