// Few rows, rounded to int8, times weights of IQ4_NL, IQ4_XS and IQ3_S: projection_few_quantised_gpu-inl.h for these
// formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewInt8RowsOfIq(absl::Span<const ProjectionParams> params, const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kIQ4_NL:
      return LaunchFewInt8Rows<WeightFormat::kIQ4_NL>(params, stream);
    case WeightFormat::kIQ4_XS:
      return LaunchFewInt8Rows<WeightFormat::kIQ4_XS>(params, stream);
    default:
      return LaunchFewInt8Rows<WeightFormat::kIQ3_S>(params, stream);
  }
}

}  // namespace gdn::gpu
