// Reads a file whose path a user gave: settings, tokens, keys.
//
// Pipes work too, so a shell's <(command) may be given. Reading always ends: a pipe without a writer and a device
// without an end are errors.
// Thread safety: a free function. Ownership: returns a copy.
//
//   GDN_ASSIGN_OR_RETURN(std::string text, ReadUserFile("/etc/gdn/tokens.json"));
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace gdn {

inline constexpr size_t kMostUserFileBytes = size_t{64} << 20;  // far above any list of tokens or certificates

// Returns the whole contents; waits for a pipe's writer. The error says why the file cannot be read. INVALID_ARGUMENT:
// a folder, or more than `most` bytes. DEADLINE_EXCEEDED: a pipe through which nothing comes for 10 s. Otherwise the
// code of the system's error, such as NOT_FOUND or PERMISSION_DENIED.
absl::StatusOr<std::string> ReadUserFile(const std::string& path, size_t most = kMostUserFileBytes);

}  // namespace gdn
