#include "kernels/cpu/cpu_backend.h"

#include "base/error.h"
#include "base/threads/processors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/common/reserved_memory.h"
#include "tests/support/assert_ok.h"
#include "tests/support/refusal.h"

namespace gdn::cpu_backend_test {
namespace {

TEST(CpuBackend, SaysWhatItIs) {
  const auto backend = MakeCpuBackend({.threads = 3});
  ASSERT_TRUE(backend.ok());
  const BackendInfo& info = (*backend)->info();
  EXPECT_EQ(info.name, "cpu");
  EXPECT_FALSE(info.device.empty());
  EXPECT_THAT(
      info.numerics_id,
      testing::MatchesRegex("cpu-[a-z0-9_]+-hwy[0-9.]+-(gcc|clang)[0-9.]+-dnnl[0-9.]+-isa[0-9a-f]+-k4-L16-C64"));
  EXPECT_EQ(info.threads, 3);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_TRUE(info.unified_memory);
}

TEST(CpuBackend, TakesAThreadForEachProcessorByDefault) {
  const auto backend = MakeCpuBackend({});
  ASSERT_TRUE(backend.ok());
  EXPECT_GE(AvailableProcessors(), 1);
  EXPECT_EQ((*backend)->info().threads, AvailableProcessors());
}

TEST(CpuBackend, RefusesThreadCountsOutOfRange) {
  EXPECT_THAT(MakeCpuBackend({.threads = -1}).status(), IsInvalid(""));
  EXPECT_THAT(MakeCpuBackend({.threads = 1025}).status(), IsInvalid(""));
}

TEST(CpuBackend, MemoryIsZeroAlignedAndCommittedOnlyAsItIsTouched) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  // Half of what there may be: could not be had at once if it were committed while other tests run beside this one.
  const size_t bytes = static_cast<size_t>(HostMemoryBytes() / 2);
  auto buffer = DeviceBuffer::Make(*backend, bytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  auto* data = static_cast<unsigned char*>(buffer->data());
  for (size_t at : {size_t{0}, bytes / 2, bytes - 1}) EXPECT_EQ(data[at], 0);
  data[bytes - 1] = 1;
  EXPECT_EQ(data[bytes - 1], 1);
}

TEST(CpuBackend, AllocationBeyondTheMemoryThereIsFailsWithAReason) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  const auto buffer = DeviceBuffer::Make(*backend, static_cast<size_t>(HostMemoryBytes()) + 1);
  ExpectError(buffer.status(), absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_TRUE(DeviceBuffer::Make(*backend, 0).ok());
}

TEST(DeviceBuffer, MovesItsMemory) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  DeviceBuffer first = *DeviceBuffer::Make(*backend, 100);
  void* data = first.data();
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 100u);
  EXPECT_EQ(DeviceBuffer().data(), nullptr);
}

TEST(CpuBackend, CopiesBothWays) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  const DeviceBuffer buffer = *DeviceBuffer::Make(*backend, 3 * sizeof(float));
  const std::vector<float> in = {1.0f, 2.0f, 3.0f};
  std::vector<float> out(3);
  ASSERT_TRUE(backend->CopyIn(buffer.data(), in.data(), 12).ok());
  ASSERT_TRUE(backend->CopyOut(out.data(), buffer.data(), 12).ok());
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(in, out);
  EXPECT_TRUE(backend->CopyIn(nullptr, nullptr, 0).ok());
  EXPECT_THAT(backend->CopyIn(nullptr, in.data(), 4), IsInvalid(""));
}

}  // namespace
}  // namespace gdn::cpu_backend_test
