// Says where a server without TLS may listen. Without TLS, anyone on the way can read and change what is sent.
//
// Thread safety: free functions.
//
//   GDN_RETURN_IF_ERROR(CheckListenWithoutTls({"127.0.0.1:50061", "unix:/run/gdn/gdn.sock"}));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace gdn {

// Returns true if what is sent to "HOST:PORT" or "unix:/PATH" stays on this machine: the host is localhost, 127.x.x.x
// or [::1], or it is a Unix socket. Looks no name up, so any other name counts as another machine.
bool StaysOnThisMachine(std::string_view address);

// Checks the addresses of a server without TLS: all must stay on this machine (StaysOnThisMachine). INVALID_ARGUMENT
// names the first one that does not.
absl::Status CheckListenWithoutTls(const std::vector<std::string>& addresses);

}  // namespace gdn
