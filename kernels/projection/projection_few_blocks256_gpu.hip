// Few rows times weights in blocks of 256: projection_few_quantised_gpu-inl.h for Q4_K, Q5_K and Q6_K.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewRowsOfBlocks256(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kQ4_K:
      return LaunchFewQuantisedRows<WeightFormat::kQ4_K>(params, stream);
    case WeightFormat::kQ5_K:
      return LaunchFewQuantisedRows<WeightFormat::kQ5_K>(params, stream);
    default:
      return LaunchFewQuantisedRows<WeightFormat::kQ6_K>(params, stream);
  }
}

}  // namespace gdn::gpu
