// Memory of backends that use host memory: reserved at once, committed when touched.
//
// Thread safety: any thread. Ownership: the caller frees it with the same byte count.
//
//   GDN_ASSIGN_OR_RETURN(void* data, HostAllocate(bytes));
//   HostFree(data, bytes);
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace gdn {

// Returns zeroed page-aligned memory, for HostFree with the same `bytes`; 0 bytes are valid. RESOURCE_EXHAUSTED
// (STATE_BUDGET_EXHAUSTED) if `bytes` exceeds HostMemoryBytes or the system refuses.
absl::StatusOr<void*> HostAllocate(size_t bytes);
void HostFree(void* data, size_t bytes);

// Returns the memory this process may use, in bytes: the machine's, or less if a control group limits it. Read once, at
// the first call; memory in use is not subtracted.
int64_t HostMemoryBytes();

}  // namespace gdn
