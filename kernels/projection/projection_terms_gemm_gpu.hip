// y = x W^T on matrix units, of operands in bfloat16 terms: on NVIDIA prefills and, with BF16 weights, larger decodes.
//
// Order of a sum: bf16_terms_gpu.h.
// Threads: a team is four waves. W is the matrix unit's A, 64 outputs a team; x^T is its B, so a row's sums do not
// depend on its neighbours. Stages pass through LDS by copies that run ahead by all stages but one.
// One to three teams share a tile's outputs; totals are in registers. Multiprocessors hold several blocks of one team,
// because a team waits for its copies, units and barriers most of the time.
// A decode's parts may have blocks of their own, because its tiles alone would leave processors idle or draw more from
// the L2 cache: the block of a tile that ends last adds what the others have kept in memory.
// Resources: 55 to 227 KB of LDS a block; three registers a sum, for the group's, the part's and the total. Bound by
// the L2 cache for one term each, else by matrix units.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/gpu/launch.h"
#include "kernels/gpu/mma_tile.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/terms_stages_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kWave = 32;
constexpr int kTeamThreads = 4 * kWave;
constexpr int kTeamOutputs = 64;

// Tiles of 64 kTeams outputs x kRowsOfTile rows, kBlocks blocks a multiprocessor.
template <int kTermsOfX, int kTermsOfW, int kTeamsOfBlock, int kRowsOfTile, int kBlocks>
struct Tile {
  static constexpr int kXTerms = kTermsOfX;
  static constexpr int kWTerms = kTermsOfW;
  static constexpr int kProducts = kXTerms * kWTerms == 9 ? 6 : kXTerms * kWTerms;  // of terms
  static constexpr int kTeams = kTeamsOfBlock;
  static constexpr int kGroups = 1;
  static constexpr int kThreads = kTeams * kTeamThreads;
  static constexpr int kGroupThreads = kThreads;
  static constexpr int kOutputs = kTeams * kTeamOutputs;
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kResident = kBlocks;
  static constexpr int kBs = kRows / 8;
  static constexpr int kResults = kOutputs * kRows;
  static constexpr bool kKeepsAddresses = kRows <= 64;          // else those of all rows would occupy registers
  static constexpr bool kAddsParts = kTeams * kRows < 3 * 128;  // else registers hold the sums of one part only

  static constexpr int kWRows = kWTerms * kOutputs;  // of a stage: W's, term after term, then x's
  static constexpr int kStageRows = kWRows + kXTerms * kRows;
  static constexpr int kStageFloats = kStageRows * kTileRowFloats;
  static constexpr int kStagesThatFit = (LdsFloatsOfBlock(kBlocks) - 4) / kStageFloats;
  static constexpr int kStages = kStagesThatFit < 5 ? kStagesThatFit : 5;
  static_assert(kStages >= 2);
  static constexpr int kStagesFloats = kStages * kStageFloats;
  using Lds = LdsArray<float, kStagesFloats>;
  struct Shared {
    Lds floats;
    LdsArray<uint32_t, 4> arrived;
  };
};

// A wave's sums, of 16 outputs by the tile's rows, as MmaTileBf16 has them.
template <typename T>
using Sums = float[T::kBs][4];

// Issues the products of a stage, in order. `team`: the number of the team.
template <typename T>
__device__ __forceinline__ void MultiplyGroup(typename T::Lds& lds, int at, int team, Sums<T>& sums) {
#pragma unroll
  for (int small = 2; small >= 0; --small) {
#pragma unroll
    for (int of_w = 0; of_w <= small; ++of_w) {
      const int of_x = small - of_w;
      if (of_w >= T::kWTerms || of_x >= T::kXTerms) continue;
      const bool first = small == min(2, T::kWTerms + T::kXTerms - 2) && of_w == max(0, small - T::kXTerms + 1);
      MmaTileBf16<kWave>(sums, lds, at + (of_w * T::kOutputs + team * kTeamOutputs) * kTileRowFloats,
                         at + (T::kWRows + of_x * T::kRows) * kTileRowFloats, /*add=*/!first);
    }
  }
}

// Calls function(row, output, j, k) for each sum [j][k] of the lane, whose place in the tile is (row, output).
template <typename T, typename Function>
__device__ __forceinline__ void ForEachSum(const Function& function) {
  const int lane = static_cast<int>(threadIdx.x) % kWave;
  const int output = static_cast<int>(threadIdx.x) / kWave * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) function(j * 8 + lane % 4 * 2 + k % 2, output + k / 2 * 8, j, k);
  }
}

// A lane's totals of the places of its sums.
template <typename T>
class Totals {
 public:
  __device__ __forceinline__ void Add(const Sums<T>& sums) {
#pragma unroll
    for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) of_part_[j][k] += sums[j][k];
    }
  }
  __device__ __forceinline__ void EndPart() {
    if constexpr (T::kAddsParts) {
#pragma unroll
      for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          totals_[j][k] += of_part_[j][k];
          of_part_[j][k] = 0.0f;
        }
      }
    }
  }
  __device__ __forceinline__ void Keep(float* to) const {
#pragma unroll
    for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) to[(j * 4 + k) * T::kThreads + threadIdx.x] = Places()[j][k];
    }
  }
  __device__ __forceinline__ void AddKept(const float* from, int parts, int own) {
    constexpr int kAtOnce = T::kBs < 4 ? T::kBs : 4;
#pragma unroll
    for (int first = 0; first < T::kBs; first += kAtOnce) {
      float totals[kAtOnce][4] = {};
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        const float* const kept = from + part * T::kResults + first * 4 * T::kThreads + threadIdx.x;
#pragma unroll
        for (int i = 0; i < kAtOnce * 4; ++i) {
          totals[i / 4][i % 4] += part == own ? Places()[first + i / 4][i % 4] : LoadFromBlocks(kept + i * T::kThreads);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce * 4; ++i) Places()[first + i / 4][i % 4] = totals[i / 4][i % 4];
    }
  }
  __device__ __forceinline__ void Store(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                        int32_t first_output) const {
    ForEachSum<T>([&](int row, int output, int j, int k) {
      StoreTotal(p, m, first_row + row, first_output + output, Places()[j][k]);
    });
  }

 private:
  // The sums of all parts; of the only one if there is one.
  __device__ __forceinline__ Sums<T>& Places() { return T::kAddsParts ? totals_ : of_part_; }
  __device__ __forceinline__ const Sums<T>& Places() const { return T::kAddsParts ? totals_ : of_part_; }

  Sums<T> of_part_ = {};
  Sums<T> totals_ = {};
};

// Returns true if the block shall store its totals. If its tile's parts have blocks of their own, that is the block
// which ends last, and its totals are the sums of all parts then. `number`: the tile's.
template <typename T>
__device__ __forceinline__ bool SumOfBlocks(const TermsArgs& args, uint32_t number, Totals<T>& totals,
                                            LdsArray<uint32_t, 4>& lds) {
  const auto parts = static_cast<int>(gridDim.y);
  if (parts == 1) return true;
  float* const kept = args.part_sums + uint64_t{number} * parts * T::kResults;
  totals.Keep(kept + blockIdx.y * T::kResults);
  ShowToBlocks();
  SyncThreads();
  if (threadIdx.x == 0) {
    lds[0] = ArriveAt(args.p.counters + number);
    if (lds[0] + 1 == gridDim.y) StoreForBlocks(args.p.counters + number, 0);
  }
  SyncThreads();
  if (lds[0] + 1 != gridDim.y) return false;
  totals.AddKept(kept, parts, static_cast<int>(blockIdx.y));
  return true;
}

template <typename T>
__global__ __launch_bounds__(T::kThreads, T::kResident) void TermsGemmKernel(TermsArgs args) {
  const ProjectionArgs& p = args.p;
  auto& s = LaunchedSharedMemory<typename T::Shared>();
  // Row tiles are the fastest index: those that run together read the same weights.
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  const ProjectionMatrix m = MatrixOfTile(p, tile);
  const int64_t first_row = int64_t{row_tile} * T::kRows;
  const int32_t first_output = (tile - m.first_tile) * T::kOutputs;
  const int team = static_cast<int>(threadIdx.x) / kTeamThreads;
  const GroupRange groups(args);

  Stages<T> stages(args, m, first_output, first_row, groups, s.floats);
  stages.Begin();
  Totals<T> totals;
  int32_t left = args.part_groups;  // of the part
  int at = 0;
#pragma unroll 1
  for (int32_t group = 0; group < groups.count; ++group) {
    WaitForCopies<T::kStages - 2>();
    ShowCopiesToTileUnits();
    SyncThreads();  // the group is there, and nobody reads the one before it
    Sums<T> sums;
    MultiplyGroup<T>(s.floats, at, team, sums);
    stages.Copy(group + T::kStages - 1, (at == 0 ? T::kStagesFloats : at) - T::kStageFloats);
    if (group + T::kStages >= groups.count) LetNextKernelBegin();
    WaitForTile(sums);
    totals.Add(sums);
    if (--left == 0) {
      totals.EndPart();
      left = args.part_groups;
    }
    at += T::kStageFloats;
    if (at == T::kStagesFloats) at = 0;
  }
  totals.EndPart();
  if (SumOfBlocks<T>(args, blockIdx.x, totals, s.arrived)) totals.Store(p, m, first_row, first_output);
}

// How long parts of the work take on an H200, in ns. They fit its times of two projections of 16 to 2,048 rows: of 44
// cases, the tile that they choose took 5% longer than the fastest on average, and 32% longer at most.
constexpr int64_t kBeginTime = 2200;  // of a block, until its first stage is there
constexpr int64_t kGroupTime = 140;   // of a group, besides its products
constexpr int64_t kSumTime = 3700;    // of parts that have blocks of their own, besides their sums
// Bytes a ns that a multiprocessor reads; alone, a block waits for its barriers most of the time.
template <typename T>
[[maybe_unused]] constexpr int64_t kBandwidth = T::kResident == 1 ? 54 : 97;
// The time of a group's products: the units take as long for no rows as for 16.
template <typename T>
[[maybe_unused]] constexpr int64_t kProductsTime = (T::kRows + 16) * (T::kTeams * T::kProducts) * 29 / 20;

// How a call is done.
struct Plan {
  int64_t time = std::numeric_limits<int64_t>::max();
  int64_t part_sums = 0;  // floats
  absl::Status (*launch)(absl::Span<const ProjectionParams>, TermsArgs, int64_t parts, const Stream&) = nullptr;
  int64_t parts = 1;  // blocks a tile
};

template <typename T>
absl::Status LaunchTile(absl::Span<const ProjectionParams> params, TermsArgs args, int64_t parts,
                        const Stream& stream) {
  args.p = MakeProjectionArgs(params, T::kRows, T::kOutputs);
  args.p.counters = stream.counters;
  const Grid grid{.x = args.p.tiles(), .y = parts, .early = true, .lds_bytes = sizeof(typename T::Shared)};
  return Launch("projection_terms_gemm", TermsGemmKernel<T>, grid, T::kThreads, stream, args);
}

template <typename T>
void Consider(absl::Span<const ProjectionParams> params, bool may_split, const Stream& stream, Plan& best) {
  const int64_t tiles = OutputTiles(params, T::kOutputs) * CeilDivide(params[0].rows, T::kRows);
  const int64_t groups = CeilDivide(params[0].weight.cols, kGroupFeatures);
  const int64_t all_parts = CeilDivide(groups, PartGroups(params[0].path));
  for (const int64_t parts : {int64_t{1}, all_parts}) {
    if (parts == 1 && all_parts > 1 && !T::kAddsParts) continue;
    if (parts > 1 && (!may_split || tiles > kStreamCounters)) continue;
    const int64_t part_sums = parts == 1 ? 0 : tiles * parts * T::kResults;
    if (part_sums > kMostPartSums) continue;
    // Blocks of a multiprocessor run at the same time.
    const auto time_of = [&](int64_t blocks) {
      const int64_t group = std::max(
          {kGroupTime + kProductsTime<T>, blocks * kProductsTime<T>, blocks * T::kStageFloats * 4 / kBandwidth<T>});
      return blocks == 0 ? 0 : kBeginTime + CeilDivide(groups, parts) * group;
    };
    const int64_t at_once = int64_t{stream.processors} * T::kResident;
    const int64_t blocks = tiles * parts;
    int64_t time = blocks / at_once * time_of(T::kResident) + time_of(CeilDivide(blocks % at_once, stream.processors));
    if (parts > 1) time += kSumTime + part_sums * 26 / (int64_t{stream.processors} * kBandwidth<T>);
    if (time < best.time) best = {time, part_sums, LaunchTile<T>, parts};
  }
}

template <int kXTerms, int kWTerms>
Plan Fastest(absl::Span<const ProjectionParams> params, bool may_split, const Stream& stream) {
  Plan best;
  const auto consider = [&]<typename... T>(std::type_identity<T>...) {
    (Consider<T>(params, may_split, stream, best), ...);
  };
  consider(std::type_identity<Tile<kXTerms, kWTerms, 1, 64, 2>>());
  if constexpr (kXTerms * kWTerms < 9) {  // nine would leave LDS for two stages only
    consider(std::type_identity<Tile<kXTerms, kWTerms, 2, 128, 1>>());
  }
  if constexpr (kWTerms == 1) {  // more would leave LDS for one stage only
    consider(std::type_identity<Tile<kXTerms, 1, 1, 16, 3>>(), std::type_identity<Tile<kXTerms, 1, 1, 32, 2>>(),
             std::type_identity<Tile<kXTerms, 1, 2, 32, 2>>(),
             std::type_identity<Tile<kXTerms, 1, 2, 64, kXTerms == 1 ? 2 : 1>>());
  }
  if constexpr (kXTerms * kWTerms == 1) {  // the only ones that have registers and LDS for them
    consider(std::type_identity<Tile<1, 1, 1, 64, 3>>(), std::type_identity<Tile<1, 1, 3, 128, 1>>());
  }
  return best;
}

// A template, so that builds without waves of 32 have no kernels.
template <int kWaveLanes>
Plan PlanOf(absl::Span<const ProjectionParams> params, int x_terms, int w_terms, bool may_split, const Stream& stream) {
  static_assert(kWaveLanes == kWave);
  const auto fastest =
      x_terms == 1 ? (w_terms == 1 ? Fastest<1, 1> : Fastest<1, 3>) : (w_terms == 1 ? Fastest<3, 1> : Fastest<3, 3>);
  return fastest(params, may_split && stream.counters != nullptr, stream);
}

}  // namespace

absl::Status LaunchTermsGemm(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Bf16Terms& w,
                             float* part_sums, const Stream& stream) {
  return WithWaveWidth(stream, "projection_terms_gemm", [&](auto wave) -> absl::Status {
    if constexpr (wave() == kWave) {
      const Plan plan = PlanOf<wave()>(params, x.terms, w.terms, /*may_split=*/part_sums != nullptr, stream);
      const TermsArgs args{.p = {},
                           .x = x,
                           .w = w,
                           .w_is_ready = w.data == nullptr,
                           .part_groups = PartGroups(params[0].path),
                           .part_sums = part_sums};
      return plan.launch(params, args, plan.parts, stream);
    } else {
      return absl::InternalError("matrix units need waves of 32");
    }
  });
}

int64_t PartSumsFloats(absl::Span<const ProjectionParams> params, int x_terms, const Stream& stream) {
  if (params[0].rows > kMostPartSums) return 0;  // sizes of a call that is not validated could overflow
  int64_t floats = 0;
  (void)WithWaveWidth(stream, "projection_terms_gemm", [&](auto wave) -> absl::Status {
    if constexpr (wave() == kWave) {
      floats = PlanOf<wave()>(params, x_terms, /*w_terms=*/1, /*may_split=*/true, stream).part_sums;
    }
    return absl::OkStatus();
  });
  return floats;
}

}  // namespace gdn::gpu
