#include "base/aligned_buffer.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/aligned_buffer.h"

namespace gdn::aligned_buffer_test {
namespace {

TEST(AlignedBuffer, IsAlignedAndZeroForEverySize) {
  for (size_t count = 1; count < 300; ++count) {
    AlignedBuffer<float> buffer(count);
    ASSERT_EQ(buffer.size(), count);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (const float value : buffer) ASSERT_EQ(value, 0.0f);
    for (float& value : buffer) value = 1.0f;  // dirties memory that the next round may get back
  }
}

TEST(AlignedBuffer, HoldsNothingWhenEmpty) {
  AlignedBuffer<double> buffer(0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size(), 0u);
  EXPECT_EQ(AlignedAllocate(0), nullptr);
}

TEST(AlignedBuffer, KeepsItsMemoryWhenMoved) {
  AlignedBuffer<int> first(10);
  first[9] = 7;
  const int* data = first.data();
  AlignedBuffer<int> second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second[9], 7);
}

TEST(AlignedBuffer, RefusesASizeThatCannotBeRounded) {
  EXPECT_EQ(AlignedAllocate(std::numeric_limits<size_t>::max()), nullptr);
}

}  // namespace
}  // namespace gdn::aligned_buffer_test
