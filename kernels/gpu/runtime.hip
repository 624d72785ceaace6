// kernels/gpu/runtime.h for AMD and NVIDIA: the same calls under two names.

#include "kernels/gpu/runtime.h"

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/gpu/device.h"

namespace gdn::gpu {
namespace {

using ApiStream = GDN_GPU_API(Stream_t);
using ApiEvent = GDN_GPU_API(Event_t);

ApiStream Handle(const Stream& stream) { return static_cast<ApiStream>(stream.handle); }

absl::Status Check(GDN_GPU_API(Error_t) code, const char* call) { return RuntimeStatus(static_cast<int>(code), call); }

std::string CurrentDevice() {
  int device = -1;
  if (GDN_GPU_API(GetDevice)(&device) != GDN_GPU_API(Success)) return "unknown device";
  return absl::StrCat("device ", device);
}

}  // namespace

absl::Status RuntimeStatus(int code, const char* call) {
  const auto error = static_cast<GDN_GPU_API(Error_t)>(code);
  if (error == GDN_GPU_API(Success)) return absl::OkStatus();
  // Reads and clears the sticky error where it is one that can be cleared.
  static_cast<void>(GDN_GPU_API(GetLastError)());
  const std::string what =
      absl::StrCat(GDN_GPU_VENDOR, " ", call, " failed on ", CurrentDevice(), ": ", GDN_GPU_API(GetErrorName)(error),
                   " (", GDN_GPU_API(GetErrorString)(error), ")");
  if (error == kErrorOutOfMemory) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     absl::StrCat(what, "; lower --state-slots or --device-state-bytes, or free the device"),
                     {{"call", call}});
  }
  if (error == GDN_GPU_API(ErrorNoDevice) || error == GDN_GPU_API(ErrorInvalidDevice) ||
      error == GDN_GPU_API(ErrorInsufficientDriver)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDeviceUnsupported,
                     absl::StrCat(what, "; run 'gdnctl doctor' to see what this machine lacks, or use --backend=cpu"),
                     {{"call", call}});
  }
  return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed,
                   absl::StrCat(what,
                                "; the device must be taken as lost: restart the server, and where it fails again "
                                "run 'gdnctl doctor' and look at the kernel log"),
                   {{"call", call}});
}

absl::StatusOr<int> DeviceCount() {
  int count = 0;
  GDN_RETURN_IF_ERROR(Check(GDN_GPU_API(GetDeviceCount)(&count), "GetDeviceCount"));
  return count;
}

absl::StatusOr<DeviceInfo> DescribeDevice(int device) {
  ApiDeviceProperties properties;
  GDN_RETURN_IF_ERROR(Check(GDN_GPU_API(GetDeviceProperties)(&properties, device), "GetDeviceProperties"));
  DeviceInfo info;
  info.vendor = GDN_GPU_VENDOR;
  info.toolkit = ToolkitName();
  info.name = properties.name;
  info.architecture = ArchitectureName(properties);
  info.wave_width = properties.warpSize;
  info.processors = properties.multiProcessorCount;
  info.memory_bus_bits = properties.memoryBusWidth;
  info.l2_bytes = properties.l2CacheSize;
  info.matrix_units = HasMatrixUnits(properties);
  static_cast<void>(GDN_GPU_API(RuntimeGetVersion)(&info.runtime_version));
  static_cast<void>(GDN_GPU_API(DriverGetVersion)(&info.driver_version));
  int khz = 0;
  if (GDN_GPU_API(DeviceGetAttribute)(&khz, kClockRateAttribute, device) == GDN_GPU_API(Success)) info.clock_khz = khz;
  if (GDN_GPU_API(DeviceGetAttribute)(&khz, kMemoryClockRateAttribute, device) == GDN_GPU_API(Success)) {
    info.memory_clock_khz = khz;
  }
  GDN_ASSIGN_OR_RETURN(const int previous, DeviceInUse());
  GDN_RETURN_IF_ERROR(UseDevice(device));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  const absl::Status memory = Check(GDN_GPU_API(MemGetInfo)(&free_bytes, &total_bytes), "MemGetInfo");
  GDN_RETURN_IF_ERROR(UseDevice(previous));
  GDN_RETURN_IF_ERROR(memory);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.total_bytes = static_cast<int64_t>(total_bytes);
  return info;
}

absl::Status UseDevice(int device) { return Check(GDN_GPU_API(SetDevice)(device), "SetDevice"); }

absl::StatusOr<int> DeviceInUse() {
  int device = 0;
  GDN_RETURN_IF_ERROR(Check(GDN_GPU_API(GetDevice)(&device), "GetDevice"));
  return device;
}

absl::StatusOr<Stream> MakeStream(int device) {
  GDN_ASSIGN_OR_RETURN(const DeviceInfo info, DescribeDevice(device));
  GDN_RETURN_IF_ERROR(UseDevice(device));
  ApiStream stream;
  GDN_RETURN_IF_ERROR(
      Check(GDN_GPU_API(StreamCreateWithFlags)(&stream, GDN_GPU_API(StreamNonBlocking)), "StreamCreate"));
  return Stream{stream, info.wave_width, info.processors, OverlapsKernels(device), info.matrix_units};
}

void DestroyStream(const Stream& stream) { static_cast<void>(GDN_GPU_API(StreamDestroy)(Handle(stream))); }

absl::Status SynchronizeStream(const Stream& stream) {
  return Check(GDN_GPU_API(StreamSynchronize)(Handle(stream)), "StreamSynchronize");
}

absl::StatusOr<void*> DeviceMalloc(size_t bytes) {
  void* data = nullptr;
  GDN_RETURN_IF_ERROR(Check(GDN_GPU_API(Malloc)(&data, bytes), "Malloc"));
  return data;
}

void DeviceFree(void* data) { static_cast<void>(GDN_GPU_API(Free)(data)); }

absl::StatusOr<void*> PinnedMalloc(size_t bytes) {
  void* data = nullptr;
  GDN_RETURN_IF_ERROR(Check(ApiHostAlloc(&data, bytes), "HostAlloc"));
  return data;
}

void PinnedFree(void* data) { static_cast<void>(ApiFreeHost(data)); }

absl::Status CopyToDevice(void* device, const void* host, size_t bytes, const Stream& stream) {
  return Check(GDN_GPU_API(MemcpyAsync)(device, host, bytes, GDN_GPU_API(MemcpyHostToDevice), Handle(stream)),
               "MemcpyAsync to the device");
}

absl::Status CopyToHost(void* host, const void* device, size_t bytes, const Stream& stream) {
  return Check(GDN_GPU_API(MemcpyAsync)(host, device, bytes, GDN_GPU_API(MemcpyDeviceToHost), Handle(stream)),
               "MemcpyAsync to the host");
}

absl::Status CopyOnDevice(void* to, const void* from, size_t bytes, const Stream& stream) {
  return Check(GDN_GPU_API(MemcpyAsync)(to, from, bytes, GDN_GPU_API(MemcpyDeviceToDevice), Handle(stream)),
               "MemcpyAsync on the device");
}

// Who waits for it sleeps: a thread that spins would take a core from those that prepare the next work.
absl::StatusOr<Event> MakeEvent() {
  ApiEvent event;
  GDN_RETURN_IF_ERROR(
      Check(GDN_GPU_API(EventCreateWithFlags)(&event, GDN_GPU_API(EventDisableTiming) | GDN_GPU_API(EventBlockingSync)),
            "EventCreate"));
  return event;
}

void DestroyEvent(Event event) { static_cast<void>(GDN_GPU_API(EventDestroy)(static_cast<ApiEvent>(event))); }

absl::Status RecordEvent(Event event, const Stream& stream) {
  return Check(GDN_GPU_API(EventRecord)(static_cast<ApiEvent>(event), Handle(stream)), "EventRecord");
}

absl::Status StreamWaitsFor(const Stream& stream, Event event) {
  return Check(GDN_GPU_API(StreamWaitEvent)(Handle(stream), static_cast<ApiEvent>(event), /*flags=*/0),
               "StreamWaitEvent");
}

absl::Status WaitForEvent(Event event) {
  return Check(GDN_GPU_API(EventSynchronize)(static_cast<ApiEvent>(event)), "EventSynchronize");
}

absl::StatusOr<bool> EventIsDone(Event event) {
  const GDN_GPU_API(Error_t) code = GDN_GPU_API(EventQuery)(static_cast<ApiEvent>(event));
  if (code == GDN_GPU_API(ErrorNotReady)) {
    static_cast<void>(GDN_GPU_API(GetLastError)());  // the next launch must not take it for an error of its own
    return false;
  }
  GDN_RETURN_IF_ERROR(Check(code, "EventQuery"));
  return true;
}

absl::StatusOr<Event> MakeTimedEvent() {
  ApiEvent event;
  GDN_RETURN_IF_ERROR(Check(GDN_GPU_API(EventCreate)(&event), "EventCreate"));
  return event;
}

absl::StatusOr<double> MicrosecondsBetween(Event begin, Event end) {
  GDN_RETURN_IF_ERROR(Check(GDN_GPU_API(EventSynchronize)(static_cast<ApiEvent>(end)), "EventSynchronize"));
  float milliseconds = 0.0f;
  GDN_RETURN_IF_ERROR(
      Check(GDN_GPU_API(EventElapsedTime)(&milliseconds, static_cast<ApiEvent>(begin), static_cast<ApiEvent>(end)),
            "EventElapsedTime"));
  return milliseconds * 1e3;
}

absl::Status BeginCapture(const Stream& stream) {
  return Check(GDN_GPU_API(StreamBeginCapture)(Handle(stream), GDN_GPU_API(StreamCaptureModeThreadLocal)),
               "StreamBeginCapture");
}

absl::StatusOr<Graph> EndCapture(const Stream& stream) {
  GDN_GPU_API(Graph_t) graph = nullptr;
  GDN_RETURN_IF_ERROR(Check(GDN_GPU_API(StreamEndCapture)(Handle(stream), &graph), "StreamEndCapture"));
  GDN_GPU_API(GraphExec_t) executable = nullptr;
  const absl::Status status = Check(ApiInstantiate(&executable, graph), "GraphInstantiate");
  static_cast<void>(GDN_GPU_API(GraphDestroy)(graph));
  GDN_RETURN_IF_ERROR(status);
  return executable;
}

absl::StatusOr<bool> IsCapturing(const Stream& stream) {
  auto status = GDN_GPU_API(StreamCaptureStatusNone);
  const GDN_GPU_API(Error_t) code = GDN_GPU_API(StreamIsCapturing)(Handle(stream), &status);
  if (code == GDN_GPU_API(ErrorStreamCaptureImplicit)) {
    static_cast<void>(GDN_GPU_API(GetLastError)());  // the next launch must not take it for an error of its own
    return true;
  }
  GDN_RETURN_IF_ERROR(Check(code, "StreamIsCapturing"));
  return status != GDN_GPU_API(StreamCaptureStatusNone);
}

absl::Status LaunchGraph(Graph graph, const Stream& stream) {
  return Check(GDN_GPU_API(GraphLaunch)(static_cast<GDN_GPU_API(GraphExec_t)>(graph), Handle(stream)), "GraphLaunch");
}

void DestroyGraph(Graph graph) {
  static_cast<void>(GDN_GPU_API(GraphExecDestroy)(static_cast<GDN_GPU_API(GraphExec_t)>(graph)));
}

}  // namespace gdn::gpu
