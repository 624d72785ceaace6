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

// Returns the whole contents. The error says why the file cannot be read: no such file, a folder, no permission, more
// than `most` bytes, a pipe whose writer sends nothing for 10 s.
absl::StatusOr<std::string> ReadUserFile(const std::string& path, size_t most = kMostUserFileBytes);

}  // namespace gdn
