// Tells whether a stream is being captured into a graph.
//
// Implemented beside runtime.h. Thread safety: free function.
//
//   GDN_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
#pragma once

#include "absl/status/statusor.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

// True if work given to `stream` is recorded instead of run. `stream` is any stream of the calling thread's device. The
// default stream counts as recorded while its use would invalidate another stream's recording.
absl::StatusOr<bool> IsCapturing(const Stream& stream);

}  // namespace gdn::gpu
