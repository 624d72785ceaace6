// Listening sockets, at HOST:PORT or at a path.
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

// A listening socket; non-blocking.
struct ListeningSocket {
  OwnedFd fd;
  int port = 0;       // 0 for a Unix socket
  size_t origin = 0;  // number that the caller chooses; SocketListener passes it on with each connection
};

// Listens on each address of the host, all with the same port; port 0 takes a free one. 0.0.0.0 and [::] both mean IPv4
// and IPv6. INVALID_ARGUMENT as of CheckHostPort (base/net/host_port.h), UNAVAILABLE if listening fails; addresses of
// the host that this machine does not have are skipped.
absl::StatusOr<std::vector<ListeningSocket>> ListenOnTcp(const std::string& address);
// Listens at a path, where no file may exist; the file stays when the socket is closed. UNAVAILABLE if that fails.
absl::StatusOr<ListeningSocket> ListenOnUnix(const std::string& path);

}  // namespace gdn
