// y = x W^T on matrix units for few rows, of operands in bfloat16 terms: decode on NVIDIA, with BF16 weights.
//
// Order of a sum: bf16_terms_gpu.h. Products are mma's, where those of more rows may be wgmma's. Both give the same
// bits on an H200; matrix_unit_projection_test checks that of a card.
// Threads: each wave takes a group of features of its block's outputs and rows, the block's waves neighbouring groups.
// W is the matrix unit's A, x^T its B, so a row's sums do not depend on its neighbours. A wave's stages pass through
// its own part of LDS, and it waits for nobody: copies run ahead by all stages but one, the first ones of W before the
// kernel before has ended. The groups' sums of some rounds lie in LDS, and are added in order when all waves are there.
// Resources: up to 227 KB of LDS for a multiprocessor's blocks. Bound by memory.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/mma_tile.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/terms_stages_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kWave = 32;
constexpr int kRowsOfTile = 8;

// Tiles of 16 kUnits outputs x kRowsOfTile rows, kWaves waves, kBlocks blocks a multiprocessor.
template <int kTermsOfX, int kUnitsOfTile, int kWaves, int kBlocks>
struct Tile {
  static constexpr int kXTerms = kTermsOfX;
  static constexpr int kWTerms = 1;
  static constexpr int kUnits = kUnitsOfTile;
  static constexpr int kOutputs = kUnits * 16;
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kBs = kRows / 8;
  static constexpr int kGroups = kWaves;
  static constexpr int kGroupThreads = kWave;
  static constexpr int kThreads = kWaves * kWave;
  static constexpr int kResident = kBlocks;
  static constexpr bool kKeepsAddresses = true;
  static constexpr int kResults = kOutputs * kRows;

  static constexpr int kWRows = kOutputs;
  static constexpr int kStageRows = kWRows + kXTerms * kRows;
  static constexpr int kStageFloats = kStageRows * kTileRowFloats;
  // Rounds whose sums are in LDS together.
  static constexpr int kRounds = kGroups * kResults <= 1024 ? 4 : 2;
  static constexpr int kSumFloats = kRounds * kGroups * kResults;
  static constexpr int kStagesThatFit = (LdsFloatsOfBlock(kBlocks) - kSumFloats) / (kGroups * kStageFloats);
  static constexpr int kStages = kStagesThatFit < 4 ? kStagesThatFit : 4;
  static_assert(kStages >= 2);
  static constexpr int kStagesFloats = kStages * kStageFloats;
  using Lds = LdsArray<float, kGroups * kStagesFloats>;
  using SumsLds = LdsArray<float, kSumFloats>;
  struct Shared {
    Lds floats;
    SumsLds sums;
  };
};

template <typename T>
using Sums = float[T::kUnits][T::kBs][4];

// The sums of the wave's group, whose stage begins at `at`.
template <typename T>
__device__ __forceinline__ void MultiplyGroup(typename T::Lds& lds, int at, Sums<T>& sums) {
  const uint32_t lane = threadIdx.x % kWave;
  uint32_t w[T::kUnits][kTileParts / 2][4];
#pragma unroll
  for (uint32_t unit = 0; unit < T::kUnits; ++unit) {
#pragma unroll
    for (uint32_t step = 0; step < kTileParts / 2; ++step) {
      LoadMatrices<kWave>(lds, at + TilePartAt(unit * 16 + lane % 16, 2 * step + lane / 16), w[unit][step]);
    }
#pragma unroll
    for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[unit][j][k] = 0.0f;
    }
  }
#pragma unroll
  for (int term = T::kXTerms - 1; term >= 0; --term) {
#pragma unroll
    for (uint32_t two = 0; two < kTileParts / 4; ++two) {  // two steps of 16 features
#pragma unroll
      for (int j = 0; j < T::kBs; ++j) {
        uint32_t x[4];
        LoadMatrices<kWave>(lds, at + TilePartAt(T::kWRows + term * T::kRows + j * 8 + lane % 8, 4 * two + lane / 8),
                            x);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int unit = 0; unit < T::kUnits; ++unit) {
            MmaBf16<kWave>(sums[unit][j], w[unit][2 * two + step], {x[2 * step], x[2 * step + 1]});
          }
        }
      }
    }
  }
}

// A thread's totals of a tile whose groups' sums lie in LDS, group by group: each kThreads'th.
template <typename T>
class GroupTotals {
 public:
  // Returns where the sum of a row and output is, of group number `group` in LDS. Pairs of rows are turned by eight
  // outputs, so that the sums of a wave lie in different banks.
  static __device__ __forceinline__ int PlaceOf(int group, int row, int output) {
    return group * T::kResults + row * T::kOutputs + (output ^ row / 2 % min(4, T::kOutputs / 8) * 8);
  }

  // Adds the sums of `count` groups in LDS, from number `first` on.
  __device__ __forceinline__ void Add(typename T::SumsLds& sums, int first, int count) {
    ForEach([&](int i, int row, int output) {
      const int place = PlaceOf(first, row, output);
#pragma unroll 8
      for (int group = 0; group < count; ++group) of_part_[i] += sums[place + group * T::kResults];
    });
  }
  __device__ __forceinline__ void EndPart() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      totals_[i] += of_part_[i];
      of_part_[i] = 0.0f;
    }
  }
  __device__ __forceinline__ void Store(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                        int32_t first_output) const {
    ForEach([&](int i, int row, int output) { StoreTotal(p, m, first_row + row, first_output + output, totals_[i]); });
  }

 private:
  static constexpr int kOwn = (T::kResults + T::kThreads - 1) / T::kThreads;

  template <typename Function>
  static __device__ __forceinline__ void ForEach(const Function& function) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int result = static_cast<int>(threadIdx.x) + i * T::kThreads;
      if (T::kResults % T::kThreads != 0 && result >= T::kResults) break;
      function(i, result / T::kOutputs, result % T::kOutputs);
    }
  }

  float of_part_[kOwn] = {};
  float totals_[kOwn] = {};
};

// Keeps the wave's sums as those of group number `group` in LDS.
template <typename T>
__device__ __forceinline__ void KeepSums(typename T::SumsLds& lds, int group, const Sums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWave;
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) {
#pragma unroll
    for (int j = 0; j < T::kBs; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = j * 8 + lane % 4 * 2 + k % 2;
        lds[GroupTotals<T>::PlaceOf(group, row, unit * 16 + lane / 4 + k / 2 * 8)] = sums[unit][j][k];
      }
    }
  }
}

template <typename T>
__global__ __launch_bounds__(T::kThreads, T::kResident) void FewTermsKernel(TermsArgs args) {
  const ProjectionArgs& p = args.p;
  auto& s = LaunchedSharedMemory<typename T::Shared>();
  // Row tiles are the fastest index: those that run together read the same weights.
  const int32_t row_tile = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles));
  const int32_t tile = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  const ProjectionMatrix m = MatrixOfTile(p, tile);
  const int64_t first_row = int64_t{row_tile} * T::kRows;
  const int32_t first_output = (tile - m.first_tile) * T::kOutputs;
  const int wave = GroupOfThread<T>();
  const GroupRange groups(args);
  const int32_t rounds = (groups.count + T::kGroups - 1) / T::kGroups;

  Stages<T> stages(args, m, first_output, first_row, groups, s.floats);
  stages.Begin();
  GroupTotals<T> totals;
  int32_t left = args.part_groups;  // of the part
  int at = 0;
#pragma unroll 1
  for (int32_t first = 0; first < rounds; first += T::kRounds) {
    const int32_t last = min(first + T::kRounds, rounds);
#pragma unroll 1
    for (int32_t round = first; round < last; ++round) {
      WaitForCopies<T::kStages - 2>();
      WaveBarrier();  // the group is there, and no lane reads the one before it
      stages.Copy(round + T::kStages - 1, (at == 0 ? T::kStagesFloats : at) - T::kStageFloats);
      if (round + T::kStages >= rounds) LetNextKernelBegin();
      Sums<T> sums;
      MultiplyGroup<T>(s.floats, wave * T::kStagesFloats + at, sums);
      KeepSums<T>(s.sums, (round - first) * T::kGroups + wave, sums);
      at += T::kStageFloats;
      if (at == T::kStagesFloats) at = 0;
    }
    SyncThreads();
    const int32_t end = min(last * T::kGroups, groups.count);
    for (int32_t group = first * T::kGroups; group < end;) {
      const int32_t count = min(end - group, left);
      totals.Add(s.sums, group - first * T::kGroups, count);
      group += count;
      left -= count;
      if (left == 0) {
        totals.EndPart();
        left = args.part_groups;
      }
    }
    if (last < rounds) SyncThreads();  // the sums are read
  }
  totals.EndPart();
  totals.Store(p, m, first_row, first_output);
}

template <typename T>
absl::Status LaunchTile(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Stream& stream) {
  const TermsArgs args{.p = MakeProjectionArgs(params, T::kRows, T::kOutputs),
                       .x = x,
                       .w = {.stride = TermsStride(params[0].weight.cols)},
                       .w_is_ready = true,
                       .part_groups = PartGroups(params[0].path),
                       .part_sums = nullptr};
  const Grid grid{.x = args.p.tiles(), .early = true, .lds_bytes = sizeof(typename T::Shared)};
  return Launch("projection_few_terms", FewTermsKernel<T>, grid, T::kThreads, stream, args);
}

template <int kXTerms>
absl::Status LaunchTerms(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Stream& stream) {
  using Wide = Tile<kXTerms, 2, 4, 2>;
  using Narrow = Tile<kXTerms, 1, 8, 1>;  // of twice the blocks, which read x twice as often
  return OutputTiles(params, Wide::kOutputs) > stream.processors ? LaunchTile<Wide>(params, x, stream)
                                                                 : LaunchTile<Narrow>(params, x, stream);
}

}  // namespace

bool AreFewTerms(int64_t rows) { return rows <= kRowsOfTile; }

absl::Status LaunchFewTerms(absl::Span<const ProjectionParams> params, const Bf16Terms& x, const Stream& stream) {
  return WithWaveWidth(stream, "projection_few_terms", [&](auto wave) -> absl::Status {
    if constexpr (wave() == kWave) {
      return x.terms == 1 ? LaunchTerms<1>(params, x, stream) : LaunchTerms<3>(params, x, stream);
    } else {
      return absl::InternalError("matrix units need waves of 32");
    }
  });
}

}  // namespace gdn::gpu
