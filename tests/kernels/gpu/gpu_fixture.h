// Fixture for tests of GPU launchers: the linked GPU backend (the SIMT executor with waves of 64, then of 32, or the
// device), and inputs and outputs on it.
//
// Thread safety: for one thread. Ownership: uploaded data live as long as the test.
//
//   using Scale = GpuTest;
//   GDN_ON_BACKENDS(Scale, WithGpus({}));
//   TEST_P(Scale, MultipliesEveryElement) {
//     const float* x = Upload(values);
//     float* y = Poisoned(n);
//     ASSERT_EQ(ScaleGpu({.count = n, .factor = 2.0f, .x = x, .y = y}, stream()), absl::OkStatus());
//     EXPECT_TRUE(BitEqual(Download(y, n), expected));
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/support/test_backend.h"
#include "tools/gdn_parity/backend_data.h"

namespace gdn {

class GpuTest : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    if (!IsSkipped()) data_.emplace(backend());
  }

  gpu::Stream stream() { return *GpuStreamOf(backend()); }
  template <typename T = float>
  T* Upload(const std::vector<T>& values) {
    return *data_->Upload(values);
  }
  template <typename T = float>
  T* Poisoned(int64_t count) {
    return *data_->Poisoned<T>(count);
  }
  template <typename T>
  std::vector<T> Download(const T* device, int64_t count) {
    const absl::StatusOr<std::vector<T>> values = data_->Download(device, count);
    EXPECT_EQ(values.status(), absl::OkStatus());
    return values.value_or(std::vector<T>());
  }

 private:
  std::optional<parity::BackendData> data_;
};

}  // namespace gdn
