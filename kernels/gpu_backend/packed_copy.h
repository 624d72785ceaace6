// Copies weights to the device in the order in which its projections read them.
//
// Thread safety: as PinnedRing. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(CopyPackedWeights(ring, buffer.data(), host));
#pragma once

#include "absl/status/status.h"
#include "kernels/gpu_backend/gpu_staging.h"
#include "kernels/projection/projection.h"

namespace gdn::gpu {

// `host` is a matrix in its file's layout in host memory, which may be freed on return; `device` has PackedWeightBytes
// bytes. RESOURCE_EXHAUSTED if the host has no memory for a copy; other errors as of PackWeights.
absl::Status CopyPackedWeights(PinnedRing& ring, void* device, const WeightMatrix& host);

}  // namespace gdn::gpu
