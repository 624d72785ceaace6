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

// Packs the matrix `host` (file layout in host memory; it may be freed on return) and copies it, without scales, in the
// ring's stream to `device`, which has PackedWeightBytes bytes. RESOURCE_EXHAUSTED if the host has no memory for a
// copy. INVALID_ARGUMENT if a pointer is null, a row is not whole blocks, or PackWeights refuses the values.
absl::Status CopyPackedWeights(PinnedRing& ring, void* device, const WeightMatrix& host);

}  // namespace gdn::gpu
