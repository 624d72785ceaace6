// Few rows times weights in blocks of 32 with a minimum or fifth bits: projection_few_quantised_gpu-inl.h for Q4_1,
// Q5_0 and Q5_1.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewRowsOfFifths(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ4_1:
      return LaunchFewQuantisedRows<WeightFormat::kQ4_1>(params, stream);
    case WeightFormat::kQ5_0:
      return LaunchFewQuantisedRows<WeightFormat::kQ5_0>(params, stream);
    default:
      return LaunchFewQuantisedRows<WeightFormat::kQ5_1>(params, stream);
  }
}

}  // namespace gdn::gpu
