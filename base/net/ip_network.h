// The part of an IP address that its host cannot choose: the whole IPv4 address, or an IPv6 address's /64 network.
//
// Thread safety: free functions.
//
//   NetworkOf("10.0.0.7");              // "10.0.0.7"
//   NetworkOf("::ffff:10.0.0.7");       // "10.0.0.7"
//   NetworkOf("2001:db8:1:2:3:4:5:6");  // "2001:db8:1:2::/64": a host has all of these
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>

namespace gdn {

// Returns the network of an address given as text: a whole IPv4 address, such as "10.0.0.7", or the /64 of an IPv6
// address, such as "2001:db8:1:2::/64". nullopt if the text is no IP address.
std::optional<std::string> NetworkOf(const std::string& address);
// Returns the network of a connection's peer in the same form; "" for a Unix socket.
std::string NetworkOf(const sockaddr_storage& peer);

}  // namespace gdn
