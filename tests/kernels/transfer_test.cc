// Memory of a backend beside its operators: copies within it, and transfers of states from any thread.

#include <cstdint>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/test_backend.h"

namespace gdn::transfer_test {
namespace {

std::vector<float> Counting(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

using Transfer = BackendTest;
GDN_ON_BACKENDS(Transfer, WithGpus({"null", "cpu"}));

TEST_P(Transfer, OfManyThreadsAtATimeArrivesWhole) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20;
  constexpr size_t kFloats = 3001;
  constexpr size_t kBytes = kFloats * sizeof(float);
  const DeviceBuffer memory = *DeviceBuffer::Make(backend(), kThreads * kBytes);
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      float* own = memory.floats() + thread * kFloats;
      const absl::StatusOr<HostBuffer> host = HostBuffer::Make(backend(), kBytes);
      std::vector<float> back(kFloats);
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<float> values = Counting(kFloats, static_cast<float>(1000 * thread + round));
        // By way of memory for transfers one way, and of any other the other.
        std::copy(values.begin(), values.end(), host->floats());
        const bool ok = round % 2 == 0 ? backend().TransferIn(own, host->floats(), kBytes).ok() &&
                                             backend().TransferOut(back.data(), own, kBytes).ok()
                                       : backend().TransferIn(own, values.data(), kBytes).ok() &&
                                             backend().TransferOut(host->floats(), own, kBytes).ok();
        if (round % 2 == 1) back.assign(host->floats(), host->floats() + kFloats);
        if (!ok || back != values) ++wrong[thread];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST_P(Transfer, SeesWhatCopiesHaveLeftAndIsSeenByThem) {
  const DeviceBuffer memory = *DeviceBuffer::Make(backend(), 3 * 64 * sizeof(float));
  float* parts[] = {memory.floats(), memory.floats() + 64, memory.floats() + 128};
  constexpr size_t kBytes = 64 * sizeof(float);
  const std::vector<float> values = Counting(64, 5.0f);
  ASSERT_TRUE(backend().TransferIn(parts[1], values.data(), kBytes).ok());
  ASSERT_TRUE(backend().Copy(parts[2], parts[1], kBytes).ok());
  ASSERT_TRUE(backend().Copy(parts[0], parts[2], kBytes).ok());
  ASSERT_TRUE(backend().Synchronize().ok());
  std::vector<float> back(64);
  ASSERT_TRUE(backend().TransferOut(back.data(), parts[0], kBytes).ok());
  EXPECT_EQ(back, values);
  ASSERT_TRUE(backend().CopyOut(back.data(), parts[2], kBytes).ok());
  ASSERT_TRUE(backend().Synchronize().ok());
  EXPECT_EQ(back, values);
  EXPECT_TRUE(backend().Copy(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(backend().TransferIn(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(backend().TransferOut(nullptr, nullptr, 0).ok());
}

using HostBuffers = BackendTest;
GDN_ON_BACKENDS(HostBuffers, WithGpus({"null", "cpu"}));

TEST_P(HostBuffers, AreAlignedAndMoveTheirMemory) {
  for (const size_t bytes : {size_t{4}, size_t{100}, size_t{3} << 20}) {
    HostBuffer first = *HostBuffer::Make(backend(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first.floats()) % 64, 0u);
    EXPECT_EQ(first.bytes(), bytes);
    first.floats()[bytes / sizeof(float) - 1] = 7.0f;
    const float* data = first.floats();
    const HostBuffer second = std::move(first);
    EXPECT_EQ(second.floats(), data);
    EXPECT_EQ(second.floats()[bytes / sizeof(float) - 1], 7.0f);
  }
  EXPECT_EQ(HostBuffer().floats(), nullptr);
}

TEST_P(Transfer, ABackendSaysHowItsSlotsHoldTheBase) {
  constexpr LayerDims kDims{.key_heads = 1, .value_heads = 1, .key_dim = 2, .value_dim = 3};
  DecodeSlots slots(backend(), kDims, /*slots=*/1, /*max_draft=*/1);
  slots.SetBase(0, {1, 2, 3, 4, 5, 6});
  std::vector<float> base(6);
  ASSERT_TRUE(backend().Synchronize().ok());
  ASSERT_TRUE(backend().TransferOut(base.data(), slots.pool().slot(0), 6 * sizeof(float)).ok());
  const std::vector<float> turned = {1, 4, 2, 5, 3, 6};
  const std::vector<float> straight = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(base, backend().info().transposed_base ? turned : straight);
}

}  // namespace
}  // namespace gdn::transfer_test
