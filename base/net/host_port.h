// Addresses that a user gave: "HOST:PORT" and the names that gRPC connects to.
//
// gRPC takes a port above 65535 modulo 65536, and looks port names up in /etc/services; these functions refuse both.
// Thread safety: free functions. Ownership: plain values.
//
//   GDN_RETURN_IF_ERROR(CheckHostPort("[::1]:50061"));
//   GDN_RETURN_IF_ERROR(CheckTarget("dns:///gpu-box:50061"));
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace gdn {

// INVALID_ARGUMENT unless `address` is "HOST:PORT" with a port of 0 .. 65535; an IPv6 address needs brackets. The
// message quotes the address and says what was expected: "'::1:50061' is an IPv6 address without brackets, expected
// [::1]:50061".
absl::Status CheckHostPort(std::string_view address);

// INVALID_ARGUMENT unless `target` is "HOST:PORT" with a port of 1 .. 65535, a host alone (gRPC then uses port 443),
// "unix:/PATH", or a name with another of gRPC's schemes, such as "dns:///HOST:PORT".
absl::Status CheckTarget(std::string_view target);

}  // namespace gdn
