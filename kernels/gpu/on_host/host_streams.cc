#include "kernels/gpu/on_host/host_streams.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/gpu/acquisitions/acquisitions.h"
#include "kernels/gpu/loading.h"
#include "kernels/gpu/on_host/device_queue.h"
#include "kernels/gpu/on_host/tsan_edges.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace simt {
namespace {

HostStreamsOptions OptionsFromEnvironment() {
  const char* seed = std::getenv("GDN_HOST_STREAMS_SEED");
  HostStreamsOptions options;
  options.asynchronous = seed != nullptr;
  if (seed != nullptr) options.seed = std::strtoull(seed, nullptr, 10);
  const char* devices = std::getenv("GDN_HOST_DEVICES");
  if (devices != nullptr) options.devices = std::max(1, std::atoi(devices));
  return options;
}

// Null where streams run at once.
using Devices = std::vector<std::shared_ptr<HostDevice>>;

Devices MakeDevices(const HostStreamsOptions& options) {
  Devices devices(static_cast<size_t>(options.devices));
  for (int i = 0; options.asynchronous && i < options.devices; ++i) {
    HostStreamsOptions own = options;
    own.seed += static_cast<uint64_t>(i);
    if (i != options.fail_device) own.fail_at = -1;
    devices[static_cast<size_t>(i)] = std::make_shared<HostDevice>(own);
  }
  return devices;
}

// The devices that are plugged in.
struct Socket {
  absl::Mutex mu;
  Devices devices ABSL_GUARDED_BY(mu) = MakeDevices(OptionsFromEnvironment());
};

Socket& TheSocket() {
  static auto* const socket = new Socket();  // never destroyed: memory may be freed after main
  return *socket;
}

}  // namespace

namespace {

thread_local int current_device = 0;

}  // namespace

int HostDeviceCount() {
  const UnseenByTsan unseen;
  Socket& socket = TheSocket();
  absl::MutexLock lock(&socket.mu);
  return static_cast<int>(socket.devices.size());
}

void SetCurrentDevice(int device) { current_device = device; }
int CurrentDeviceNumber() { return current_device; }

std::shared_ptr<HostDevice> DeviceNumber(int device) {
  const UnseenByTsan unseen;
  Socket& socket = TheSocket();
  absl::MutexLock lock(&socket.mu);
  // A thread may have used one that was plugged in before.
  return socket.devices[static_cast<size_t>(device) < socket.devices.size() ? static_cast<size_t>(device) : 0];
}

std::shared_ptr<HostDevice> CurrentDevice() { return DeviceNumber(current_device); }

std::shared_ptr<HostDevice> DeviceOf(const Allocation& memory) {
  for (int i = 0; i < HostDeviceCount(); ++i) {
    std::shared_ptr<HostDevice> device = DeviceNumber(i);
    if (device != nullptr && device.get() == memory.device) return device;
  }
  return CurrentDevice();
}

absl::Status CheckDeviceOf(HostStream& stream, const char* what) {
  if (HostDeviceCount() == 1 || &stream.device() == CurrentDevice().get()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed,
                   absl::StrCat("host executor: ", what, " is given to a stream of another device than the thread's"),
                   {{"call", what}});
}

namespace {

// What the thread records.
struct Recorder {
  bool active = false;
  void* stream = nullptr;
  absl::Status status = {};
  Recording launches = {};
};
thread_local Recorder recorder;

}  // namespace

absl::Status BeginRecording(const Stream& stream) {
  GDN_RETURN_IF_ERROR(RefuseWhileRecording("another recording"));
  recorder = {.active = true, .stream = stream.handle};
  return absl::OkStatus();
}

absl::StatusOr<Recording> EndRecording(const Stream& stream) {
  Recorder ended = std::exchange(recorder, {});
  if (!ended.active || ended.stream != stream.handle) {
    return absl::FailedPreconditionError("host executor: the stream is not being recorded");
  }
  GDN_RETURN_IF_ERROR(ended.status);
  return std::move(ended.launches);
}

absl::Status RefuseWhileRecording(const char* call) {
  if (!recorder.active) return absl::OkStatus();
  recorder.status = absl::FailedPreconditionError(
      absl::StrCat("host executor: ", call, " cannot be part of a recording; do it before or after"));
  return recorder.status;
}

absl::Status EnqueueLaunch(const Stream& stream, const char* name, std::function<absl::Status()> launch) {
  {
    const UnseenByTsan unseen;
    if (absl::Status loaded = Acquisitions::AcquireCode(name); !loaded.ok()) return loaded;
  }
  if (LoadingOnly::active()) return absl::OkStatus();
  if (recorder.active && recorder.stream == stream.handle) {
    recorder.launches.push_back({name, std::move(launch)});
    return absl::OkStatus();
  }
  if (stream.handle == nullptr) return launch();
  auto& queue = *static_cast<HostStream*>(stream.handle);
  GDN_RETURN_IF_ERROR(CheckDeviceOf(queue, name));
  return queue.Enqueue(name, std::move(launch));
}

}  // namespace simt

// True if the calling thread records on this stream.
absl::StatusOr<bool> IsCapturing(const Stream& stream) {
  return simt::recorder.active && simt::recorder.stream == stream.handle;
}

void HostStreams::Configure(const HostStreamsOptions& options) {
  simt::Devices devices = simt::MakeDevices(options);
  simt::Socket& socket = simt::TheSocket();
  absl::MutexLock lock(&socket.mu);
  std::swap(socket.devices, devices);
}

void HostStreams::ConfigureFromEnvironment() { Configure(simt::OptionsFromEnvironment()); }

int64_t HostStreams::operations(int device) {
  const std::shared_ptr<simt::HostDevice> of = simt::DeviceNumber(device);
  return of == nullptr ? 0 : of->operations();
}

int64_t HostStreams::FailAfter(int64_t more, int device) { return simt::DeviceNumber(device)->FailAfter(more); }

void HostStreams::Drain() {
  for (int i = 0; i < simt::HostDeviceCount(); ++i) {
    if (const std::shared_ptr<simt::HostDevice> device = simt::DeviceNumber(i); device != nullptr) device->Drain();
  }
}

}  // namespace gdn::gpu
