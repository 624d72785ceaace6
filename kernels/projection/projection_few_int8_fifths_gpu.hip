// Few rows, rounded to int8, times weights of Q4_1, Q5_0 and Q5_1: projection_few_quantised_gpu-inl.h for these
// formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewInt8RowsOfFifths(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ4_1:
      return LaunchFewInt8Rows<WeightFormat::kQ4_1>(params, stream);
    case WeightFormat::kQ5_0:
      return LaunchFewInt8Rows<WeightFormat::kQ5_0>(params, stream);
    default:
      return LaunchFewInt8Rows<WeightFormat::kQ5_1>(params, stream);
  }
}

}  // namespace gdn::gpu
