// Reads a file whose path a user gave: settings, tokens, keys.
//
// A pipe is read too, so that a shell's <(command) may be given. Reading ends: a pipe that nobody writes to and a
// device that never ends are errors.
// Thread safety: a free function. Ownership: returns a copy.
//
//   GDN_ASSIGN_OR_RETURN(std::string text, ReadUserFile("/etc/gdn/tokens.json"));
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace gdn {

inline constexpr size_t kMostUserFileBytes = size_t{64} << 20;  // far above any list of tokens or certificates

// The whole contents. The error says why the file cannot be read: no such file, a folder, no permission, more than
// `most` bytes, a pipe whose writer sends nothing for 10 s.
absl::StatusOr<std::string> ReadUserFile(const std::string& path, size_t most = kMostUserFileBytes);

}  // namespace gdn
