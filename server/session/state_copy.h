// Copies of a locked session's states between the device and host memory.
//
// Thread safety: any thread; the lease keeps steps out. Ownership: images own their memory.
//
//   GDN_ASSIGN_OR_RETURN(SessionImagePtr image, CopyOut(backend, memory, lease, /*known=*/{}));
//   GDN_RETURN_IF_ERROR(CopyIn(backend, memory, *image, std::move(claims), lease));
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/thread_pool.h"
#include "server/session/session_lease.h"
#include "state_store/host_block_pool.h"

namespace gdn {

// The states of a resident session. Bases that `known` has in the same version are left out (LayerImage::has_base). Copies
// run on `pool`, where there is one.
absl::StatusOr<SessionImagePtr> CopyOut(Backend& backend, HostBlockPool& memory, const SessionLease& lease,
                                        const BaseVersions& known, SharedThreadPool* pool = nullptr);

// Makes the session resident with the image's states. `claims`: one a layer of the session. An error leaves it as it was.
// Copies run on `pool`, where there is one; those of layers in wire order pass through `memory` on their way to a device.
absl::Status CopyIn(Backend& backend, HostBlockPool& memory, const SessionImage& image, std::vector<SlotClaim> claims,
                    SessionLease& lease, SharedThreadPool* pool = nullptr);

// FAILED_PRECONDITION (STATE_MISMATCH: field, found, expected) where the state is of another model, other dims or other
// layers than `spec`.
absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec);

}  // namespace gdn
