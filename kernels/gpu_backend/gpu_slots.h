// Slots between device memory, where the base is [HV, V, K], and wire order, [HV, K, V].
//
// Thread safety: for the thread that owns the ring. Both return when the data has arrived.
//
//   GDN_ASSIGN_OR_RETURN(SlotImage image, ReadDeviceSlot(ring, pool, slot, log_length, token_count));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/slot_image.h"
#include "kernels/gpu_backend/gpu_staging.h"

namespace gdn::gpu {

absl::StatusOr<SlotImage> ReadDeviceSlot(PinnedRing& ring, const StatePoolView& pool, int32_t slot, int32_t log_length,
                                         int64_t token_count);
absl::Status WriteDeviceSlot(PinnedRing& ring, const StatePoolView& pool, int32_t slot, int64_t token_count,
                             const SlotImage& image);

}  // namespace gdn::gpu
