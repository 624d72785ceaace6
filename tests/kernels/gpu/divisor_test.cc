// Divisor of projection_args.h: quotients near every multiple, and which numbers it refuses.

#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {
namespace {

TEST(Divisor, IsRightForAllNumbersThatItDivides) {
  for (const uint32_t divisor : {1u, 2u, 3u, 7u, 60u, 193u, 641u, 1023u, 4095u, 65535u}) {
    const Divisor by = Divisor::Of(divisor);
    const int64_t most = std::min((int64_t{1} << 32) / divisor - 1, int64_t{1} << 31);
    ASSERT_TRUE(Divisor::Divides(most, divisor));
    for (int64_t number = 0; number <= most; number += 1 + number / 64) {
      for (const int64_t near : {number, std::min(most, (number / divisor + 1) * divisor - 1), most - number}) {
        ASSERT_EQ(by.Quotient(static_cast<uint32_t>(near)), near / divisor) << near << " / " << divisor;
      }
    }
  }
}

TEST(Divisor, RefusesNumbersThatCouldBeTooLarge) {
  EXPECT_FALSE(Divisor::Divides(int64_t{4095} * 2048, 4095));  // 4,095 tiles of a million features
  EXPECT_TRUE(Divisor::Divides(int64_t{4095} * 32, 4095));
}

}  // namespace
}  // namespace gdn::gpu
