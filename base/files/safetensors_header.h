// Reads the JSON header of a safetensors file into its fields in one pass, without a JSON tree, so that time and memory
// are linear in the text's length even for hostile input.
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
#include "base/files/safetensors.h"

namespace gdn {

struct SafetensorsHeaderFields {
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry> entries;  // each end - begin agrees with dtype and shape
};

// Reads the JSON text of a header. DATA_LOSS (INVALID_STATE_FILE) if the text is not a header or has a key twice. Does
// not check that the tensors' offsets fit each other and the file.
absl::StatusOr<SafetensorsHeaderFields> ReadSafetensorsHeader(std::string_view text);

// Make the error DATA_LOSS (INVALID_STATE_FILE) for a damaged file, or for one of its tensors (with the metadata
// "tensor"; `message` then continues "tensor 'NAME' "). A long message or name is cut, because a file may have names of
// megabytes.
absl::Status DamagedSafetensors(std::string_view message);
absl::Status DamagedSafetensorsTensor(const std::string& name, std::string_view message);

}  // namespace gdn
