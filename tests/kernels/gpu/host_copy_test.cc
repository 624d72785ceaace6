// Copies between a device and page-locked memory by a kernel: every byte arrives and none beside them changes, and the
// flags say so once it is true.

#include "kernels/host_copy/host_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gpu/runtime.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/random.h"

namespace gdn::host_copy_test {
namespace {

constexpr size_t kMargin = 64;
constexpr uint32_t kNumber = 7;

struct FreesPinned {
  void operator()(void* data) const { gpu::PinnedFree(data); }
};
template <typename T>
std::unique_ptr<T, FreesPinned> Pinned(size_t count) {
  return std::unique_ptr<T, FreesPinned>(static_cast<T*>(*gpu::PinnedMalloc(count * sizeof(T))));
}

struct Range {
  size_t bytes, to_offset, from_offset;
};

using HostCopy = GpuTest;
GDN_ON_BACKENDS(HostCopy, WithGpus({}));

TEST_P(HostCopy, CopiesEveryByteAndNoOtherBothWays) {
  Random random(5);
  for (const Range& range :
       {Range{1, 0, 0}, Range{15, 0, 0}, Range{16, 0, 0}, Range{4095, 16, 0}, Range{4096, 0, 0}, Range{4097, 0, 32},
        Range{20000, 2, 0}, Range{20000, 0, 6}, Range{8192, 3, 3}, Range{131072, 0, 0}}) {
    SCOPED_TRACE(testing::Message() << range.bytes << " bytes from " << range.from_offset << " to " << range.to_offset);
    const size_t all = range.bytes + 2 * kMargin;
    std::vector<char> content(all);
    for (char& byte : content) byte = static_cast<char>(random.Next());
    const std::vector<char> empty(all, 'x');
    const auto host = Pinned<char>(all), back = Pinned<char>(all);
    std::memcpy(host.get(), content.data(), all);
    std::memcpy(back.get(), empty.data(), all);
    char* const device = Upload(empty);

    ASSERT_EQ(HostCopyGpu(device + range.to_offset, host.get() + range.from_offset, range.bytes, nullptr, 0, stream()),
              absl::OkStatus());
    std::vector<char> expected = empty;
    std::copy_n(content.data() + range.from_offset, range.bytes, expected.data() + range.to_offset);
    EXPECT_EQ(Download(device, static_cast<int64_t>(all)), expected);

    const int64_t blocks = HostCopyBlocks(range.bytes);
    const auto flags = Pinned<uint32_t>(static_cast<size_t>(blocks) + 1);
    std::fill_n(flags.get(), blocks + 1, kNumber - 1);
    EXPECT_FALSE(HostCopyHasEnded(flags.get(), blocks, kNumber));
    ASSERT_EQ(HostCopyGpu(back.get() + range.from_offset, device + range.to_offset, range.bytes, flags.get(), kNumber,
                          stream()),
              absl::OkStatus());
    while (!HostCopyHasEnded(flags.get(), blocks, kNumber)) static_cast<void>(gpu::SynchronizeStream(stream()));
    EXPECT_EQ(flags.get()[blocks], kNumber - 1);  // nobody's
    expected = empty;
    std::copy_n(content.data() + range.from_offset, range.bytes, expected.data() + range.from_offset);
    EXPECT_EQ(std::string(back.get(), all), std::string(expected.data(), all));
    ASSERT_EQ(gpu::SynchronizeStream(stream()), absl::OkStatus());
  }
}

TEST_P(HostCopy, NothingIsValidAndSetsNoFlag) {
  const auto flag = Pinned<uint32_t>(1);
  *flag = kNumber - 1;
  EXPECT_EQ(HostCopyBlocks(0), 0);
  EXPECT_EQ(HostCopyGpu(flag.get(), flag.get(), 0, flag.get(), kNumber, stream()), absl::OkStatus());
  EXPECT_EQ(gpu::SynchronizeStream(stream()), absl::OkStatus());
  EXPECT_EQ(*flag, kNumber - 1);
  EXPECT_TRUE(HostCopyHasEnded(flag.get(), 0, kNumber));
}

}  // namespace
}  // namespace gdn::host_copy_test
