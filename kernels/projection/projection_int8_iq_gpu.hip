// x rounded to int8 times weights of IQ4_NL, IQ4_XS and IQ3_S: projection_few_quantised_gpu-inl.h and
// projection_int8_tiles_gpu-inl.h for these formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"
#include "kernels/projection/projection_int8_tiles_gpu-inl.h"

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

absl::Status LaunchInt8TilesOfIq(absl::Span<const ProjectionParams> params, const RoundedRows& x,
                                 const Stream& stream) {
  switch (params[0].weight.format) {
    case WeightFormat::kIQ4_NL:
      return LaunchInt8TilesOf<WeightFormat::kIQ4_NL>(params, x, stream);
    case WeightFormat::kIQ4_XS:
      return LaunchInt8TilesOf<WeightFormat::kIQ4_XS>(params, x, stream);
    default:
      return LaunchInt8TilesOf<WeightFormat::kIQ3_S>(params, x, stream);
  }
}

}  // namespace gdn::gpu
