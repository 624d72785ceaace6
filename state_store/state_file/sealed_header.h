// Makes and checks the header of a state file, which contains its own checksum. For this folder only.
//
// Thread safety: free functions on values.
//
//   GDN_ASSIGN_OR_RETURN(std::string header, SealedHeader(tensors, metadata, checksums));
//   GDN_ASSIGN_OR_RETURN(const bool sealed, CheckHeaderChecksum(bytes));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/safetensors.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {

// Returns the header of a file with these tensors and checksums: 8 bytes with its length, then its text. Sets
// format_version from the metadata's dims and base_dtype, but leaves kFormatVersionTree as it is.
absl::StatusOr<std::string> SealedHeader(const std::vector<RawTensor>& tensors, Metadata metadata,
                                         const Checksums& checksums);
// True if the file has a header_checksum. DATA_LOSS (INVALID_STATE_FILE) if that is not the header's. Searches the raw
// text, because an unverified header must not be parsed. False for a file that is too short: the parser reports that.
absl::StatusOr<bool> CheckHeaderChecksum(std::string_view bytes);

}  // namespace gdn::state_file
