// x rounded to int8 times weights of Q4_K, Q5_K and Q6_K: projection_few_quantised_gpu-inl.h and
// projection_int8_tiles_gpu-inl.h for these formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"
#include "kernels/projection/projection_int8_tiles_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewInt8RowsOfBlocks256(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ4_K:
      return LaunchFewInt8Rows<WeightFormat::kQ4_K>(params, stream);
    case WeightFormat::kQ5_K:
      return LaunchFewInt8Rows<WeightFormat::kQ5_K>(params, stream);
    default:
      return LaunchFewInt8Rows<WeightFormat::kQ6_K>(params, stream);
  }
}

absl::Status LaunchInt8TilesOfBlocks256(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                        const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ4_K:
      return LaunchInt8TilesOf<WeightFormat::kQ4_K>(params, x, stream);
    case WeightFormat::kQ5_K:
      return LaunchInt8TilesOf<WeightFormat::kQ5_K>(params, x, stream);
    default:
      return LaunchInt8TilesOf<WeightFormat::kQ6_K>(params, x, stream);
  }
}

}  // namespace gdn::gpu
