// Few rows times weights of Q8_0, Q4_0 and E4M3: projection_few_quantised_gpu-inl.h for these formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewRowsOfBlocks32(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ8_0:
      return LaunchFewQuantisedRows<WeightFormat::kQ8_0>(params, stream);
    case WeightFormat::kQ4_0:
      return LaunchFewQuantisedRows<WeightFormat::kQ4_0>(params, stream);
    default:
      return LaunchFewQuantisedRows<WeightFormat::kF8E4M3>(params, stream);
  }
}

}  // namespace gdn::gpu
