// The GPU backend on streams that run behind the host: what it promises holds at every pace, and a device that fails at
// any operation is reported.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu_backend/gpu_backend.h"

namespace gdn::gpu_backend_streams_test {
namespace {

using gpu::HostStreams;
using ::testing::Each;

constexpr uint64_t kSeeds = 16;
constexpr int kHeads = 2;
constexpr int kDim = 4;
constexpr int kRows = 3;
constexpr int kFloats = kRows * kHeads * kDim;
constexpr size_t kBytes = kFloats * sizeof(float);

class GpuBackendStreams : public testing::Test {
 protected:
  ~GpuBackendStreams() override { HostStreams::ConfigureFromEnvironment(); }
  static void Configure(uint64_t seed, int64_t fail_at = -1) {
    HostStreams::Configure({.asynchronous = true, .seed = seed, .fail_at = fail_at});
  }
};

TEST_F(GpuBackendStreams, AnAllocationIsZeroedBeforeATransferFillsIt) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Configure(seed);
    const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
    const DeviceBuffer memory = *DeviceBuffer::Make(*backend, kBytes);
    std::vector<float> values(kFloats, 3.0f);
    ASSERT_TRUE(backend->TransferIn(memory.data(), values.data(), kBytes).ok());
    std::fill(values.begin(), values.end(), 0.0f);
    ASSERT_TRUE(backend->CopyOut(values.data(), memory.data(), kBytes).ok());
    EXPECT_THAT(values, Each(3.0f)) << "seed " << seed;
  }
}

// Each way into and out of the device, and an operator between.
absl::StatusOr<std::vector<float>> Normalise(Backend& backend) {
  std::vector<float> values(kFloats, 2.0f);
  GDN_ASSIGN_OR_RETURN(const DeviceBuffer q, DeviceBuffer::Make(backend, kBytes));
  GDN_ASSIGN_OR_RETURN(const DeviceBuffer k, DeviceBuffer::Make(backend, kBytes));
  GDN_RETURN_IF_ERROR(backend.TransferIn(k.data(), values.data(), kBytes));
  GDN_RETURN_IF_ERROR(backend.CopyIn(q.data(), values.data(), kBytes));
  std::fill(values.begin(), values.end(), -1.0f);  // the copy keeps what it was given
  QkL2NormParams params{.key_heads = kHeads, .key_dim = kDim, .rows = kRows, .scale = 4.0f};
  params.q = params.q_out = q.floats();
  params.k = params.k_out = k.floats();
  params.in_stride = kHeads * kDim;
  GDN_RETURN_IF_ERROR(backend.QkL2Norm(params));
  GDN_RETURN_IF_ERROR(backend.Copy(k.data(), q.data(), kBytes));
  GDN_RETURN_IF_ERROR(backend.Synchronize());
  GDN_RETURN_IF_ERROR(backend.TransferOut(values.data(), k.data(), kBytes));
  std::vector<float> copied(kFloats);
  GDN_RETURN_IF_ERROR(backend.CopyOut(copied.data(), q.data(), kBytes));
  EXPECT_EQ(copied, values);
  return values;
}

TEST_F(GpuBackendStreams, OperatorsCopiesAndTransfersAgreeAtEveryPace) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Configure(seed);
    const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
    EXPECT_THAT(*Normalise(*backend), Each(testing::FloatNear(2.0f, 1e-5f))) << "seed " << seed;
  }
}

TEST_F(GpuBackendStreams, AFailureAtAnyOperationIsReportedAndStays) {
  Configure(/*seed=*/0);
  int64_t made_by = 0;  // operations until the backend is made
  {
    const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
    made_by = HostStreams::operations();
    ASSERT_TRUE(Normalise(*backend).ok());
  }
  const int64_t operations = HostStreams::operations();
  ASSERT_GT(operations, made_by);
  for (int64_t fail_at = 0; fail_at < operations; ++fail_at) {
    SCOPED_TRACE(testing::Message() << "operation " << fail_at << " of " << operations);
    Configure(/*seed=*/fail_at, fail_at);
    const absl::StatusOr<std::unique_ptr<Backend>> backend = MakeGpuBackend({});
    ASSERT_EQ(backend.ok(), fail_at >= made_by);
    if (!backend.ok()) {
      EXPECT_EQ(ErrorReason(backend.status()), reason::kDeviceUnsupported);
      continue;
    }
    EXPECT_EQ(ErrorReason(Normalise(**backend).status()), reason::kDeviceFailed);
    EXPECT_EQ(ErrorReason(Normalise(**backend).status()), reason::kDeviceFailed);
    EXPECT_EQ(ErrorReason((*backend)->Synchronize()), reason::kDeviceFailed);
  }
}

// Whoever has waited takes the launch's memory back.
TEST_F(GpuBackendStreams, AFenceOfALostDeviceIsPassedOnceItsLaunchIsOver) {
  HostStreams::Configure({.asynchronous = true, .paces = std::vector(8, gpu::StreamPace::kEager)});
  const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
  const gpu::Stream other = *gpu::MakeStream(/*device=*/0);
  std::latch started{1}, lost{1};
  std::atomic<bool> over{false};
  const auto launch = [&] {
    started.count_down();
    lost.wait();
    absl::SleepFor(absl::Milliseconds(50));  // who does not wait for it is ahead of it
    over = true;
    return absl::OkStatus();
  };
  ASSERT_TRUE(gpu::simt::EnqueueLaunch(*GpuStreamOf(*backend), "a launch", launch).ok());
  const Fence fence = *backend->MakeFence();
  started.wait();
  ASSERT_TRUE(gpu::simt::EnqueueLaunch(other, "a launch", [] { return absl::InternalError("it fails"); }).ok());
  EXPECT_EQ(ErrorReason(gpu::SynchronizeStream(other)), reason::kDeviceFailed);
  lost.count_down();
  EXPECT_EQ(ErrorReason(backend->WaitFence(fence)), reason::kDeviceFailed);
  EXPECT_TRUE(over.load());
  gpu::DestroyStream(other);
}

}  // namespace
}  // namespace gdn::gpu_backend_streams_test
