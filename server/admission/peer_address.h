// The address of a caller, without the parts that the caller can choose freely.
//
// Thread safety: a free function.
//
//   PeerAddress("ipv4:10.0.0.7:41236");                  // "10.0.0.7"
//   PeerAddress("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:80");  // "2001:db8:1:2::/64": one host may use all of these
//   PeerAddress("unix:/run/gdn.sock");                   // "unix"
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// Returns the address in `peer`, which is as gRPC gives it: without the port, and for IPv6 the /64 network. Returns
// "unix" for every Unix socket. Any other text, such as "", is returned unchanged.
std::string PeerAddress(std::string_view peer);

}  // namespace gdn
