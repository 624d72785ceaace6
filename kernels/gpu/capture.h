// Whether somebody records a stream into a graph.
//
// Implemented as runtime.h is. Thread safety: free function.
//
//   GDN_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
#pragma once

#include "absl/status/statusor.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

// True if the work that `stream` is given is recorded and not run. `stream` is any stream of the calling thread's
// device. The default stream counts as recorded while its use would spoil another stream's recording.
absl::StatusOr<bool> IsCapturing(const Stream& stream);

}  // namespace gdn::gpu
