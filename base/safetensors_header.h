// The JSON header of a safetensors file, as its fields: read in one pass, without a tree of the text, so that time and
// memory follow the text's length whatever is in it.
//
// Thread safety: pure functions.
//
//   GDN_ASSIGN_OR_RETURN(SafetensorsHeaderFields header, ReadSafetensorsHeader(text));
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/safetensors.h"

namespace gdn {

struct SafetensorsHeaderFields {
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry> entries;  // each of the bytes that its dtype and shape have
};

// DATA_LOSS (INVALID_STATE_FILE) if the text is no header, or has a key twice. Where the tensors lie is not checked.
absl::StatusOr<SafetensorsHeaderFields> ReadSafetensorsHeader(std::string_view text);

// The error of a file, and of one of its tensors; `message` is cut, for a file may have names of megabytes.
absl::Status DamagedSafetensors(std::string_view message);
absl::Status DamagedSafetensorsTensor(const std::string& name, std::string_view message);

}  // namespace gdn
