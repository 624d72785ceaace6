// x rounded to int8 times weights of Q2_K and Q3_K: projection_few_quantised_gpu-inl.h and
// projection_int8_tiles_gpu-inl.h for these formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"
#include "kernels/projection/projection_int8_tiles_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewInt8RowsOfTwoBits(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ2_K:
      return LaunchFewInt8Rows<WeightFormat::kQ2_K>(params, stream);
    default:
      return LaunchFewInt8Rows<WeightFormat::kQ3_K>(params, stream);
  }
}

absl::Status LaunchInt8TilesOfTwoBits(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                      const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ2_K:
      return LaunchInt8TilesOf<WeightFormat::kQ2_K>(params, x, stream);
    default:
      return LaunchInt8TilesOf<WeightFormat::kQ3_K>(params, x, stream);
  }
}

}  // namespace gdn::gpu
