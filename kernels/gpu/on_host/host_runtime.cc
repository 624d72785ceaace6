// kernels/gpu/runtime.h on the host executor: device memory is heap memory, and streams are as host_streams.h says.

#include <gnu/libc-version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/gpu/acquisitions/acquisitions.h"
#include "kernels/gpu/on_host/device_memory.h"
#include "kernels/gpu/on_host/device_queue.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu/on_host/tsan_edges.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace {

int32_t WaveWidthFromEnvironment() {
  const char* text = std::getenv("GDN_HOST_WAVE_WIDTH");
  return text != nullptr && std::strcmp(text, "32") == 0 ? 32 : 64;
}

// Off unless asked for: a matrix product of the executor takes as long as hundreds of FMAs.
bool MatrixUnitsFromEnvironment() {
  const char* text = std::getenv("GDN_HOST_MATRIX_UNITS");
  return text != nullptr && std::strcmp(text, "1") == 0 && WaveWidthFromEnvironment() == 32;
}

// What launches size their grids by.
int32_t ProcessorsFromEnvironment() {
  const char* text = std::getenv("GDN_HOST_PROCESSORS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 2;
}

// Null for a stream that runs at once.
simt::HostStream* QueueOf(const Stream& stream) { return static_cast<simt::HostStream*>(stream.handle); }

absl::Status DeviceStatus() {
  const std::shared_ptr<simt::HostDevice> device = simt::CurrentDevice();
  return device == nullptr ? absl::OkStatus() : device->status();
}

absl::StatusOr<void*> Allocate(simt::MemoryKind kind, size_t bytes) {
  GDN_RETURN_IF_ERROR(simt::RefuseWhileRecording("an allocation"));
  GDN_RETURN_IF_ERROR(DeviceStatus());
  return simt::AllocateMemory(kind, bytes, kind == simt::MemoryKind::kDevice ? simt::CurrentDevice().get() : nullptr);
}

// At once, whatever still uses it: a program may not count on a runtime that waits.
void Free(void* data) {
  if (data == nullptr) return;
  std::shared_ptr<simt::Allocation> memory = simt::ForgetMemory(data);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // A sanitizer sees who uses it later. Here it is kept and watched instead.
  if (const std::shared_ptr<simt::HostDevice> device = simt::DeviceOf(*memory); device != nullptr) {
    device->FreeLater(std::move(memory));
    return;
  }
#endif
  simt::Writes(memory->data, memory->bytes);
  simt::ReleaseMemory(*memory);
}

// One side of a copy.
struct Side {
  const char* what;
  std::shared_ptr<const simt::Allocation> memory;
};

absl::Status Refuse(const char* call, const char* what) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed,
                   absl::StrCat("host executor: ", call, ": the ", what,
                                " is not, or no longer, in the runtime's memory of that kind"),
                   {{"call", call}});
}

absl::StatusOr<Side> SideOf(const char* call, const char* what, const void* data, size_t bytes, simt::MemoryKind kind) {
  Side side{what, simt::FindMemory(data, bytes)};
  if (side.memory == nullptr || side.memory->kind != kind) return Refuse(call, what);
  return side;
}

// Reads the bytes when it runs, and not before.
absl::Status EnqueueCopy(simt::HostStream& queue, const char* call, void* to, const void* from, size_t bytes,
                         std::vector<Side> sides) {
  GDN_RETURN_IF_ERROR(simt::CheckDeviceOf(queue, call));
  for (const Side& side : sides) {
    if (side.memory->kind == simt::MemoryKind::kDevice && side.memory->device != &queue.device()) {
      return Refuse(call, side.what);
    }
  }
  return queue.Enqueue(call, [=, sides = std::move(sides)]() -> absl::Status {
    for (const Side& side : sides) {
      if (side.memory->freed.load(std::memory_order_relaxed)) return Refuse(call, side.what);
    }
    simt::Reads(from, bytes);
    simt::Writes(to, bytes);
    std::memmove(to, from, bytes);
    return absl::OkStatus();
  });
}

// An event's point, absent before the first record.
struct HostEvent {
  absl::Mutex mu;
  std::shared_ptr<const simt::StreamPoint> point ABSL_GUARDED_BY(mu);
};

std::shared_ptr<const simt::StreamPoint> PointOf(Event event) {
  const simt::UnseenByTsan unseen;
  auto* const host_event = static_cast<HostEvent*>(event);
  absl::MutexLock lock(&host_event->mu);
  return host_event->point;
}

// Whether there is anything to wait for.
bool IsQueued(const std::shared_ptr<const simt::StreamPoint>& point) {
  return point != nullptr && point->stream != nullptr;
}

}  // namespace

absl::StatusOr<int> DeviceCount() { return simt::HostDeviceCount(); }

absl::StatusOr<DeviceInfo> DescribeDevice(int device) {
  DeviceInfo info;
  info.name = "SIMT executor";
  info.architecture = "host";
  info.vendor = "host";
  // Kernels call the C library's expf and log1pf here.
  info.toolkit =
      absl::StrCat("cc", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__, "-glibc", gnu_get_libc_version());
  info.wave_width = WaveWidthFromEnvironment();
  info.processors = ProcessorsFromEnvironment();
  info.matrix_units = MatrixUnitsFromEnvironment();
  info.total_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  info.free_bytes = info.total_bytes / 2;
  info.l2_bytes = int64_t{1} << 20;  // small, as work sized by it is emulated
  return info;
}

absl::Status UseDevice(int device) {
  simt::SetCurrentDevice(device);
  return absl::OkStatus();
}

absl::StatusOr<int> DeviceInUse() { return simt::CurrentDeviceNumber(); }

absl::StatusOr<Stream> MakeStream(int device) {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("a stream"));
  Stream stream{.handle = nullptr,
                .wave_width = WaveWidthFromEnvironment(),
                .processors = ProcessorsFromEnvironment(),
                .matrix_units = MatrixUnitsFromEnvironment()};
  if (const std::shared_ptr<simt::HostDevice> of = simt::DeviceNumber(device); of != nullptr) {
    GDN_RETURN_IF_ERROR(of->status());
    stream.handle = of->MakeStream();
  }
  return stream;
}
void DestroyStream(const Stream& stream) {
  if (simt::HostStream* queue = QueueOf(stream); queue != nullptr) queue->device().DestroyStream(queue);
}
absl::Status SynchronizeStream(const Stream& stream) {
  GDN_RETURN_IF_ERROR(simt::RefuseWhileRecording("a wait for a stream"));
  simt::HostStream* queue = QueueOf(stream);
  return queue == nullptr ? absl::OkStatus() : queue->Synchronize();
}

absl::StatusOr<void*> DeviceMalloc(size_t bytes) {
  GDN_ASSIGN_OR_RETURN(void* data, Allocate(simt::MemoryKind::kDevice, bytes));
  simt::PoisonMemory(data, bytes);  // so that what nobody wrote shows
  return data;
}
void DeviceFree(void* data) { Free(data); }
absl::StatusOr<void*> PinnedMalloc(size_t bytes) { return Allocate(simt::MemoryKind::kPinned, bytes); }
void PinnedFree(void* data) { Free(data); }

absl::Status CopyToDevice(void* device, const void* host, size_t bytes, const Stream& stream) {
  constexpr const char* kCall = "a copy to the device";
  GDN_RETURN_IF_ERROR(simt::RefuseWhileRecording(kCall));
  simt::HostStream* queue = QueueOf(stream);
  if (queue == nullptr) {
    std::memcpy(device, host, bytes);
    return absl::OkStatus();
  }
  GDN_ASSIGN_OR_RETURN(const Side to, SideOf(kCall, "destination", device, bytes, simt::MemoryKind::kDevice));
  const absl::StatusOr<Side> from = SideOf(kCall, "source", host, bytes, simt::MemoryKind::kPinned);
  if (from.ok()) return EnqueueCopy(*queue, kCall, device, host, bytes, {to, *from});
  // Other memory of the host is read before the call returns.
  return queue->Enqueue(kCall, [=, staged = std::string(static_cast<const char*>(host), bytes)]() -> absl::Status {
    if (to.memory->freed.load(std::memory_order_relaxed)) return Refuse(kCall, to.what);
    simt::Writes(device, bytes);
    std::memcpy(device, staged.data(), bytes);
    return absl::OkStatus();
  });
}
absl::Status CopyToHost(void* host, const void* device, size_t bytes, const Stream& stream) {
  constexpr const char* kCall = "a copy to the host";
  GDN_RETURN_IF_ERROR(simt::RefuseWhileRecording(kCall));
  simt::HostStream* queue = QueueOf(stream);
  if (queue == nullptr) {
    std::memcpy(host, device, bytes);
    return absl::OkStatus();
  }
  GDN_ASSIGN_OR_RETURN(const Side from, SideOf(kCall, "source", device, bytes, simt::MemoryKind::kDevice));
  const absl::StatusOr<Side> to = SideOf(kCall, "destination", host, bytes, simt::MemoryKind::kPinned);
  if (to.ok()) return EnqueueCopy(*queue, kCall, host, device, bytes, {*to, from});
  // Other memory of the host holds the data when the call returns.
  GDN_RETURN_IF_ERROR(EnqueueCopy(*queue, kCall, host, device, bytes, {from}));
  return queue->Synchronize();
}
absl::Status CopyOnDevice(void* to, const void* from, size_t bytes, const Stream& stream) {
  constexpr const char* kCall = "a copy on the device";
  GDN_RETURN_IF_ERROR(simt::RefuseWhileRecording(kCall));
  simt::HostStream* queue = QueueOf(stream);
  if (queue == nullptr) {
    std::memmove(to, from, bytes);
    return absl::OkStatus();
  }
  GDN_ASSIGN_OR_RETURN(Side source, SideOf(kCall, "source", from, bytes, simt::MemoryKind::kDevice));
  GDN_ASSIGN_OR_RETURN(Side destination, SideOf(kCall, "destination", to, bytes, simt::MemoryKind::kDevice));
  return EnqueueCopy(*queue, kCall, to, from, bytes, {std::move(source), std::move(destination)});
}

absl::StatusOr<Event> MakeEvent() {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("an event"));
  GDN_RETURN_IF_ERROR(DeviceStatus());
  return new HostEvent();
}
void DestroyEvent(Event event) { delete static_cast<HostEvent*>(event); }
absl::Status RecordEvent(Event event, const Stream& stream) {
  std::shared_ptr<const simt::StreamPoint> point;
  if (simt::HostStream* queue = QueueOf(stream); queue != nullptr) {
    GDN_ASSIGN_OR_RETURN(point, queue->Record());
  } else {
    point = std::make_shared<simt::StreamPoint>(simt::StreamPoint{nullptr, 0, simt::Clock::now()});
  }
  const simt::UnseenByTsan unseen;
  auto* const host_event = static_cast<HostEvent*>(event);
  absl::MutexLock lock(&host_event->mu);
  host_event->point = std::move(point);
  return absl::OkStatus();
}
absl::Status StreamWaitsFor(const Stream& stream, Event event) {
  std::shared_ptr<const simt::StreamPoint> point = PointOf(event);
  simt::HostStream* queue = QueueOf(stream);
  if (queue == nullptr) return WaitForEvent(event);
  return IsQueued(point) ? queue->WaitsFor(std::move(point)) : queue->device().status();
}
absl::Status WaitForEvent(Event event) {
  const std::shared_ptr<const simt::StreamPoint> point = PointOf(event);
  return IsQueued(point) ? point->stream->device().WaitFor(*point) : DeviceStatus();
}
absl::StatusOr<bool> EventIsDone(Event event) {
  const std::shared_ptr<const simt::StreamPoint> point = PointOf(event);
  if (IsQueued(point)) return point->stream->device().IsDone(*point);
  GDN_RETURN_IF_ERROR(DeviceStatus());
  return true;
}
absl::StatusOr<Event> MakeTimedEvent() { return MakeEvent(); }
absl::StatusOr<double> MicrosecondsBetween(Event begin, Event end) {
  GDN_RETURN_IF_ERROR(WaitForEvent(begin));
  GDN_RETURN_IF_ERROR(WaitForEvent(end));
  return std::chrono::duration<double, std::micro>(PointOf(end)->time - PointOf(begin)->time).count();
}

absl::Status BeginCapture(const Stream& stream) {
  GDN_RETURN_IF_ERROR(DeviceStatus());
  return simt::BeginRecording(stream);
}
absl::StatusOr<Graph> EndCapture(const Stream& stream) {
  GDN_ASSIGN_OR_RETURN(auto launches, simt::EndRecording(stream));
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("a graph"));
  return new simt::Recording(std::move(launches));
}
absl::Status LaunchGraph(Graph graph, const Stream& stream) {
  GDN_RETURN_IF_ERROR(Acquisitions::Acquire("a graph's launch"));
  for (const simt::RecordedLaunch& launch : *static_cast<const simt::Recording*>(graph)) {
    GDN_RETURN_IF_ERROR(simt::EnqueueLaunch(stream, launch.name, launch.run));
  }
  return absl::OkStatus();
}
void DestroyGraph(Graph graph) { delete static_cast<simt::Recording*>(graph); }

absl::Status RuntimeStatus(int code, const char* call) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": code ", code));
}

}  // namespace gdn::gpu
