// Few rows times weights whose bits stand for values of a table: projection_few_quantised_gpu-inl.h for IQ4_NL, IQ4_XS
// and IQ3_S.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewRowsOfIq(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kIQ4_NL:
      return LaunchFewQuantisedRows<WeightFormat::kIQ4_NL>(params, stream);
    case WeightFormat::kIQ4_XS:
      return LaunchFewQuantisedRows<WeightFormat::kIQ4_XS>(params, stream);
    default:
      return LaunchFewQuantisedRows<WeightFormat::kIQ3_S>(params, stream);
  }
}

}  // namespace gdn::gpu
