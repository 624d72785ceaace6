// The GPU runtime's calls that the backend needs, without vendor headers: devices, memory, copies, events, graphs.
// Implemented by runtime.hip for AMD and NVIDIA, and by on_host/ for the host executor.
//
// Every call is checked; an error names the call, the device and what to do. UNAVAILABLE (DEVICE_FAILED) after the
// device was lost or a kernel failed, RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) for want of memory,
// FAILED_PRECONDITION (DEVICE_UNSUPPORTED) without a usable device.
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
  std::string toolkit;       // compiler of the kernels and source of their exp: "hip5.2.3-clang15.0", "nvcc12.4.131"
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
  bool matrix_units = false;  // has those that MmaBf16 and MmaTf32 run on
};

// Returns the number of devices that this process may use (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES). DescribeDevice
// takes numbers from 0 below it; free_bytes is the memory that is free at the call.
absl::StatusOr<int> DeviceCount();
absl::StatusOr<DeviceInfo> DescribeDevice(int device);

// Makes `device` the calling thread's current device. Needed in threads other than the one that made the stream.
absl::Status UseDevice(int device);
absl::StatusOr<int> DeviceInUse();  // the calling thread's current device
absl::StatusOr<Stream> MakeStream(int device);
void DestroyStream(const Stream& stream);
absl::Status SynchronizeStream(const Stream& stream);

absl::StatusOr<void*> DeviceMalloc(size_t bytes);
void DeviceFree(void* data);
// Allocates page-locked host memory, for PinnedFree: copies from and to it run asynchronously.
absl::StatusOr<void*> PinnedMalloc(size_t bytes);
void PinnedFree(void* data);

// Copies run in the stream's order. With pinned host memory the functions return at once, and the memory must stay
// until the copy has run; with other host memory they may block.
absl::Status CopyToDevice(void* device, const void* host, size_t bytes, const Stream& stream);
absl::Status CopyToHost(void* host, const void* device, size_t bytes, const Stream& stream);
absl::Status CopyOnDevice(void* to, const void* from, size_t bytes, const Stream& stream);

// An event marks a point of a stream: the event is done once all work before that point is done. RecordEvent replaces
// the point; an event that was never recorded counts as done. An event may be destroyed while something waits for it.
// The functions report a lost device and a failed kernel (DEVICE_FAILED), like all calls of this header.
using Event = void*;
absl::StatusOr<Event> MakeEvent();
void DestroyEvent(Event event);
absl::Status RecordEvent(Event event, const Stream& stream);
// Makes work given to `stream` from now on wait for the event's last recorded point; later records do not matter.
// Returns at once. Event and stream must be of one device.
absl::Status StreamWaitsFor(const Stream& stream, Event event);
// Blocks the calling thread until the event is done; the thread sleeps. Several threads may wait for one event.
absl::Status WaitForEvent(Event event);
absl::StatusOr<bool> EventIsDone(Event event);

// Makes an event that records a time as well, for DestroyEvent. It costs more, so use it only to measure.
absl::StatusOr<Event> MakeTimedEvent();
// Returns the time from `begin` to `end`, two recorded timed events, in microseconds. Blocks until `end` is done.
absl::StatusOr<double> MicrosecondsBetween(Event begin, Event end);

// The calling thread's launches on the stream between BeginCapture and EndCapture are recorded, not run. EndCapture
// returns the graph, which the caller destroys; it fails if something that cannot be recorded was called meanwhile.
using Graph = void*;
absl::Status BeginCapture(const Stream& stream);
absl::StatusOr<Graph> EndCapture(const Stream& stream);
// True if work given to `stream`, any stream of the calling thread's device, is recorded instead of run. For the
// default stream (null) also true while another stream is being recorded, if use of the default stream would invalidate
// that recording.
absl::StatusOr<bool> IsCapturing(const Stream& stream);
absl::Status LaunchGraph(Graph graph, const Stream& stream);
void DestroyGraph(Graph graph);

// Returns OK for the vendor's success code, else the error of `call` as the file's comment says, and clears the
// runtime's last error. Also used for launches, with the kernel's name.
absl::Status RuntimeStatus(int code, const char* call);

}  // namespace gdn::gpu
