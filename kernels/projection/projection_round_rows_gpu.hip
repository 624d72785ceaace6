// Rounds rows of x to int8 for projection_int8_tiles_gpu-inl.h: rounded_rows_gpu.h.
//
// Threads: eight neighbouring lanes round a block of 32 features of a row; a block of threads does so for 32 rows.
// Bound by memory bandwidth.

#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/rounded_inputs_gpu-inl.h"
#include "kernels/projection/rounded_rows_gpu.h"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / kBlockWords;

struct RoundArgs {
  const void* x;
  int64_t x_stride;
  int32_t rows;
  int32_t row_tiles;
  DType x_dtype;
  bool vector;  // AllowsRaw4 of x
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

}  // namespace

absl::Status LaunchRoundRows(const ProjectionParams& params, const RoundedRows& rows, const Stream& stream) {
  const RoundArgs args{.x = params.x.data,
                       .x_stride = params.x_stride,
                       .rows = static_cast<int32_t>(params.rows),
                       .row_tiles = static_cast<int32_t>(CeilDivide(params.rows, kRows)),
                       .x_dtype = params.x.dtype,
                       .vector = AllowsRaw4(params.x.data, params.x.dtype, params.x_stride),
                       .to = rows};
  return WithWaveWidth(stream, "projection_round_rows", [&](auto wave) {
    return Launch("projection_round_rows", RoundRowsKernel<wave()>,
                  {int64_t{args.row_tiles} * (params.weight.cols / kInt8Block)}, kThreads, stream, args);
  });
}

}  // namespace gdn::gpu
