// Rounds rows of x to int8 or fp16 for kernels of tiles: rounded_rows_gpu.h.
//
// Threads: eight neighbouring lanes round a block of 32 features of a row to int8, or 16 lanes a group of 64 to fp16. A
// block of threads does so for 32 or 16 rows.
// Bound by memory bandwidth.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/half_inputs_gpu-inl.h"
#include "kernels/projection/rounded_inputs_gpu-inl.h"
#include "kernels/projection/rounded_rows_gpu.h"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / kBlockWords;
constexpr int kGroupLanes = kHalfGroup / 4;
constexpr int kGroupRows = kThreads / kGroupLanes;

struct RoundArgs {
  const void* x;
  int64_t x_stride;
  int32_t rows;
  int32_t row_tiles;
  int32_t features;
  DType x_dtype;
  bool vector;  // AllowsRaw4 of x, and features in fours
  RoundedRows to;
};

template <int kWave>
__global__ __launch_bounds__(kThreads) void RoundRowsKernel(RoundArgs p) {
  const int quad = static_cast<int>(threadIdx.x) % kBlockWords;
  const auto row = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles)) * kRows +
                   static_cast<int32_t>(threadIdx.x) / kBlockWords;
  const auto block = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  const int64_t at = int64_t{row} * p.x_stride + block * kInt8Block + quad * 4;
  const Vec4 x = WidenRaw4(LoadRaw4(p.x, p.x_dtype, at, row < p.rows ? 4 : 0, p.vector), p.x_dtype);
  const RoundedLane<1> rounded = RoundBlocks<kWave>({x});
  const BlockSums sums = BlockSumsOf<kWave>(rounded.q);
  if (row >= p.rows) return;
  float* const to = p.to.words + int64_t{block} * kRoundedWords * p.to.pitch + row;
  to[quad * p.to.pitch] = BitsToFloat(rounded.q[0]);
  if (quad != 0) return;
  to[kScaleWord * p.to.pitch] = rounded.scale;
  to[kSumWord * p.to.pitch] = static_cast<float>(sums.first + sums.second);
  to[kHalfSumWord * p.to.pitch] = static_cast<float>(sums.first);
}

template <int kWave>
__global__ __launch_bounds__(kThreads) void HalveRowsKernel(RoundArgs p) {
  const int quad = static_cast<int>(threadIdx.x) % kGroupLanes;
  const auto row = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(p.row_tiles)) * kGroupRows +
                   static_cast<int32_t>(threadIdx.x) / kGroupLanes;
  const auto group = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(p.row_tiles));
  const int32_t feature = group * kHalfGroup + quad * 4;
  const int32_t left = row < p.rows ? p.features - feature : 0;
  const Vec4 x = WidenRaw4(LoadRaw4(p.x, p.x_dtype, int64_t{row} * p.x_stride + feature, left, p.vector), p.x_dtype);
  const GroupScale scale = GroupScaleOf<kGroupLanes, kWave>(LargestFinite(x, 0));
  const uint32_t first = HalvesOf(x.x, x.y, scale.scale), second = HalvesOf(x.z, x.w, scale.scale);
  const float sum = HalfSumOf<kWave>(first, second);
  if (row >= p.rows) return;
  float* const to = p.to.words + int64_t{group} * kHalfWords * p.to.pitch + row;
  to[2 * quad * p.to.pitch] = BitsToFloat(first);
  to[(2 * quad + 1) * p.to.pitch] = BitsToFloat(second);
  constexpr int kBlockQuads = kHalfBlock / 4;
  if (quad % kBlockQuads == 0) to[(kHalfSumsWord + quad / kBlockQuads) * p.to.pitch] = sum;
  if (quad == 0) to[kHalfPairs * p.to.pitch] = scale.inverse;
}

RoundArgs ArgsOf(const ProjectionParams& params, const RoundedRows& rows, int rows_of_block) {
  return {.x = params.x.data,
          .x_stride = params.x_stride,
          .rows = static_cast<int32_t>(params.rows),
          .row_tiles = static_cast<int32_t>(CeilDivide(params.rows, rows_of_block)),
          .features = static_cast<int32_t>(params.weight.cols),
          .x_dtype = params.x.dtype,
          .vector = params.weight.cols % 4 == 0 && AllowsRaw4(params.x.data, params.x.dtype, params.x_stride),
          .to = rows};
}

}  // namespace

absl::Status LaunchHalveRows(const ProjectionParams& params, const RoundedRows& rows, const Stream& stream) {
  const RoundArgs args = ArgsOf(params, rows, kGroupRows);
  return WithWaveWidth(stream, "projection_halve_rows", [&](auto wave) {
    return Launch("projection_halve_rows", HalveRowsKernel<wave()>,
                  {int64_t{args.row_tiles} * CeilDivide(params.weight.cols, kHalfGroup)}, kThreads, stream, args);
  });
}

absl::Status LaunchRoundRows(const ProjectionParams& params, const RoundedRows& rows, const Stream& stream) {
  const RoundArgs args = ArgsOf(params, rows, kRows);
  return WithWaveWidth(stream, "projection_round_rows", [&](auto wave) {
    return Launch("projection_round_rows", RoundRowsKernel<wave()>,
                  {int64_t{args.row_tiles} * (params.weight.cols / kInt8Block)}, kThreads, stream, args);
  });
}

}  // namespace gdn::gpu
