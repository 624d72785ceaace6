// Sockets that listen, on HOST:PORT or at a path.
//
// Thread safety: free functions. Ownership: a ListeningSocket owns its descriptor.
//
//   GDN_ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, ListenOnTcp("0.0.0.0:50061"));
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/owned_fd.h"

namespace gdn {

// One that listens, non-blocking.
struct ListeningSocket {
  OwnedFd fd;
  int port = 0;       // 0: a Unix socket's
  size_t origin = 0;  // the caller's own number
};

// On each address of the host, all with one port; port 0 takes a free one. The wildcards 0.0.0.0 and [::] take IPv4 and
// IPv6. INVALID_ARGUMENT as of CheckHostPort
// (base/host_port.h), UNAVAILABLE where one cannot be listened on.
absl::StatusOr<std::vector<ListeningSocket>> ListenOnTcp(const std::string& address);
// At a path at which nothing is. UNAVAILABLE where it cannot be listened on.
absl::StatusOr<ListeningSocket> ListenOnUnix(const std::string& path);

}  // namespace gdn
