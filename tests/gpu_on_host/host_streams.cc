#include "gpu_on_host/host_streams.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gpu_on_host/device_queue.h"
#include "gpu_on_host/tsan_edges.h"

namespace gdn::gpu {
namespace simt {
namespace {

HostStreamsOptions OptionsFromEnvironment() {
  const char* seed = std::getenv("GDN_HOST_STREAMS_SEED");
  HostStreamsOptions options;
  options.asynchronous = seed != nullptr;
  if (seed != nullptr) options.seed = std::strtoull(seed, nullptr, 10);
  return options;
}

std::shared_ptr<HostDevice> MakeDevice(const HostStreamsOptions& options) {
  return options.asynchronous ? std::make_shared<HostDevice>(options) : nullptr;
}

// The device that is plugged in.
struct Socket {
  absl::Mutex mu;
  std::shared_ptr<HostDevice> device ABSL_GUARDED_BY(mu) = MakeDevice(OptionsFromEnvironment());
};

Socket& TheSocket() {
  static auto* const socket = new Socket();  // never destroyed: memory may be freed after main
  return *socket;
}

}  // namespace

std::shared_ptr<HostDevice> CurrentDevice() {
  const UnseenByTsan unseen;
  Socket& socket = TheSocket();
  absl::MutexLock lock(&socket.mu);
  return socket.device;
}

namespace {

// What the thread records.
struct Recorder {
  bool active = false;
  void* stream = nullptr;
  absl::Status status;
  Recording launches;
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
  if (recorder.active && recorder.stream == stream.handle) {
    recorder.launches.push_back({name, std::move(launch)});
    return absl::OkStatus();
  }
  if (stream.handle == nullptr) return launch();
  return static_cast<HostStream*>(stream.handle)->Enqueue(name, std::move(launch));
}

}  // namespace simt

void HostStreams::Configure(const HostStreamsOptions& options) {
  std::shared_ptr<simt::HostDevice> device = simt::MakeDevice(options);
  simt::Socket& socket = simt::TheSocket();
  absl::MutexLock lock(&socket.mu);
  std::swap(socket.device, device);
}

void HostStreams::ConfigureFromEnvironment() { Configure(simt::OptionsFromEnvironment()); }

int64_t HostStreams::operations() {
  const std::shared_ptr<simt::HostDevice> device = simt::CurrentDevice();
  return device == nullptr ? 0 : device->operations();
}

void HostStreams::Drain() {
  if (const std::shared_ptr<simt::HostDevice> device = simt::CurrentDevice(); device != nullptr) device->Drain();
}

}  // namespace gdn::gpu
