// The GPU runtime's calls that the backend needs, without any vendor's header: devices, memory, copies, events, graphs.
// Implemented by runtime.hip for AMD and NVIDIA, and by tests/gpu_on_host for the host executor.
//
// Every call is checked; an error names the call, the device and what to do. Codes: UNAVAILABLE (DEVICE_FAILED) once
// the device is lost or a kernel failed, RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) for memory, FAILED_PRECONDITION
// (DEVICE_UNSUPPORTED) where no usable device is found.
// Thread safety: free functions; work on one stream is ordered. Ownership: the caller frees what it makes.
//
//   GDN_ASSIGN_OR_RETURN(int count, DeviceCount());
//   GDN_ASSIGN_OR_RETURN(Stream stream, MakeStream(0));
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

struct DeviceInfo {
  std::string name;          // "AMD Instinct MI50"
  std::string architecture;  // "gfx906:sramecc+:xnack-", "sm_90"
  std::string vendor;        // "hip", "cuda", "host"
  std::string toolkit;       // compiled the kernels and brought their exp: "hip5.2.3-clang15.0", "nvcc12.4.131"
  int32_t runtime_version = 0;
  int32_t driver_version = 0;
  int32_t wave_width = 0;
  int32_t processors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t clock_khz = 0;
  int64_t memory_clock_khz = 0;
  int32_t memory_bus_bits = 0;
};

// Devices that this process may use (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES).
absl::StatusOr<int> DeviceCount();
absl::StatusOr<DeviceInfo> DescribeDevice(int device);

// Makes `device` the calling thread's; for threads beside the one that made the stream.
absl::Status UseDevice(int device);
absl::StatusOr<int> DeviceInUse();  // the calling thread's
absl::StatusOr<Stream> MakeStream(int device);
void DestroyStream(const Stream& stream);
absl::Status SynchronizeStream(const Stream& stream);

absl::StatusOr<void*> DeviceMalloc(size_t bytes);
void DeviceFree(void* data);
// Page-locked host memory: copies from and to it run beside the host.
absl::StatusOr<void*> PinnedMalloc(size_t bytes);
void PinnedFree(void* data);

// Return at once for pinned host memory, in the stream's order.
absl::Status CopyToDevice(void* device, const void* host, size_t bytes, const Stream& stream);
absl::Status CopyToHost(void* host, const void* device, size_t bytes, const Stream& stream);
absl::Status CopyOnDevice(void* to, const void* from, size_t bytes, const Stream& stream);

// A point of a stream's work, done once all work before it is. Recorded anew, an event forgets its
// point before; one that was never recorded counts as done. It may be destroyed while something still waits for it.
// Every call here reports a lost device and a kernel that failed, as all others do (DEVICE_FAILED).
using Event = void*;
absl::StatusOr<Event> MakeEvent();
void DestroyEvent(Event event);
absl::Status RecordEvent(Event event, const Stream& stream);
// What `stream` is given from now on runs after the point of the last record before this call. Returns at once. Events
// and streams are of one device.
absl::Status StreamWaitsFor(const Stream& stream, Event event);
// Blocks the calling thread, which sleeps meanwhile. Any thread, several at a time.
absl::Status WaitForEvent(Event event);
absl::StatusOr<bool> EventIsDone(Event event);

// An event that also takes the time. Recording it costs more, so it is for measuring.
absl::StatusOr<Event> MakeTimedEvent();
// Waits for `end`. Both are timed.
absl::StatusOr<double> MicrosecondsBetween(Event begin, Event end);

// Launches between Begin and End are recorded, not run; UNIMPLEMENTED on the host executor.
using Graph = void*;
absl::Status BeginCapture(const Stream& stream);
absl::StatusOr<Graph> EndCapture(const Stream& stream);
absl::Status LaunchGraph(Graph graph, const Stream& stream);
void DestroyGraph(Graph graph);

// OK for the vendor's success code, else what `call` reported. Also used for launches.
absl::Status RuntimeStatus(int code, const char* call);

}  // namespace gdn::gpu
