// y = x W^T on matrix units, of operands split into bfloat16 terms: prefill on NVIDIA.
//
// Order of a sum: bf16_terms_gpu.h.
// Threads: one to three teams of four waves share a tile. W is the matrix unit's A, 64 outputs a team; x^T is its B, so
// a row's sums do not depend on its neighbours. A stage is a group of features of all terms. Stages pass through LDS by
// copies that run ahead by all stages but one.
// Resources: 64 to 200 KB of LDS a block; two registers a sum, for the group's and the total. Bound by the L2 cache for
// one term each, else by matrix units.

#include <algorithm>
#include <type_traits>

#include "kernels/gpu/launch.h"
#include "kernels/gpu/mma_tile.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {
namespace {

constexpr int kWave = 32;
constexpr int kTeamThreads = 4 * kWave;
constexpr int kTeamOutputs = 64;
static_assert(kTileFeatures == kGroupFeatures);

// Tiles of 64 kTeams outputs x kRowsOfTile rows, kBlocks blocks a multiprocessor.
template <int kTermsOfX, int kTermsOfW, int kTeamsOfBlock, int kRowsOfTile, int kBlocks>
struct Tile {
  static constexpr int kXTerms = kTermsOfX;
  static constexpr int kWTerms = kTermsOfW;
  static constexpr int kTeams = kTeamsOfBlock;
  static constexpr int kThreads = kTeams * kTeamThreads;
  static constexpr int kOutputs = kTeams * kTeamOutputs;
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kResident = kBlocks;
  static constexpr int kBs = kRows / 8;

  static constexpr int kWRows = kWTerms * kOutputs;  // of a stage: W's, term after term, then x's
  static constexpr int kStageRows = kWRows + kXTerms * kRows;
  static constexpr int kStageFloats = kStageRows * kTileRowFloats;
  static constexpr int kStagesThatFit = 200 * 1024 / kBlocks / (kStageFloats * 4);
  static constexpr int kStages = kStagesThatFit < 5 ? kStagesThatFit : 5;
  static_assert(kStages >= 2);
  using Lds = LdsArray<float, kStages * kStageFloats>;
  struct Shared {
    Lds floats;
  };
};

struct TermsArgs {
  ProjectionArgs p;
  Bf16Terms x;
  Bf16Terms w;  // without data
};

// Brings a tile's stages to LDS. Rows and outputs that do not exist are copies of the last one.
template <typename T>
class Stages {
 public:
  __device__ __forceinline__ Stages(const TermsArgs& args, const ProjectionMatrix& m, int32_t first_output,
                                    int64_t first_row, typename T::Lds& lds)
      : args_(args),
        w_(static_cast<const uint16_t*>(m.weight)),
        x_(args.x.data + first_row * args.x.stride),
        outputs_(m.outputs),
        first_output_(first_output),
        last_row_(static_cast<int32_t>(min(args.p.rows - 1 - first_row, int64_t{T::kRows}))),
        lds_(lds) {}

  // Copies group `group` to the stage of index `at` in LDS; nothing if there is no such group.
  __device__ __forceinline__ void Copy(int32_t group, int at) {
    const int part = static_cast<int>(threadIdx.x) % kTileParts;
    const int32_t feature = group * kGroupFeatures + part * 8;
    const bool exists = feature < args_.p.features;
    if (group * kGroupFeatures < args_.p.features) {
      // Else the addresses of all rows would occupy registers.
      const auto row = static_cast<int32_t>(NotHoisted(threadIdx.x / kTileParts));
#pragma unroll
      for (int first = 0; first < T::kStageRows; first += kRowStep) {
        if (first + kRowStep > T::kStageRows && first + row >= T::kStageRows) break;
        const uint16_t* const from = first < T::kWRows ? WRow(first, row) : XRow(first, row);
        CopyAsync16(lds_, at + TilePartAt(first + row, part),
                    reinterpret_cast<const float*>(exists ? from + feature : from), exists);
      }
    }
    CommitCopies();
  }
  template <int kGroups>
  __device__ __forceinline__ void Wait() {
    WaitForCopies<kGroups>();
    ShowCopiesToTileUnits();
  }

 private:
  static constexpr int kRowStep = T::kThreads / kTileParts;

  // Return where row `first` + `row` of a stage begins in memory. `first` is a constant, a multiple of kRowStep.
  static_assert(T::kOutputs % kRowStep == 0);
  __device__ __forceinline__ const uint16_t* WRow(int first, int32_t row) const {
    const int32_t output = min(first_output_ + first % T::kOutputs + row, outputs_ - 1);
    return w_ + first / T::kOutputs * args_.w.plane + output * int64_t{args_.w.stride};
  }
  __device__ __forceinline__ const uint16_t* XRow(int first, int32_t row) const {
    int term = (first - T::kWRows) / T::kRows;
    row += (first - T::kWRows) % T::kRows;
    if ((first - T::kWRows) % T::kRows + kRowStep > T::kRows && row >= T::kRows) {
      row -= T::kRows;
      ++term;
    }
    return x_ + term * args_.x.plane + min(row, last_row_) * int64_t{args_.x.stride};
  }

  const TermsArgs& args_;
  const uint16_t* const w_;
  const uint16_t* const x_;
  const int32_t outputs_, first_output_;
  const int32_t last_row_;  // from the tile's first on
  typename T::Lds& lds_;
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

template <typename T>
__device__ __forceinline__ void StoreTotals(const ProjectionArgs& p, const ProjectionMatrix& m, int32_t first_output,
                                            int64_t first_row, const Sums<T>& totals) {
  const int lane = static_cast<int>(threadIdx.x) % kWave;
  const int32_t output = first_output + static_cast<int32_t>(threadIdx.x) / kWave * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t row = first_row + j * 8 + lane % 4 * 2 + k % 2;
      if (row < p.rows && output + k / 2 * 8 < m.outputs) {
        StoreElement(m.y, m.y_dtype, row * m.y_stride + output + k / 2 * 8, totals[j][k]);
      }
    }
  }
}

template <typename T>
__global__ __launch_bounds__(T::kThreads, T::kResident) void TermsGemmKernel(TermsArgs args) {
  const ProjectionArgs& p = args.p;
  auto& s = LaunchedSharedMemory<typename T::Shared>();
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
  const int team = static_cast<int>(threadIdx.x) / kTeamThreads;

  Stages<T> stages(args, m, first_output, first_row, s.floats);
#pragma unroll 1
  for (int i = 0; i + 1 < T::kStages; ++i) stages.Copy(i, i * T::kStageFloats);
  Sums<T> totals;
#pragma unroll
  for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) totals[j][k] = 0.0f;
  }
  const int32_t groups = (p.features + kGroupFeatures - 1) / kGroupFeatures;
  constexpr int kEnd = T::kStages * T::kStageFloats;
  int at = 0;
#pragma unroll 1
  for (int32_t group = 0; group < groups; ++group) {
    stages.template Wait<T::kStages - 2>();
    SyncThreads();  // the group is there, and nobody reads the one before it
    Sums<T> sums;
    MultiplyGroup<T>(s.floats, at, team, sums);
    stages.Copy(group + T::kStages - 1, at == 0 ? kEnd - T::kStageFloats : at - T::kStageFloats);
    WaitForTile(sums);
#pragma unroll
    for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) totals[j][k] += sums[j][k];
    }
    at += T::kStageFloats;
    if (at == kEnd) at = 0;
  }
  StoreTotals<T>(p, m, first_output, first_row, totals);
}

// The time of tiles T, in results of a multiprocessor: whole rounds of blocks. Small tiles read the L2 cache more
// often for each product. The factors are measured on an H100.
template <typename T>
int64_t CostOf(absl::Span<const ProjectionParams> params, const Stream& stream) {
  constexpr int64_t kFactor = T::kTeams == 3 ? 10 : T::kTeams == 2 ? 11 : 15;
  const int64_t blocks = OutputTiles(params, T::kOutputs) * CeilDivide(params[0].rows, T::kRows);
  return CeilDivide(blocks, int64_t{stream.processors} * T::kResident) * T::kResident * T::kOutputs * T::kRows *
         kFactor;
}

template <typename T>
absl::Status LaunchTile(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Bf16Terms& w,
                        const Stream& stream) {
  const TermsArgs args{.p = MakeProjectionArgs(params, T::kRows, T::kOutputs), .x = x, .w = w};
  return Launch("projection_terms_gemm", TermsGemmKernel<T>,
                {.x = args.p.tiles(), .lds_bytes = sizeof(typename T::Shared)}, T::kThreads, stream, args);
}

template <int kXTerms, int kWTerms>
absl::Status LaunchTerms(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Bf16Terms& w,
                         const Stream& stream) {
  using Small = Tile<kXTerms, kWTerms, 1, 64, 2>;
  const int64_t small = CostOf<Small>(params, stream);
  if constexpr (kXTerms * kWTerms == 1) {  // the only one that has registers and LDS for three teams
    using Largest = Tile<1, 1, 3, 128, 1>;
    const int64_t largest = CostOf<Largest>(params, stream);
    if (largest <= std::min(small, CostOf<Tile<1, 1, 2, 128, 1>>(params, stream))) {
      return LaunchTile<Largest>(params, x, w, stream);
    }
  }
  if constexpr (kXTerms * kWTerms < 9) {  // nine would leave LDS for two stages only
    using Large = Tile<kXTerms, kWTerms, 2, 128, 1>;
    if (CostOf<Large>(params, stream) <= small) return LaunchTile<Large>(params, x, w, stream);
  }
  return LaunchTile<Small>(params, x, w, stream);
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
