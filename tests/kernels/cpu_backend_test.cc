#include "kernels/cpu/cpu_backend.h"

#include <cstring>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/common/reserved_memory.h"
#include "kernels/cpu/processor.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr LayerDims kDims{
    .key_heads = 2, .value_heads = 4, .key_dim = 5, .value_dim = 3, .conv_width = 4, .hidden_size = 8};

SlotImage RandomImage(const LayerDims& dims, int32_t log_length, Random& random) {
  return {.base = random.Normal(dims.state_elements()),
          .log_k = random.Normal(log_length * dims.key_features()),
          .log_u = random.Normal(log_length * dims.value_features()),
          .log_g = random.Uniform(int64_t{log_length} * dims.value_heads, -1.0f, 0.0f),
          .conv = random.Normal(dims.conv_channels() * (dims.conv_width - 1))};
}

TEST(CpuBackend, SaysWhatItIs) {
  const auto backend = MakeCpuBackend({.threads = 3});
  ASSERT_TRUE(backend.ok());
  const BackendInfo& info = (*backend)->info();
  EXPECT_EQ(info.name, "cpu");
  EXPECT_FALSE(info.device.empty());
  EXPECT_THAT(info.numerics_id, testing::MatchesRegex("cpu-[a-z0-9_]+-dnnl[0-9.]+-isa[0-9a-f]+-k1-L16-C64"));
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
  EXPECT_EQ(MakeCpuBackend({.threads = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeCpuBackend({.threads = 1025}).status().code(), absl::StatusCode::kInvalidArgument);
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
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(buffer.status()), reason::kStateBudgetExhausted);
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
  EXPECT_EQ(backend->CopyIn(nullptr, in.data(), 4).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuBackend, ASlotReadsBackWhatWasWrittenAtAnyTokenCount) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 3);
  Random random(1);
  for (int64_t token_count : {0, 1, 2, 3, 9, 10, 11, 12345}) {
    for (int32_t log_length : {0, 1, 15}) {
      const SlotImage image = RandomImage(kDims, log_length, random);
      ASSERT_TRUE(backend->WriteSlot(pool.view(), 1, token_count, image).ok());
      const auto read = backend->ReadSlot(pool.view(), 1, log_length, token_count);
      ASSERT_TRUE(read.ok());
      EXPECT_EQ(read->base, image.base);
      EXPECT_EQ(read->log_k, image.log_k);
      EXPECT_EQ(read->log_u, image.log_u);
      EXPECT_EQ(read->log_g, image.log_g);
      EXPECT_EQ(read->conv, image.conv);
      EXPECT_THAT(pool.slot(0), testing::Each(0.0f));
      EXPECT_THAT(pool.slot(2), testing::Each(0.0f));
    }
  }
}

TEST(CpuBackend, ConvolutionColumnsAreNewestLast) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 1, /*max_draft=*/2);  // P = 5
  const StateLayout& layout = pool.view().layout;
  const int64_t channels = kDims.conv_channels();
  for (int64_t column = 0; column < 5; ++column) {
    for (int64_t c = 0; c < channels; ++c) {
      pool.view().slot(0)[layout.conv_offset() + column * channels + c] = static_cast<float>(100 * column + c);
    }
  }
  // After 7 tokens the newest three are 4, 5 and 6: columns 4, 0 and 1.
  const SlotImage image = *backend->ReadSlot(pool.view(), 0, 0, /*token_count=*/7);
  EXPECT_THAT(absl::MakeSpan(image.conv).subspan(2 * 3, 3), testing::ElementsAre(402, 2, 102));
  // After one token they are -2, -1 and 0: columns 3, 4 and 0.
  const SlotImage young = *backend->ReadSlot(pool.view(), 0, 0, /*token_count=*/1);
  EXPECT_THAT(absl::MakeSpan(young.conv).subspan(0, 3), testing::ElementsAre(300, 400, 0));
}

TEST(CpuBackend, ZeroSlotMakesOneSlotFresh) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 2);
  Random random(2);
  const SlotImage image = RandomImage(kDims, 3, random);
  ASSERT_TRUE(backend->WriteSlot(pool.view(), 0, 5, image).ok());
  ASSERT_TRUE(backend->WriteSlot(pool.view(), 1, 5, image).ok());
  ASSERT_TRUE(backend->ZeroSlot(pool.view(), 0).ok());
  EXPECT_THAT(pool.slot(0), testing::Each(0.0f));
  EXPECT_EQ(backend->ReadSlot(pool.view(), 1, 3, 5)->base, image.base);
}

TEST(CpuBackend, BadSlotAccessIsRefusedAndChangesNothing) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  HostStatePool pool(kDims, 2);
  Random random(3);
  const SlotImage good = RandomImage(kDims, 2, random);
  const auto code = [](const auto& result) { return result.code(); };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(backend->ZeroSlot(pool.view(), 2)), kInvalid);
  EXPECT_EQ(code(backend->ZeroSlot(pool.view(), -1)), kInvalid);
  EXPECT_EQ(code(backend->ReadSlot(pool.view(), 0, -1, 0).status()), kInvalid);
  EXPECT_EQ(code(backend->ReadSlot(pool.view(), 0, pool.view().layout.log_rows() + 1, 0).status()), kInvalid);
  EXPECT_EQ(code(backend->ReadSlot(pool.view(), 0, 0, -1).status()), kInvalid);
  EXPECT_EQ(code(backend->WriteSlot(pool.view(), 0, -1, good)), kInvalid);
  std::vector<float> SlotImage::*const parts[] = {&SlotImage::base, &SlotImage::log_k, &SlotImage::log_u,
                                                  &SlotImage::log_g, &SlotImage::conv};
  for (std::vector<float> SlotImage::*part : parts) {
    SlotImage bad = good;
    (bad.*part).pop_back();
    const absl::Status status = backend->WriteSlot(pool.view(), 0, 0, bad);
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
  }
  const SlotImage too_long = RandomImage(kDims, pool.view().layout.log_rows() + 1, random);
  EXPECT_EQ(code(backend->WriteSlot(pool.view(), 0, 0, too_long)), kInvalid);
  EXPECT_THAT(pool.slot(0), testing::Each(0.0f));
}

TEST(CpuBackend, ABareOperatorsSlotHasNoConvolution) {
  const auto backend = *MakeCpuBackend({.threads = 1});
  const LayerDims dims = OperatorDims(1, 2, 4, 4);
  HostStatePool pool(dims, 1);
  Random random(4);
  SlotImage image{.base = random.Normal(dims.state_elements()), .log_k = {}, .log_u = {}, .log_g = {}, .conv = {}};
  ASSERT_TRUE(backend->WriteSlot(pool.view(), 0, 17, image).ok());
  const SlotImage read = *backend->ReadSlot(pool.view(), 0, 0, 17);
  EXPECT_EQ(read.base, image.base);
  EXPECT_TRUE(read.conv.empty());
}

}  // namespace
}  // namespace gdn
