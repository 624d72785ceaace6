// What tests of GPU launchers share: the linked GPU backend (the SIMT executor with waves of 64, then of 32, or the
// device), and inputs and outputs on it.
//
// Thread safety: for one thread. Ownership: OnEveryWave's device lives as long as the call.
//
//   OnEveryWave([](GpuDevice& device) {
//     const float* x = device.Upload(values);
//     float* y = device.Poisoned(n);
//     ASSERT_OK(ScaleGpu({.count = n, .factor = 2.0f, .x = x, .y = y}, device.stream()));
//     EXPECT_TRUE(BitEqual(device.Download(y, n), expected));
//   });
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_parity/backend_data.h"

#define ASSERT_OK(expression)                      \
  do {                                             \
    const absl::Status& gdn_status = (expression); \
    ASSERT_TRUE(gdn_status.ok()) << gdn_status;    \
  } while (false)

namespace gdn {

class GpuDevice {
 public:
  GpuDevice(Backend& backend, const gpu::Stream& stream) : data_(backend), stream_(stream) {}

  const gpu::Stream& stream() const { return stream_; }
  Backend& backend() const { return data_.backend(); }
  float* Upload(const std::vector<float>& values) { return *data_.Upload(values); }
  template <typename T>
  T* UploadValues(const std::vector<T>& values) {
    return *data_.Upload(values);
  }
  float* Poisoned(int64_t count) { return *data_.Poisoned(count); }
  template <typename T>
  T* PoisonedValues(int64_t count) {
    return *data_.Poisoned<T>(count);
  }
  template <typename T>
  std::vector<T> Download(const T* device, int64_t count) {
    const absl::StatusOr<std::vector<T>> values = data_.Download(device, count);
    EXPECT_TRUE(values.ok()) << values.status();
    return values.value_or(std::vector<T>());
  }

 private:
  parity::BackendData data_;
  gpu::Stream stream_;
};

// The linked GPU backend; on the SIMT executor its waves have so many lanes.
inline absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackendWithWaves(int lanes) {
  setenv("GDN_HOST_WAVE_WIDTH", std::to_string(lanes).c_str(), /*overwrite=*/1);
  return MakeGpuBackend({});
}

// Skips the test where the GPU sources were built for a device and there is none.
inline void OnEveryWave(const std::function<void(GpuDevice&)>& test) {
  const bool on_host = GpuBackendName() == std::string_view("host");
  for (const int lanes : {64, 32}) {
    SCOPED_TRACE("wave width " + (on_host ? std::to_string(lanes) : "of the device"));
    const absl::StatusOr<std::unique_ptr<Backend>> backend = MakeGpuBackendWithWaves(lanes);
    if (!backend.ok() && !on_host) GTEST_SKIP() << backend.status();
    ASSERT_TRUE(backend.ok()) << backend.status();
    const absl::StatusOr<gpu::Stream> stream = GpuStreamOf(**backend);
    ASSERT_TRUE(stream.ok()) << stream.status();
    GpuDevice device(**backend, *stream);
    test(device);
    if (!on_host) return;
  }
}

}  // namespace gdn
