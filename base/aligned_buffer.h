// Host memory aligned to 64 bytes (a cache line, and one AVX-512 vector).
//
// Thread safety: free functions. Ownership: the caller frees what it has allocated.
//
//   void* const data = AlignedAllocate(bytes);
//   AlignedFree(data);
#pragma once

#include <cstddef>

namespace gdn {

// Returns zeroed memory, aligned to 64 bytes; nullptr if `bytes` is 0 or memory is exhausted.
void* AlignedAllocate(size_t bytes);
void AlignedFree(void* data);  // `data`: a result of AlignedAllocate, or nullptr

}  // namespace gdn
