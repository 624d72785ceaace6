// Weights on their way to the device, in the order in which its projections read them.
//
// Thread safety: as PinnedRing. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(CopyPackedWeights(ring, buffer.data(), host));
#pragma once

#include "absl/status/status.h"
#include "kernels/gpu_backend/gpu_staging.h"
#include "kernels/projection/projection.h"

namespace gdn::gpu {

// `host` is a file's matrix in host memory, which may go when this returns; `device` has PackedWeightBytes.
// RESOURCE_EXHAUSTED where the host has no memory for a copy; else as PackWeights.
absl::Status CopyPackedWeights(PinnedRing& ring, void* device, const WeightMatrix& host);

}  // namespace gdn::gpu
