// x rounded to int8 times weights of Q8_0 and Q4_0: projection_few_quantised_gpu-inl.h and
// projection_int8_tiles_gpu-inl.h for these formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"
#include "kernels/projection/projection_int8_tiles_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewInt8RowsOfBlocks32(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ8_0:
      return LaunchFewInt8Rows<WeightFormat::kQ8_0>(params, stream);
    default:
      return LaunchFewInt8Rows<WeightFormat::kQ4_0>(params, stream);
  }
}

absl::Status LaunchInt8TilesOfBlocks32(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                       const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ8_0:
      return LaunchInt8TilesOf<WeightFormat::kQ8_0>(params, x, stream);
    default:
      return LaunchInt8TilesOf<WeightFormat::kQ4_0>(params, x, stream);
  }
}

}  // namespace gdn::gpu
