// Few rows, rounded to int8, times weights of Q4_K, Q5_K and Q6_K: projection_few_quantised_gpu-inl.h for these
// formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

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

}  // namespace gdn::gpu
