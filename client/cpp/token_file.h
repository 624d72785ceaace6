// A token in a file of its own, so that no command line and no other process's listing has it.
//
// Thread safety: a free function.
//
//   GDN_ASSIGN_OR_RETURN(const std::string authorization, AuthorizationOfFile("alice.token"));
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gdn {

// "Bearer TOKEN", of the file's first line. INVALID_ARGUMENT where it cannot be read or is empty.
absl::StatusOr<std::string> AuthorizationOfFile(const std::string& path);

}  // namespace gdn
