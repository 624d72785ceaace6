// y = x W^T on matrix units, of operands in bfloat16 terms: on NVIDIA prefills and, with BF16 weights, larger decodes.
//
// Order of a sum: bf16_terms_gpu.h.
// Threads: a team is four waves. W is the matrix unit's A, 64 outputs a team; x^T is its B, so a row's sums do not
// depend on its neighbours. Stages pass through LDS by copies that run ahead by all stages but one.
// Many rows: one to three teams share a tile's outputs; totals are in registers. Up to 32 rows: four teams take
// neighbouring groups of the same 64 outputs, because a team waits for its copies, units and barriers most of the time.
// Their sums meet in LDS, and are added in the groups' order while the next groups are multiplied.
// Resources: 96 to 227 KB of LDS a block; two registers a sum, for the group's and the total. Bound by the L2 cache for
// one term each, else by matrix units.

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

// Tiles of 64 kTeams outputs x kRowsOfTile rows, kBlocks blocks a multiprocessor. kGroupsOfRound groups are computed at
// the same time, each by kTeams teams.
template <int kTermsOfX, int kTermsOfW, int kTeamsOfBlock, int kRowsOfTile, int kBlocks, int kGroupsOfRound = 1>
struct Tile {
  static constexpr int kXTerms = kTermsOfX;
  static constexpr int kWTerms = kTermsOfW;
  static constexpr int kTeams = kTeamsOfBlock;
  static constexpr int kGroups = kGroupsOfRound;
  static constexpr int kGroupThreads = kTeams * kTeamThreads;
  static constexpr int kThreads = kGroups * kGroupThreads;
  static constexpr int kOutputs = kTeams * kTeamOutputs;
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kResident = kBlocks;
  static constexpr int kBs = kRows / 8;
  static constexpr int kResults = kOutputs * kRows;
  static constexpr bool kKeepsAddresses = kGroups > 1;  // else those of all rows would occupy registers

  static constexpr int kWRows = kWTerms * kOutputs;  // of a stage: W's, term after term, then x's
  static constexpr int kStageRows = kWRows + kXTerms * kRows;
  static constexpr int kStageFloats = kStageRows * kTileRowFloats;
  static constexpr int kSumFloats = kGroups == 1 ? 4 : 2 * kGroups * kResults;  // of two rounds
  static constexpr int kStagesThatFit = (LdsFloatsOfBlock(kBlocks) - kSumFloats) / (kGroups * kStageFloats);
  static constexpr int kStages = kStagesThatFit < 5 ? kStagesThatFit : 5;
  static_assert(kStages >= 2);
  static constexpr int kStagesFloats = kStages * kStageFloats;
  using Lds = LdsArray<float, kGroups * kStagesFloats>;
  using SumsLds = LdsArray<float, kSumFloats>;
  struct Shared {
    Lds floats;
    SumsLds sums;
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
  const int output = ThreadOfGroup<T>() / kWave * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) function(j * 8 + lane % 4 * 2 + k % 2, output + k / 2 * 8, j, k);
  }
}

// The totals of a tile with one group a round: a lane has those of its own sums.
template <typename T>
class TotalsOfSums {
 public:
  __device__ __forceinline__ void BeginRound(typename T::SumsLds& /*lds*/, int32_t /*round*/) {}
  __device__ __forceinline__ void EndRound(typename T::SumsLds& /*lds*/, int32_t /*round*/, int /*group*/,
                                           const Sums<T>& sums) {
#pragma unroll
    for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) totals_[j][k] += sums[j][k];
    }
  }
  __device__ __forceinline__ void End(typename T::SumsLds& /*lds*/, int32_t /*rounds*/, int32_t /*groups*/) {}
  __device__ __forceinline__ void Store(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                        int32_t first_output) const {
    ForEachSum<T>([&](int row, int output, int j, int k) {
      StoreTotal(p, m, first_row + row, first_output + output, totals_[j][k]);
    });
  }

 private:
  Sums<T> totals_ = {};
};

// The totals of a tile with several groups a round: rounds take turns in two halves of the sums in LDS.
template <typename T>
class TotalsOfRounds : public GroupTotals<T> {
 public:
  // Adds the round before. Comes after a barrier.
  __device__ __forceinline__ void BeginRound(typename T::SumsLds& lds, int32_t round) {
    if (round > 0) this->Add(lds, (round - 1) % 2 * T::kGroups, T::kGroups);
  }
  __device__ __forceinline__ void EndRound(typename T::SumsLds& lds, int32_t round, int group, const Sums<T>& sums) {
    const int number = round % 2 * T::kGroups + group;
    ForEachSum<T>([&](int row, int output, int j, int k) { lds[this->PlaceOf(number, row, output)] = sums[j][k]; });
  }
  __device__ __forceinline__ void End(typename T::SumsLds& lds, int32_t rounds, int32_t groups) {
    SyncThreads();
    this->Add(lds, (rounds - 1) % 2 * T::kGroups, groups - (rounds - 1) * T::kGroups);
  }
};

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
  const int group_of_round = GroupOfThread<T>();
  const int team = ThreadOfGroup<T>() / kTeamThreads;
  const int start = group_of_round * T::kStagesFloats;

  Stages<T> stages(args, m, first_output, first_row, s.floats);
  stages.Begin();
  std::conditional_t<T::kGroups == 1, TotalsOfSums<T>, TotalsOfRounds<T>> totals;
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  const int32_t rounds = (groups + T::kGroups - 1) / T::kGroups;
  int at = 0;
#pragma unroll 1
  for (int32_t round = 0; round < rounds; ++round) {
    WaitForCopies<T::kStages - 2>();
    ShowCopiesToTileUnits();
    SyncThreads();  // the round's groups are there, and nobody reads those before them
    const int next = (at == 0 ? T::kStagesFloats : at) - T::kStageFloats;
    if constexpr (T::kGroups > 1) stages.Copy(round + T::kStages - 1, next);  // memory is slower than the units
    Sums<T> sums;
    MultiplyGroup<T>(s.floats, start + at, team, sums);
    if constexpr (T::kGroups == 1) stages.Copy(round + T::kStages - 1, next);
    if (round + T::kStages >= rounds) LetNextKernelBegin();
    totals.BeginRound(s.sums, round);
    WaitForTile(sums);
    totals.EndRound(s.sums, round, group_of_round, sums);
    at += T::kStageFloats;
    if (at == T::kStagesFloats) at = 0;
  }
  totals.End(s.sums, rounds, groups);
  totals.Store(p, m, first_row, first_output);
}

// The time of tiles T, in results of a multiprocessor: whole rounds of blocks. Small tiles read the L2 cache more
// often for each product. The factors are measured: of tiles with several groups on an H200, of others on an H100.
template <typename T>
int64_t CostOf(absl::Span<const ProjectionParams> params, const Stream& stream) {
  constexpr int64_t kFactor = T::kGroups > 1 ? (T::kRows > 16 ? 40 : 60) : T::kTeams == 1 ? 15 : 13 - T::kTeams;
  const int64_t blocks = OutputTiles(params, T::kOutputs) * CeilDivide(params[0].rows, T::kRows);
  return CeilDivide(blocks, int64_t{stream.processors} * T::kResident) * T::kResident * T::kOutputs * T::kRows *
         kFactor;
}

template <typename T>
absl::Status LaunchTile(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Bf16Terms& w,
                        const Stream& stream) {
  const TermsArgs args{
      .p = MakeProjectionArgs(params, T::kRows, T::kOutputs), .x = x, .w = w, .w_is_ready = w.data == nullptr};
  const Grid grid{.x = args.p.tiles(), .early = true, .lds_bytes = sizeof(typename T::Shared)};
  return Launch("projection_terms_gemm", TermsGemmKernel<T>, grid, T::kThreads, stream, args);
}

template <int kXTerms, int kWTerms>
absl::Status LaunchTerms(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Bf16Terms& w,
                         const Stream& stream) {
  using Small = Tile<kXTerms, kWTerms, 1, 64, 2>;
  int64_t least = CostOf<Small>(params, stream);
  auto* launch = LaunchTile<Small>;
  const auto consider = [&]<typename T>(std::type_identity<T>) {
    const int64_t cost = CostOf<T>(params, stream);
    if (cost > least) return;
    least = cost;
    launch = LaunchTile<T>;
  };
  if constexpr (kWTerms == 1) {  // more would leave LDS for one stage only
    using Some = Tile<kXTerms, 1, 1, 32, 1, 4>;
    if (params[0].rows <= Some::kRows) least = std::numeric_limits<int64_t>::max();
    consider(std::type_identity<Some>());
    if (params[0].rows <= Some::kRows) {
      consider(std::type_identity<Tile<kXTerms, 1, 1, 16, 1, 4>>());
      return launch(params, x, w, stream);
    }
  }
  if constexpr (kXTerms * kWTerms < 9) {  // nine would leave LDS for two stages only
    consider(std::type_identity<Tile<kXTerms, kWTerms, 2, 128, 1>>());
  }
  if constexpr (kXTerms * kWTerms == 1) {  // the only one that has registers and LDS for three teams
    consider(std::type_identity<Tile<1, 1, 3, 128, 1>>());
  }
  return launch(params, x, w, stream);
}

}  // namespace

absl::Status LaunchTermsGemm(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Bf16Terms& w,
                             const Stream& stream) {
  return WithWaveWidth(stream, "projection_terms_gemm", [&](auto wave) -> absl::Status {
    if constexpr (wave() == kWave) {
      if (x.terms == 1) {
        return w.terms == 1 ? LaunchTerms<1, 1>(params, x, w, stream) : LaunchTerms<1, 3>(params, x, w, stream);
      }
      return w.terms == 1 ? LaunchTerms<3, 1>(params, x, w, stream) : LaunchTerms<3, 3>(params, x, w, stream);
    } else {
      return absl::InternalError("matrix units need waves of 32");
    }
  });
}

}  // namespace gdn::gpu
