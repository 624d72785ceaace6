// A GPU's runtime, whose objects ask Acquisitions first: the linker gives the callers of kernels/gpu/runtime.h
// these functions (--wrap). For builds for a device; the host executor's runtime asks by itself. The code of a kernel
// that is loaded with its first launch is not among them.
#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/gpu/acquisitions/acquisitions.h"
#include "base/status_macros.h"
#include "kernels/gpu/runtime.h"

#define GDN_DEVICE_MALLOC(prefix) prefix##_ZN3gdn3gpu12DeviceMallocEm
#define GDN_PINNED_MALLOC(prefix) prefix##_ZN3gdn3gpu12PinnedMallocEm
#define GDN_MAKE_EVENT(prefix) prefix##_ZN3gdn3gpu9MakeEventEv
#define GDN_MAKE_STREAM(prefix) prefix##_ZN3gdn3gpu10MakeStreamEi
#define GDN_END_CAPTURE(prefix) prefix##_ZN3gdn3gpu10EndCaptureERKNS0_6StreamE
#define GDN_LAUNCH_GRAPH(prefix) prefix##_ZN3gdn3gpu11LaunchGraphEPvRKNS0_6StreamE

using gdn::Acquisitions;
using gdn::gpu::Stream;

extern "C" {

absl::StatusOr<void*> GDN_DEVICE_MALLOC(__real_)(size_t bytes);
absl::StatusOr<void*> GDN_PINNED_MALLOC(__real_)(size_t bytes);
absl::StatusOr<void*> GDN_MAKE_EVENT(__real_)();
absl::StatusOr<Stream> GDN_MAKE_STREAM(__real_)(int device);
absl::StatusOr<void*> GDN_END_CAPTURE(__real_)(const Stream& stream);
absl::Status GDN_LAUNCH_GRAPH(__real_)(void* graph, const Stream& stream);

absl::StatusOr<void*> GDN_DEVICE_MALLOC(__wrap_)(size_t bytes) {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("device memory"));
  return GDN_DEVICE_MALLOC(__real_)(bytes);
}

absl::StatusOr<void*> GDN_PINNED_MALLOC(__wrap_)(size_t bytes) {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("page-locked memory"));
  return GDN_PINNED_MALLOC(__real_)(bytes);
}

absl::StatusOr<void*> GDN_MAKE_EVENT(__wrap_)() {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("an event"));
  return GDN_MAKE_EVENT(__real_)();
}

absl::StatusOr<Stream> GDN_MAKE_STREAM(__wrap_)(int device) {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("a stream"));
  return GDN_MAKE_STREAM(__real_)(device);
}

absl::StatusOr<void*> GDN_END_CAPTURE(__wrap_)(const Stream& stream) {
  GDN_ASSIGN_OR_RETURN(void* const graph, GDN_END_CAPTURE(__real_)(stream));  // or the stream would record for ever
  if (absl::Status status = Acquisitions::Acquire("a graph"); !status.ok()) {
    gdn::gpu::DestroyGraph(graph);
    return status;
  }
  return graph;
}

absl::Status GDN_LAUNCH_GRAPH(__wrap_)(void* graph, const Stream& stream) {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("a graph's launch"));
  return GDN_LAUNCH_GRAPH(__real_)(graph, stream);
}
}
