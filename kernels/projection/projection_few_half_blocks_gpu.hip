// Few rows rounded to fp16 times weights of Q8_0 and Q4_K: projection_few_quantised_gpu-inl.h for these formats.

#include "kernels/projection/projection_few_quantised_gpu-inl.h"

namespace gdn::gpu {

absl::Status LaunchFewHalfBlocks(absl::Span<const ProjectionParams> params, const Stream& stream) {
  return params[0].weight.format == WeightFormat::kQ8_0 ? LaunchFewHalfBlocksOf<WeightFormat::kQ8_0>(params, stream)
                                                        : LaunchFewHalfBlocksOf<WeightFormat::kQ4_K>(params, stream);
}

}  // namespace gdn::gpu
