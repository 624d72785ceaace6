// Clears stale AddressSanitizer marks from new mmap memory. ASan keeps the marks of an ended thread's stack, and would
// apply them to later mappings at the same addresses.
//
// Thread safety: a free function; call before other threads use the memory. Does nothing without the sanitizer.
//
//   void* data = mmap(...);
//   ForgetOldMarks(data, bytes);
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace gdn {

inline void ForgetOldMarks([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#endif
}

}  // namespace gdn
