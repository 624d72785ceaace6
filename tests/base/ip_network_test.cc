#include "base/net/ip_network.h"

#include <optional>

#include "gtest/gtest.h"

namespace gdn::ip_network_test {
namespace {

TEST(Networks, AreWhatAHostCannotChoose) {
  EXPECT_EQ(NetworkOf("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(NetworkOf("::ffff:10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(NetworkOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  for (const char* const bad : {"", "host", "10.0.0.7:80", "10.0.0", "[::1]"})
    EXPECT_EQ(NetworkOf(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace gdn::ip_network_test
