// Tells ThreadSanitizer the orders that asynchronous streams promise, and no others. The locks of the executor's own
// queues order more than a device does, and would hide the races that TSan is to find.
//
// Thread safety: concerns the calling thread. Does nothing in other builds.
//
//   { const UnseenByTsan unseen; absl::MutexLock lock(&mu); queue.push_back(...); }
//   Promise(point);  // by the thread that has reached the point
//   Rely(point);     // by the thread that has waited for it
//   Reads(from, bytes), Writes(to, bytes);  // accesses by the C library, which the preset's options ignore
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void __tsan_ignore_thread_begin();                         // NOLINT(bugprone-reserved-identifier): its own name
void __tsan_ignore_thread_end();                           // NOLINT(bugprone-reserved-identifier)
void __tsan_read_range(void* data, unsigned long bytes);   // NOLINT(bugprone-reserved-identifier,google-runtime-int)
void __tsan_write_range(void* data, unsigned long bytes);  // NOLINT(bugprone-reserved-identifier,google-runtime-int)
}
#endif

namespace gdn::gpu::simt {

#if defined(__SANITIZE_THREAD__)
class UnseenByTsan {
 public:
  UnseenByTsan() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    __tsan_ignore_thread_begin();
  }
  ~UnseenByTsan() {
    __tsan_ignore_thread_end();
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
  UnseenByTsan(const UnseenByTsan&) = delete;
  UnseenByTsan& operator=(const UnseenByTsan&) = delete;
};
inline void Promise(const void* point) { __tsan_release(const_cast<void*>(point)); }
inline void Rely(const void* point) { __tsan_acquire(const_cast<void*>(point)); }
inline void Reads(const void* data, size_t bytes) { __tsan_read_range(const_cast<void*>(data), bytes); }
inline void Writes(void* data, size_t bytes) { __tsan_write_range(data, bytes); }
#else
class UnseenByTsan {
 public:
  UnseenByTsan() {}
  ~UnseenByTsan() {}
  UnseenByTsan(const UnseenByTsan&) = delete;
  UnseenByTsan& operator=(const UnseenByTsan&) = delete;
};
inline void Promise(const void* point) {}
inline void Rely(const void* point) {}
inline void Reads(const void* data, size_t bytes) {}
inline void Writes(void* data, size_t bytes) {}
#endif

}  // namespace gdn::gpu::simt
