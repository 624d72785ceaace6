// Where a call comes from, without what a caller may choose freely.
//
// Thread safety: a free function.
//
//   PeerAddress("ipv4:10.0.0.7:41236");                  // "10.0.0.7"
//   PeerAddress("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:80");  // "2001:db8:1:2::/64": a host has all of these
//   PeerAddress("unix:/run/gdn.sock");                   // "unix"
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// `peer` as gRPC says it. What it does not understand is returned as it is.
std::string PeerAddress(std::string_view peer);

}  // namespace gdn
