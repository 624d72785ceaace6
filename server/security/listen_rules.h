// Where a server without TLS may listen: what it says could be read, and changed, by whoever is on the way.
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

// Of "HOST:PORT": whether what is said there stays on this machine. Of "unix:/PATH" too.
bool StaysOnThisMachine(std::string_view address);

// INVALID_ARGUMENT that names the address, where one does not.
absl::Status CheckListenWithoutTls(const std::vector<std::string>& addresses);

}  // namespace gdn
