// Reads a token from a file of its own, so that it appears in no command line and in no listing of processes.
//
// Thread safety: a free function.
//
//   GDN_ASSIGN_OR_RETURN(const std::string authorization, AuthorizationOfFile("alice.token"));
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gdn {

// Returns "Bearer TOKEN" from the file's first line, without spaces around it. INVALID_ARGUMENT (INVALID_SPEC:
// token_file) if the file cannot be read or has more than 64 KiB, or if that line is blank.
absl::StatusOr<std::string> AuthorizationOfFile(const std::string& path);

}  // namespace gdn
