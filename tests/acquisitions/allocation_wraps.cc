// Memory that a program gets by gdn::AlignedAllocate, gdn::HostAllocate and posix_memalign, by way of Acquisitions: the
// linker gives their callers these functions (--wrap).

#include <cerrno>
#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/gpu/acquisitions/acquisitions.h"

#define GDN_ALIGNED_ALLOCATE(prefix) prefix##_ZN3gdn15AlignedAllocateEm
#define GDN_HOST_ALLOCATE(prefix) prefix##_ZN3gdn12HostAllocateEm

extern "C" {

void* GDN_ALIGNED_ALLOCATE(__real_)(size_t bytes);
void* GDN_ALIGNED_ALLOCATE(__wrap_)(size_t bytes);
absl::StatusOr<void*> GDN_HOST_ALLOCATE(__real_)(size_t bytes);
absl::StatusOr<void*> GDN_HOST_ALLOCATE(__wrap_)(size_t bytes);
int __real_posix_memalign(void** data, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void** data, size_t alignment, size_t bytes);

void* GDN_ALIGNED_ALLOCATE(__wrap_)(size_t bytes) {
  // No bytes are no memory, and cannot fail.
  return bytes == 0 || gdn::Acquisitions::MayAcquire() ? GDN_ALIGNED_ALLOCATE(__real_)(bytes) : nullptr;
}

absl::StatusOr<void*> GDN_HOST_ALLOCATE(__wrap_)(size_t bytes) {
  if (absl::Status status = gdn::Acquisitions::Acquire("host memory"); !status.ok()) return status;
  return GDN_HOST_ALLOCATE(__real_)(bytes);
}

int __wrap_posix_memalign(void** data, size_t alignment, size_t bytes) {
  return gdn::Acquisitions::MayAcquire() ? __real_posix_memalign(data, alignment, bytes) : ENOMEM;
}
}
