#include "state_store/host_block_pool.h"

#include "gtest/gtest.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/host_memory_backend.h"

namespace gdn::host_block_pool_test {
namespace {

class Failed final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  absl::StatusOr<void*> AllocateHost(size_t) override { return absl::UnavailableError("the device has failed"); }
};

TEST(HostBlockPool, TakesMemoryOfTheDevicesThatWork) {
  HostMemoryBackend first(/*unified_memory=*/false), second(/*unified_memory=*/false);
  Failed failed(first);
  HostBlockPool both({&failed, &second}, /*keep_bytes=*/0);
  for (const size_t bytes : {size_t{1}, size_t{1} << 20}) {
    const auto block = both.Take(bytes);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->bytes(), bytes);
  }
  HostBlockPool none({&failed, &failed}, /*keep_bytes=*/0);
  EXPECT_EQ(none.Take(1).status().message(), "the device has failed");
}

}  // namespace
}  // namespace gdn::host_block_pool_test
