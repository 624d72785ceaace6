// What the two GPU paths of a projection take: up to four matrices on the same rows of x, as kernels see them.
//
// Thread safety: plain values. Ownership: none. For projection_*_gpu.hip only.
//
//   const ProjectionArgs args = MakeProjectionArgs(params, /*outputs_per_tile=*/64);
//   GDN_RETURN_IF_ERROR(LaunchRowStable(args, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "kernels/gpu/stream.h"
#include "kernels/projection/projection.h"

namespace gdn::gpu {

struct ProjectionMatrix {
  const void* weight;
  void* y;
  int64_t y_stride;
  int32_t outputs;     // rows of the weight matrix
  int32_t first_tile;  // of the launch's tiles of outputs
  DType dtype;         // of the weights
  DType y_dtype;
};

struct ProjectionArgs {
  ProjectionMatrix matrices[kMaxProjectionsPerLaunch];  // unused ones begin after the last tile
  const void* x;
  int64_t x_stride;
  int64_t rows;
  int32_t features;
  int32_t row_tiles;
  int32_t output_tiles;
  DType x_dtype;
  bool x_vector;  // x's rows allow loads of four elements
};

// `params` are validated and have rows. Matrices without outputs are left out.
ProjectionArgs MakeProjectionArgs(absl::Span<const ProjectionParams> params, int32_t outputs_per_tile);

// True where the rows of all weights allow 16-byte loads.
bool WeightsAllowVectors(absl::Span<const ProjectionParams> params);

absl::Status LaunchRowStable(absl::Span<const ProjectionParams> params, const Stream& stream);
absl::Status LaunchSequenceGemm(absl::Span<const ProjectionParams> params, const Stream& stream);

}  // namespace gdn::gpu
