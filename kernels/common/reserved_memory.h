// Memory of backends whose memory is the host's: reserved at once, committed as it is touched.
//
// Thread safety: any thread. Ownership: the caller gives back what it was given, with the same byte count.
//
//   GDN_ASSIGN_OR_RETURN(void* data, HostAllocate(bytes));
//   HostFree(data, bytes);
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace gdn {

// Page-aligned zeroed memory. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where `bytes` is more than HostMemoryBytes or
// the system refuses. 0 bytes are a valid allocation.
absl::StatusOr<void*> HostAllocate(size_t bytes);
void HostFree(void* data, size_t bytes);

// Memory this process may use: the machine's, or less where a control group says so.
int64_t HostMemoryBytes();

}  // namespace gdn
