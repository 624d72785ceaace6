#include "server/admission/peer_address.h"

#include <gtest/gtest.h>

namespace gdn::peer_address_test {
namespace {

TEST(PeerAddress, PortsDoNotMatter) {
  EXPECT_EQ(PeerAddress("ipv4:10.0.0.7:41236"), "10.0.0.7");
  EXPECT_EQ(PeerAddress("ipv4:10.0.0.7:2"), PeerAddress("ipv4:10.0.0.7:41236"));
}

TEST(PeerAddress, TheHalfOfAnIpv6AddressThatItsHostChoosesDoesNotMatter) {
  EXPECT_EQ(PeerAddress("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:80"), "2001:db8:1:2::/64");
  EXPECT_EQ(PeerAddress("ipv6:[2001:db8:1:2::ffff]:81"), "2001:db8:1:2::/64");
  EXPECT_EQ(PeerAddress("ipv6:[fe80::1%25eth0]:81"), "fe80::/64");
}

TEST(PeerAddress, AnIpv4AddressIsOneInIpv6TooWhereverItIsWritten) {
  EXPECT_EQ(PeerAddress("ipv6:[::ffff:10.0.0.7]:41236"), "10.0.0.7");
}

TEST(PeerAddress, UnixSocketsAreOneAddress) {
  EXPECT_EQ(PeerAddress("unix:"), "unix");
  EXPECT_EQ(PeerAddress("unix:/run/gdn/gdn.sock"), "unix");
}

TEST(PeerAddress, WhatIsNotUnderstoodStaysAsItIs) {
  EXPECT_EQ(PeerAddress(""), "");
  EXPECT_EQ(PeerAddress("vsock:3:42"), "vsock:3:42");
  EXPECT_EQ(PeerAddress("ipv6:nonsense"), "ipv6:nonsense");
}

}  // namespace
}  // namespace gdn::peer_address_test
