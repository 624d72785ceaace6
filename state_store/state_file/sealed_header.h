// The header of a state file under a checksum of itself. For this folder alone.
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

// The header of a file with these tensors, whose checksums are given: the 8 bytes of its length and its text. Its
// version is FormatVersionOf the metadata's dims and base_dtype; where they say that it is a tree's, it stays that.
absl::StatusOr<std::string> SealedHeader(const std::vector<RawTensor>& tensors, Metadata metadata,
                                         const Checksums& checksums);
// Whether the file has a header_checksum; DATA_LOSS where it has one that is not the header's. Looks at the raw text,
// for nothing of it is believed before. A file too short for its header passes: the parser has more to say about it.
absl::StatusOr<bool> CheckHeaderChecksum(std::string_view bytes);

}  // namespace gdn::state_file
