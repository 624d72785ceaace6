// Few rows times weights with a scale for 16 weights and a plane of two bits: projection_few_quantised_gpu-inl.h for
// Q2_K and Q3_K.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewRowsOfTwoBits(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ2_K:
      return LaunchFewQuantisedRows<WeightFormat::kQ2_K>(params, stream);
    default:
      return LaunchFewQuantisedRows<WeightFormat::kQ3_K>(params, stream);
  }
}

}  // namespace gdn::gpu
