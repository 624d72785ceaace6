// kernels/gpu/runtime.h on the host executor: device memory is heap memory, all has happened when a call returns.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace {

constexpr size_t kAlignment = 256;  // as a GPU's allocations

int32_t WaveWidthFromEnvironment() {
  const char* text = std::getenv("GDN_HOST_WAVE_WIDTH");
  return text != nullptr && std::strcmp(text, "32") == 0 ? 32 : 64;
}

// What launches size their grids by.
int32_t ProcessorsFromEnvironment() {
  const char* text = std::getenv("GDN_HOST_PROCESSORS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 2;
}

// No rounding up of the size: AddressSanitizer is to see the end.
absl::StatusOr<void*> Allocate(size_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes == 0 ? 1 : bytes) != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     absl::StrCat("no host memory for ", bytes, " bytes of device memory"), {});
  }
  return data;
}

using Clock = std::chrono::steady_clock;

}  // namespace

absl::StatusOr<int> DeviceCount() { return 1; }

absl::StatusOr<DeviceInfo> DescribeDevice(int device) {
  DeviceInfo info;
  info.name = "SIMT executor";
  info.architecture = "host";
  info.vendor = "host";
  info.wave_width = WaveWidthFromEnvironment();
  info.processors = ProcessorsFromEnvironment();
  info.total_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  info.free_bytes = info.total_bytes / 2;
  info.l2_bytes = int64_t{1} << 20;  // small, as work sized by it is emulated
  return info;
}

absl::Status UseDevice(int device) { return absl::OkStatus(); }

absl::StatusOr<Stream> MakeStream(int device) {
  return Stream{.handle = nullptr, .wave_width = WaveWidthFromEnvironment(), .processors = ProcessorsFromEnvironment()};
}
void DestroyStream(const Stream& stream) {}
absl::Status SynchronizeStream(const Stream& stream) { return absl::OkStatus(); }

// Not a number, so that what nobody wrote shows.
absl::StatusOr<void*> DeviceMalloc(size_t bytes) {
  absl::StatusOr<void*> data = Allocate(bytes);
  if (data.ok()) std::memset(*data, 0xff, bytes);
  return data;
}
void DeviceFree(void* data) { std::free(data); }
absl::StatusOr<void*> PinnedMalloc(size_t bytes) { return Allocate(bytes); }
void PinnedFree(void* data) { std::free(data); }

absl::Status CopyToDevice(void* device, const void* host, size_t bytes, const Stream& stream) {
  std::memcpy(device, host, bytes);
  return absl::OkStatus();
}
absl::Status CopyToHost(void* host, const void* device, size_t bytes, const Stream& stream) {
  std::memcpy(host, device, bytes);
  return absl::OkStatus();
}
absl::Status CopyOnDevice(void* to, const void* from, size_t bytes, const Stream& stream) {
  std::memmove(to, from, bytes);
  return absl::OkStatus();
}

absl::StatusOr<Event> MakeEvent() { return new Clock::time_point(); }
void DestroyEvent(Event event) { delete static_cast<Clock::time_point*>(event); }
absl::Status RecordEvent(Event event, const Stream& stream) {
  *static_cast<Clock::time_point*>(event) = Clock::now();
  return absl::OkStatus();
}
absl::Status StreamWaitsFor(const Stream& stream, Event event) { return absl::OkStatus(); }
absl::Status WaitForEvent(Event event) { return absl::OkStatus(); }
absl::StatusOr<bool> EventIsDone(Event event) { return true; }
absl::StatusOr<Event> MakeTimedEvent() { return MakeEvent(); }
absl::StatusOr<double> MicrosecondsBetween(Event begin, Event end) {
  return std::chrono::duration<double, std::micro>(*static_cast<Clock::time_point*>(end) -
                                                   *static_cast<Clock::time_point*>(begin))
      .count();
}

absl::Status BeginCapture(const Stream& stream) {
  return absl::UnimplementedError("the host executor records no graphs; launch directly");
}
absl::StatusOr<Graph> EndCapture(const Stream& stream) { return BeginCapture(stream); }
absl::Status LaunchGraph(Graph graph, const Stream& stream) { return BeginCapture(stream); }
void DestroyGraph(Graph graph) {}

absl::Status RuntimeStatus(int code, const char* call) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": code ", code));
}

}  // namespace gdn::gpu
