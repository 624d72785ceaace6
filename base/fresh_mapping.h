// For memory that comes from mmap: AddressSanitizer leaves marks of a thread's stack behind when the thread ends, and
// takes what is mapped at the same addresses later for that stack.
//
// Thread safety: a free function, for memory that nobody else has yet. Without the sanitizer it does nothing.
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
